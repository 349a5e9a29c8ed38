"""All that a running broker keeps: rows, files, the log, and the size of everything in its memory that can grow."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from quarry_mq.kv import KeyRange, RocksEngine
from tests.conformance.broker import RunningBroker

PACKAGES: Final = ("quarry_mq.server.", "quarry_mq.store.", "quarry_mq.kv.")
GROWING: Final = (dict, list, set, deque, WeakSet, WeakKeyDictionary, WeakValueDictionary)
ALL_KEYS: Final = KeyRange(b"", None)

TIMED_ROWS: Final = frozenset({b"flushed_up_to", b"seen_up_to", b"log_begins"})
"""Rows of `meta` that are written as time goes by, whoever calls."""

NEVER_CALLERS: Final = frozenset(
    {
        # told and counted for people, and bounded
        "Audit._denials",
        "DeniedCallers._callers",
        "LimitsMet",
        "ErrorReporter._logged_s",
        # numbers of calls that were over before their deadline: cleared when there are more than twice the open ones
        "Switchboard._deadlines",
        # proofs and decisions that are remembered, and bounded
        "Authenticator._remembered",
        "Authorizer._known",
        "_Buckets._buckets",
    }
)
"""What denied calls do leave behind: by class and attribute."""

DATABASE_FILE: Final = "CURRENT"
"""Lies in each folder whose files are RocksDB's own affair: their rows are compared."""


TIMED: Final = frozenset({"RecentRates._samples", "ConsumerLag", "History", "NameHistory", "StuckGroups", "Concerns"})
"""What changes as time goes by, whoever calls: classes, and attributes of others."""


def state_of(broker: RunningBroker, *, ignored: Collection[str] = ()) -> dict[str, object]:
    """By a path that tells where it is. `ignored`: attributes that change as time goes by, as `Class.attribute`."""
    walk = _Walk({*NEVER_CALLERS, *TIMED, *ignored})
    walk.visit(broker.broker, "broker")
    walk.visit(broker.store, "store")
    found: dict[str, object] = dict(walk.sizes)
    for directory, engine in sorted(walk.engines.items()):
        for name in engine._families:
            for key, value in engine.family(name).scan(ALL_KEYS):
                if key not in TIMED_ROWS:
                    found[f"{directory}/{name}/{key!r}"] = value
    found["log"] = broker.store.messages.appended_up_to, broker.store.messages.dispatched_up_to
    found["queues"] = sorted(broker.store.messages.iterate_queues())
    found |= {f"file {path}": size for path, size in _files(broker.broker._settings.store.directory)}
    return found


def difference(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """What is not as it was."""
    return {
        each: (before.get(each), after.get(each)) for each in {**before, **after} if before.get(each) != after.get(each)
    }


def _files(root: Path) -> Iterator[tuple[str, int]]:
    for folder, folders, names in os.walk(root):
        if DATABASE_FILE in names:
            folders.clear()
            continue
        for name in names:
            path = Path(folder, name)
            yield str(path.relative_to(root)), path.stat().st_size


class _Walk:
    """Goes through all objects of the broker's own classes, and what hangs on methods and closures of theirs."""

    def __init__(self, ignored: Collection[str]) -> None:
        self.sizes: dict[str, int] = {}
        self.engines: dict[str, RocksEngine] = {}
        self._ignored = ignored
        self._seen: set[int] = set()
        self._kept: list[object] = []
        """An id is an object's own as long as the object lives."""

    def visit(self, value: Any, path: str) -> None:
        left: deque[tuple[Any, str]] = deque([(value, path)])
        while left:
            value, path = left.popleft()
            if not _MAY_HOLD[type(value)] or id(value) in self._seen:
                continue
            if isinstance(value, RocksEngine):
                self.engines[value._directory.name] = value
            parts = list(self._parts(value, path))
            if parts or isinstance(value, GROWING):
                self._seen.add(id(value))
                self._kept.append(value)
            left += parts

    def _parts(self, value: Any, path: str) -> Iterator[tuple[Any, str]]:
        if isinstance(value, GROWING) and not type(value).__module__.startswith(PACKAGES):
            yield from self._elements(value, path)
        elif isinstance(value, MethodType):
            yield value.__self__, f"{path}.self"
        elif isinstance(value, partial):
            yield value.func, f"{path}.func"
            yield list(value.args) + list(value.keywords.values()), f"{path}.args"
        elif isinstance(value, FunctionType):
            if value.__module__.startswith(PACKAGES):
                for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                    try:
                        yield cell.cell_contents, f"{path}<{name}>"
                    except ValueError:  # not set yet
                        continue
        elif type(value).__module__.startswith(PACKAGES) and not isinstance(value, type):
            if type(value).__name__ in self._ignored:
                return
            if isinstance(value, GROWING):
                yield from self._elements(value, path)
            for name, part in _attributes(value):
                if f"{type(value).__name__}.{name}" not in self._ignored:
                    yield part, f"{path}.{name}"

    def _elements(self, value: Any, path: str) -> Iterator[tuple[Any, str]]:
        self.sizes[path] = len(value)
        if isinstance(value, Counter):
            self.sizes[path] += sum(value.values())
        if isinstance(value, Mapping):
            yield from ((each, f"{path}[{key!r}]") for key, each in list(value.items()))
        else:
            yield from ((each, f"{path}[{at}]") for at, each in enumerate(list(value)))


class _MayHold(dict[type, bool]):
    """Map each type to whether its values refer to other objects."""

    def __missing__(self, kind: type) -> bool:
        is_holder = issubclass(kind, (*GROWING, MethodType, partial, FunctionType))
        self[kind] = is_holder or kind.__module__.startswith(PACKAGES)
        return self[kind]


class _Slots(dict[type, list[tuple[str, str]]]):
    """Map each type to the names of its slots, and to the name by which each slot is reached."""

    def __missing__(self, kind: type) -> list[tuple[str, str]]:
        found = self[kind] = list[tuple[str, str]]()
        for each in kind.__mro__:
            slots = getattr(each, "__slots__", ())
            names = {slots} if isinstance(slots, str) else set(slots)
            for name in names - {"__dict__", "__weakref__"}:
                found += [(name, f"_{each.__name__.lstrip('_')}{name}" if name.startswith("__") else name)]
        return found


_MAY_HOLD: Final = _MayHold()
_SLOTS: Final = _Slots()


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from list(getattr(value, "__dict__", {}).items())
    for name, reached_by in _SLOTS[type(value)]:
        if hasattr(value, reached_by):
            yield name, getattr(value, reached_by)
