"""All that a broker keeps, in rows, files and memory: what a call that was denied must leave as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from kv import KeyRange
from store.state import FAMILIES, META
from tests.conformance.broker import RunningBroker, until

DEPTH_MAX: Final = 8
KEPT_OF_CALLERS: Final = frozenset({"_security", "gate", "_gate", "_metrics", "_observing", "_faults", "_limits_met"})
"""What remembers callers, counts calls and tells of them: a denied call is one."""
MOVING: Final = frozenset(
    {
        "_front",
        "_background",
        "_upkeep",
        "_supervisor",
        "_sources",
        "_live",
        "_clock",
        "_tracing",
        "rates",
        "throughput",
    }
)
"""What goes on whether anybody calls or not."""


def state_of(broker: RunningBroker) -> Mapping[str, object]:
    """By the name of each part."""
    store = broker.store
    state: dict[str, object] = {
        "log": store.messages.appended_up_to,
        "queues": sorted(store.messages.iterate_queues()),
        "topics": sorted(each.name for each in store.topics.list()),
        "groups": sorted(each.name for each in store.groups.list()),
        "files": _files(store.messages._settings.root),
    }
    for name in FAMILIES:
        if name != META:  # how far the log is durable is written down there once a second
            state[f"rows of {name}"] = store.state_engine.family(name).scan(KeyRange(b"", None))
    state |= dict(_sizes(broker.broker, "broker", {id(broker.broker)}, 0))
    return state


def _files(root: Path) -> list[str]:
    """Those of the log, of queues and of indexes; files of databases come and go by themselves."""
    kept = (each for name in ("commitlog", "consumequeue", "index", "key_index") for each in root.glob(f"{name}/**/*"))
    return sorted(str(each) for each in kept)


async def settled(broker: RunningBroker) -> Mapping[str, object]:
    """The state once nothing that was allowed goes on any more."""
    state: Mapping[str, object] = {}

    def is_settled() -> bool:
        nonlocal state
        before, state = state, state_of(broker)
        return before == state

    await until(is_settled, "the broker is at rest")
    return state


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    names = before.keys() | after.keys()
    return {name: (before.get(name), after.get(name)) for name in sorted(names) if before.get(name) != after.get(name)}


def _sizes(part: object, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, object]]:
    """How many things each collection holds that is reached from a part of the broker."""
    for name, value in _attributes(part):
        if name in KEPT_OF_CALLERS or name in MOVING or id(value) in seen:
            continue
        seen.add(id(value))
        here = f"{path}.{name}"
        if isinstance(value, Mapping | AbstractSet | list) or type(value).__name__ in {"deque", "GenerationCache"}:
            if isinstance(value, Sized):
                yield here, len(value)
        elif type(value).__module__.startswith(("server.", "store.")) and depth < DEPTH_MAX:
            yield from _sizes(value, here, seen, depth + 1)


def _attributes(part: object) -> Iterator[tuple[str, object]]:
    yield from getattr(part, "__dict__", {}).items()
    for kind in type(part).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(part, name):
                yield name, getattr(part, name)
