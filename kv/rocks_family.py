"""Families, batches and snapshots of `kv.rocks.RocksEngine`, around the native objects it hands them.

`native` here is always an object of rocksdict; `kv.rocks` is the only module that makes them. When the engine
closes, each loses its native part: a native family, handle, snapshot or iterator that somebody still holds would
keep the database open and locked, and go on answering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Final, NoReturn
from weakref import WeakSet

from kv.engine import Family, KeyRange, Snapshot
from kv.errors import EngineClosed, EngineCorrupt, EngineLocked, KvError

DEFAULT_FAMILY: Final = "default"
"""RocksDB has this family in every database, used or not."""

CHUNK_FIRST: Final = 16
CHUNK_MAX: Final = 1_024
"""`iterate` takes pairs in growing chunks: cheap for a caller that stops early, and for one that does not."""


def fail(error: Exception) -> NoReturn:
    """Raise what a rocksdict error means. Errors that are not the engine's (a str as a key) pass unchanged."""
    if type(error) is not Exception:
        raise error
    text = str(error)
    if text.startswith("Corruption:") or "No such file or directory" in text:
        raise EngineCorrupt(text) from error
    if text.startswith("IO error:") and "lock" in text:
        raise EngineLocked(text) from error
    raise KvError(text) from error


class _Closed:
    """Stands in for every native object after `close()`."""

    def __getattr__(self, name: str) -> NoReturn:
        raise EngineClosed(f"used after close(): {name}")


CLOSED: Final[Any] = _Closed()


class Cursor:
    """Owns one native iterator, so that the engine can take it away."""

    __slots__ = ("__weakref__", "native")

    def __init__(self, native: Any) -> None:
        self.native = native


class RocksSnapshot:
    """See `kv.engine.Snapshot`."""

    __slots__ = ("__weakref__", "_natives")

    def __init__(self, natives: dict[str, Any]) -> None:
        self._natives = natives

    def __enter__(self) -> RocksSnapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def source(self, family: str) -> Any:
        return self._natives.get(family, CLOSED)

    def close(self) -> None:
        self._natives = {}


class RocksBatch:
    """See `kv.engine.WriteBatch`."""

    __slots__ = ("_native",)

    def __init__(self, native: Any) -> None:
        self._native = native

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        try:
            self._native.put(key, value, own_family(family).handle())
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def putter(self, family: Family) -> Callable[[bytes, bytes], None]:
        own = own_family(family)
        handle = own.handle()
        native_put: Callable[..., None] = self._native.put
        # Without a handle the native batch writes to the default family, which spares an argument per put.
        return native_put if own.name == DEFAULT_FAMILY else partial(native_put, column_family=handle)

    def delete(self, family: Family, key: bytes) -> None:
        try:
            self._native.delete(key, own_family(family).handle())
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def delete_range(self, family: Family, keys: KeyRange) -> None:
        if keys.end is None:
            raise ValueError("a range delete needs an end")
        if keys.end <= keys.start:
            return
        try:
            self._native.delete_range(keys.start, keys.end, own_family(family).handle())
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def __len__(self) -> int:
        try:
            return len(self._native)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def take(self) -> Any:
        """The native batch, for the engine that writes it."""
        return self._native


class RocksFamily:
    """See `kv.engine.Family`."""

    __slots__ = ("_cursors", "_handle", "_name", "_native", "_read_options")

    def __init__(
        self, name: str, native: Any, handle: Any, read_options: Callable[[], Any], cursors: WeakSet[Cursor]
    ) -> None:
        self._name = name
        self._native = native
        self._handle = handle
        self._read_options = read_options
        self._cursors = cursors

    @property
    def name(self) -> str:
        return self._name

    def handle(self) -> Any:
        if self._handle is None:
            raise EngineClosed("used after close()")
        return self._handle

    def native(self) -> Any:
        return self._native

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._native.get(key)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            values: list[bytes | None] = self._native.get(list(keys))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)
        return values

    def scan(
        self,
        keys: KeyRange,
        *,
        limit: int | None = None,
        reverse: bool = False,
        snapshot: Snapshot | None = None,
    ) -> list[tuple[bytes, bytes]]:
        source = self._source(snapshot)
        if keys.end is not None and keys.end <= keys.start:
            return []
        options = self._bounded(keys)
        try:
            first = None if reverse else keys.start
            pairs: list[tuple[bytes, bytes]] = list(islice(source.items(reverse, first, options), limit))
            if limit is None or len(pairs) < limit:
                after = pairs[-1][0] if pairs else None
                cursor = Cursor(source.iter(options))
                missing = None if limit is None else limit - len(pairs)
                pairs.extend(islice(_rest(cursor, keys.start, after, reverse=reverse), missing))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)
        return pairs

    def iterate(
        self, keys: KeyRange, *, reverse: bool = False, snapshot: Snapshot | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        source = self._source(snapshot)
        if keys.end is not None and keys.end <= keys.start:
            return iter(())
        options = self._bounded(keys)
        try:
            items = Cursor(source.items(reverse, None if reverse else keys.start, options))
            # Taken now, not at the end, so that it sees the same state; only a short chunk moves it.
            guard = Cursor(source.iter(options))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)
        self._cursors.add(items)
        self._cursors.add(guard)
        return _walk(items, guard, keys.start, reverse=reverse)

    def _source(self, snapshot: Snapshot | None) -> Any:
        if snapshot is None or self._native is CLOSED:
            source = self._native
        else:
            if not isinstance(snapshot, RocksSnapshot):
                raise TypeError(f"a snapshot of another engine: {snapshot!r}")
            source = snapshot.source(self._name)
        if source is CLOSED:
            raise EngineClosed("used after close()")
        return source

    def _bounded(self, keys: KeyRange) -> Any:
        options = self._read_options()
        if keys.start:  # an empty lower bound would hide everything
            options.set_iterate_lower_bound(keys.start)
        if keys.end is not None:
            options.set_iterate_upper_bound(keys.end)
        return options

    def release(self) -> None:
        """Give the native parts up: they hold the database open and locked."""
        self._native = CLOSED
        self._handle = None


def own_family(family: Family) -> RocksFamily:
    if not isinstance(family, RocksFamily):
        raise TypeError(f"a family of another engine: {family!r}")
    return family


def _rest(cursor: Cursor, start: bytes, after: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
    """What comes after `items()` ended behind the key `after`: nothing, or the error that ended it.

    Pairs come out only where the fault was passing (a read error that a second read does not meet).
    """
    if after is None:
        if reverse:
            cursor.native.seek_to_last()
        else:
            cursor.native.seek(start)
    elif reverse:
        cursor.native.seek_for_prev(after)
    else:
        cursor.native.seek(after)
    if after is not None and cursor.native.valid() and cursor.native.key() == after:
        cursor.native.prev() if reverse else cursor.native.next()
    while cursor.native.valid():
        yield cursor.native.key(), cursor.native.value()
        cursor.native.prev() if reverse else cursor.native.next()
    cursor.native.status()


def _walk(items: Cursor, guard: Cursor, start: bytes, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
    size = CHUNK_FIRST
    after: bytes | None = None
    while True:
        if items.native is CLOSED:
            raise EngineClosed("used after close()")
        try:
            chunk: list[tuple[bytes, bytes]] = list(islice(items.native, size))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)
        for pair in chunk:
            if items.native is CLOSED:
                raise EngineClosed("used after close()")
            yield pair
        if chunk:
            after = chunk[-1][0]
        if len(chunk) < size:
            break
        size = min(2 * size, CHUNK_MAX)
    try:
        yield from _rest(guard, start, after, reverse=reverse)
    except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
        fail(error)
