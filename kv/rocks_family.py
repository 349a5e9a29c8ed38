"""The module has the families, batches and snapshots of `kv.rocks.RocksEngine`, wrapped around its native objects.

`native` here is always an object of rocksdict; `kv.rocks` is the only module that makes them. When the engine closes,
each loses its native part: a native family, handle, snapshot or iterator that a caller still holds would keep the
database open and locked, and would still answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Final, NoReturn
from weakref import WeakSet

from quarry_mq.kv.engine import Family, KeyRange, Snapshot
from quarry_mq.kv.errors import EngineClosed, EngineCorrupt, EngineFull, EngineLocked, EngineStarved, KvError
from quarry_mq.kv.later_puts import LaterPuts, merged, scanned

DEFAULT_FAMILY: Final = "default"
"""The family that RocksDB has in every database, used or not."""

NO_ROOM: Final = "No space left on device"
"""The only error from which RocksDB recovers by itself. After any other, also an exceeded quota, it refuses writes
until reopened.
"""

NO_DESCRIPTOR: Final = "Too many open files"
"""The error for a file that was to be read: another read may succeed."""
FOR_WRITING: Final = "for appending"

LOCKED: Final = ("IO error: lock ", "IO error: While lock file")
"""The errors that say that this process or another one holds the lock."""

PLAIN_SCAN_MAX: Final = 16
"""The largest limit of a scan that uses a plain iterator alone.

A pair costs a plain iterator 1.4 µs and `items()` 0.5 µs. But `items()` has to be followed by a plain iterator where it
comes up short, as most scans with a small limit do.
"""

CHUNK_FIRST: Final = 16
CHUNK_MAX: Final = 1_024
"""Sizes of the chunks in which `iterate` reads, which grow: cheap for a caller that stops early, and for one that does
not.
"""


def fail(error: Exception, directory: Path | None = None) -> NoReturn:
    """Raise the error that a rocksdict error stands for. Errors that are not the engine's (a str as a key) pass
    unchanged.

    RocksDB does not always say in which file it has found damage: then the database's `directory` is named.
    """
    if type(error) is not Exception:
        raise error
    text = str(error)
    named = text if directory is None or str(directory) in text else f"{directory}: {text}"
    if text.startswith("Corruption:") or "No such file or directory" in text:
        raise EngineCorrupt(named) from error
    if text.startswith(("IO error:", "Result incomplete:")) and NO_ROOM in text:
        raise EngineFull(named) from error
    if text.startswith("IO error:") and NO_DESCRIPTOR in text and FOR_WRITING not in text:
        raise EngineStarved(named) from error
    if text.startswith(LOCKED):
        raise EngineLocked(named) from error
    raise KvError(named) from error


class _Closed:
    """The object takes the place of every native object after `close()`."""

    def __getattr__(self, name: str) -> NoReturn:
        raise EngineClosed(f"used after close(): {name}")


CLOSED: Final[Any] = _Closed()


class Cursor:
    """A cursor owns one native iterator, so that the engine can take it away."""

    __slots__ = ("__weakref__", "native")

    def __init__(self, native: Any) -> None:
        self.native = native


class RocksSnapshot:
    """A RocksDB snapshot implements `kv.engine.Snapshot`.

    It has one plain iterator per family: an iterator sees the state of the moment it was made. rocksdict's own
    snapshots answer single keys only; iterators made from them see the present.
    """

    __slots__ = ("__weakref__", "_iterators", "_lock")

    def __init__(self, iterators: dict[str, Any]) -> None:
        self._iterators = iterators
        # Guards the position of the iterators, which all scans of a family share.
        self._lock = Lock()

    def __enter__(self) -> RocksSnapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def scan(self, family: str, keys: KeyRange, limit: int | None, *, reverse: bool) -> list[tuple[bytes, bytes]]:
        with self._lock:
            plain = Cursor(self._iterators.get(family, CLOSED))
            pairs = _backwards(plain, keys) if reverse else _upwards(plain, keys)
            return list(islice(pairs, limit))

    def iterate(self, family: str, keys: KeyRange, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        size = CHUNK_FIRST
        while True:
            chunk = self.scan(family, keys, size, reverse=reverse)
            yield from chunk
            if len(chunk) < size:
                return
            last = chunk[-1][0]
            keys = KeyRange(keys.start, last) if reverse else KeyRange(last + b"\x00", keys.end)
            size = min(2 * size, CHUNK_MAX)

    def close(self) -> None:
        self._iterators = {}


class RocksBatch:
    """A RocksDB batch implements `kv.engine.WriteBatch`."""

    __slots__ = ("_native", "comes_after_later_puts")

    def __init__(self, native: Any) -> None:
        self._native = native
        self.comes_after_later_puts = False
        """True if the batch touches a family with buffered puts: these are older, and have to be stored before."""

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        try:
            self._native.put(key, value, self._handle_of(family))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def put_all(self, family: Family, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        handle = self._handle_of(family)
        native_put = self._native.put
        try:
            for key, value in pairs:
                native_put(key, value, handle)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def delete(self, family: Family, key: bytes) -> None:
        try:
            self._native.delete(key, self._handle_of(family))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def delete_all(self, family: Family, keys: Iterable[bytes]) -> None:
        handle = self._handle_of(family)
        native_delete = self._native.delete
        try:
            for key in keys:
                native_delete(key, handle)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def delete_range(self, family: Family, keys: KeyRange) -> None:
        if keys.end is None:
            raise ValueError("a range delete needs an end")
        if keys.end <= keys.start:
            return
        try:
            self._native.delete_range(keys.start, keys.end, self._handle_of(family))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def __len__(self) -> int:
        try:
            return len(self._native)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error)

    def _handle_of(self, family: Family) -> Any:
        own = own_family(family)
        if own.later is not None:
            self.comes_after_later_puts = True
        return own.handle()

    def take(self) -> Any:
        """Return the native batch, for the engine that writes it."""
        return self._native


class RocksFamily:
    """A RocksDB family implements `kv.engine.Family`."""

    __slots__ = ("_cursors", "_directory", "_handle", "_name", "_native", "_read_options", "later")

    def __init__(
        self,
        name: str,
        native: Any,
        handle: Any,
        read_options: Callable[[], Any],
        cursors: WeakSet[Cursor],
        *,
        directory: Path,
        later: LaterPuts | None = None,
    ) -> None:
        """Make a family. `directory` is that of the database, for its errors."""
        self._directory = directory
        self.later = later
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
        if self.later is not None and (waiting := self.later.get(key)) is not None:
            self.handle()
            return waiting
        try:
            value: bytes | None = self._native.get(key)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error, self._directory)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        # before the database: what is buffered now may be stored by the time it is read, but not the other way round
        waiting = [None] * len(keys) if self.later is None else [self.later.get(key) for key in keys]
        try:
            values: list[bytes | None] = self._native.get(list(keys))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error, self._directory)
        if self.later is None:
            return values
        return [value if later is None else later for later, value in zip(waiting, values, strict=True)]

    def scan(
        self,
        keys: KeyRange,
        *,
        limit: int | None = None,
        reverse: bool = False,
        snapshot: Snapshot | None = None,
    ) -> list[tuple[bytes, bytes]]:
        self.handle()
        if keys.end is not None and keys.end <= keys.start:
            return []
        waiting = self.later.unsettled() if self.later is not None and snapshot is None else None
        pairs = self._scan(keys, limit, snapshot, reverse=reverse)
        return scanned(pairs, waiting, keys, limit, reverse=reverse) if waiting else pairs

    def take(self, keys: KeyRange, count: int) -> list[tuple[bytes, bytes]]:
        if self.later is None and count > 0:
            try:
                items = self._native.items(from_key=keys.start, read_opt=self._options_up_to(keys.end))
                pairs: list[tuple[bytes, bytes]] = list(islice(items, count))
            except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
                fail(error, self._directory)
            if len(pairs) == count:
                return pairs
        return self.scan(keys, limit=count)  # fewer pairs, or damage instead of them

    def _scan(
        self, keys: KeyRange, limit: int | None, snapshot: Snapshot | None, *, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        """Scan the stored pairs, without the buffered ones."""
        try:
            if snapshot is not None:
                return _own_snapshot(snapshot).scan(self._name, keys, limit, reverse=reverse)
            options = self._options_up_to(keys.end)
            if reverse:
                return list(islice(_backwards(Cursor(self._native.iter(options)), keys), limit))
            if limit is not None and limit <= PLAIN_SCAN_MAX:
                return list(islice(_upwards(Cursor(self._native.iter(options)), keys), limit))
            items = self._native.items(from_key=keys.start, read_opt=options)
            pairs: list[tuple[bytes, bytes]] = list(islice(items, limit))
            if limit is None or len(pairs) < limit:
                plain = Cursor(self._native.iter(options))
                missing = None if limit is None else limit - len(pairs)
                pairs.extend(islice(_rest(plain, keys, pairs), missing))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error, self._directory)
        return pairs

    def iterate(
        self, keys: KeyRange, *, reverse: bool = False, snapshot: Snapshot | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        self.handle()
        if keys.end is not None and keys.end <= keys.start:
            return iter(())
        if snapshot is not None:
            return _translated(_own_snapshot(snapshot).iterate(self._name, keys, reverse=reverse), self._directory)
        waiting = None if self.later is None else self.later.unsettled()
        pairs = self._iterate(keys, reverse=reverse)
        return merged(pairs, waiting, keys, reverse=reverse) if waiting else pairs

    def _iterate(self, keys: KeyRange, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the stored pairs, without the buffered ones."""
        options = self._options_up_to(keys.end)
        try:
            # make both now, so that both see the state of this moment
            plain = Cursor(self._native.iter(options))
            items = None if reverse else Cursor(self._native.items(from_key=keys.start, read_opt=options))
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            fail(error, self._directory)
        self._cursors.add(plain)
        if items is None:
            return _translated(_backwards(plain, keys), self._directory)
        self._cursors.add(items)
        return _translated(_forwards(items, plain, keys), self._directory)

    def _options_up_to(self, end: bytes | None) -> Any:
        options = self._read_options()
        if end is not None:
            options.set_iterate_upper_bound(end)
        return options

    def release(self) -> None:
        """Release the native parts: they keep the database open and locked."""
        if self.later is not None:
            self.later.clear()
        self._native = CLOSED
        self._handle = None


def _own_snapshot(snapshot: Snapshot) -> RocksSnapshot:
    if not isinstance(snapshot, RocksSnapshot):
        raise TypeError(f"a snapshot of another engine: {snapshot!r}")
    return snapshot


def own_family(family: Family) -> RocksFamily:
    if not isinstance(family, RocksFamily):
        raise TypeError(f"a family of another engine: {family!r}")
    return family


def _rest(plain: Cursor, keys: KeyRange, before: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield what comes after `items()` ended after the pairs `before`: nothing, or the error that ended it.

    Pairs come out only where the fault was temporary (a read error that does not occur again).
    """
    start = before[-1][0] + b"\x00" if before else keys.start
    return _upwards(plain, KeyRange(start, keys.end))


def _upwards(plain: Cursor, keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
    plain.native.seek(keys.start)
    while plain.native.valid():
        key = plain.native.key()
        if keys.end is not None and key >= keys.end:
            return
        yield key, plain.native.value()
        plain.native.next()
    plain.native.status()


def _backwards(plain: Cursor, keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
    """Iterate backwards without a lower bound: rocksdict would set the upper one instead."""
    if keys.end is None:
        plain.native.seek_to_last()
    else:
        plain.native.seek_for_prev(keys.end)
        if plain.native.valid() and plain.native.key() == keys.end:
            plain.native.prev()
    while plain.native.valid():
        key = plain.native.key()
        if key < keys.start:
            return
        yield key, plain.native.value()
        plain.native.prev()
    plain.native.status()


def _forwards(items: Cursor, plain: Cursor, keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over `items()` in chunks, then use `plain` to tell the range's end from damage."""
    size = CHUNK_FIRST
    chunk: list[tuple[bytes, bytes]] = []
    while True:
        if items.native is CLOSED:
            raise EngineClosed("used after close()")
        before, chunk = chunk, list(islice(items.native, size))
        for pair in chunk:
            if items.native is CLOSED:
                raise EngineClosed("used after close()")
            yield pair
        if len(chunk) < size:
            break
        size = min(2 * size, CHUNK_MAX)
    yield from _rest(plain, keys, chunk or before)


def _translated(pairs: Iterator[tuple[bytes, bytes]], directory: Path) -> Iterator[tuple[bytes, bytes]]:
    try:
        yield from pairs
    except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
        fail(error, directory)
