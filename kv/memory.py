"""The module is an engine in memory, for tests: same order, same atomicity, same errors as the contract says.

It also crashes on request: without a write-ahead log, a RocksDB with atomic flush comes back as some prefix of its
batches, except that a family flushed by hand may be further than the others. With a write-ahead log it loses data only
in a power cut, and then only batches after the last synchronous write. `crash` produces any such state.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Final

from quarry_mq.kv.engine import Family, KeyRange, LaterPuts, Snapshot, WriteBatch, scanned
from quarry_mq.kv.errors import EngineClosed, KvError
from quarry_mq.kv.keys import counted, read_counted

TABLE_SUFFIX: Final = ".table"


class _Table:
    """The table is a sorted map."""

    __slots__ = ("keys", "values")

    def __init__(self, values: dict[bytes, bytes] | None = None) -> None:
        self.values = dict(values or {})
        self.keys = sorted(self.values)

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.values:
            insort(self.keys, key)
        self.values[key] = value

    def delete_range(self, keys: KeyRange) -> None:
        start, end = self.span(keys)
        for key in self.keys[start:end]:
            del self.values[key]
        del self.keys[start:end]

    def span(self, keys: KeyRange) -> tuple[int, int]:
        start = bisect_left(self.keys, keys.start)
        end = len(self.keys) if keys.end is None else bisect_left(self.keys, keys.end)
        return start, max(start, end)

    def copy(self) -> _Table:
        return _Table(self.values)


_Operation = tuple[str, KeyRange, bytes | None]
"""An operation is family, keys and value of a put; a value of None deletes the range."""


def _only(key: bytes) -> KeyRange:
    return KeyRange(key, key + b"\x00")


class MemorySnapshot:
    """A memory snapshot implements `kv.engine.Snapshot`."""

    def __init__(self, engine: MemoryEngine, tables: dict[str, _Table]) -> None:
        self._engine = engine
        self._tables: dict[str, _Table] | None = tables

    def __enter__(self) -> MemorySnapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def table(self, family: str) -> _Table:
        self._engine.require_open()
        if self._tables is None:
            raise EngineClosed("the snapshot is closed")
        return self._tables[family]

    def close(self) -> None:
        self._tables = None


class MemoryBatch:
    """A memory batch implements `kv.engine.WriteBatch`."""

    def __init__(self, require_open: Callable[[], None]) -> None:
        """Make an empty batch. `require_open` raises `kv.EngineClosed` when its engine is closed."""
        self._require_open = require_open
        self._operations: list[_Operation] | None = []
        self.comes_after_later_puts = True

    def _open_operations(self) -> list[_Operation]:
        self._require_open()
        if self._operations is None:
            raise KvError("the batch is written already")
        return self._operations

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self._open_operations().append((family.name, _only(key), value))

    def put_all(self, family: Family, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._open_operations().extend((family.name, _only(key), value) for key, value in pairs)

    def delete(self, family: Family, key: bytes) -> None:
        self._open_operations().append((family.name, _only(key), None))

    def delete_all(self, family: Family, keys: Iterable[bytes]) -> None:
        self._open_operations().extend((family.name, _only(key), None) for key in keys)

    def delete_range(self, family: Family, keys: KeyRange) -> None:
        if keys.end is None:
            raise ValueError("a range delete needs an end")
        if keys.end > keys.start:
            self._open_operations().append((family.name, keys, None))

    def __len__(self) -> int:
        return len(self._open_operations())

    def operations(self) -> Sequence[_Operation]:
        return self._open_operations()

    def take(self) -> list[_Operation]:
        operations = self._open_operations()
        self._operations = None
        return operations


class MemoryFamily:
    """A memory family implements `kv.engine.Family`."""

    def __init__(self, name: str, engine: MemoryEngine) -> None:
        self._name = name
        self._engine = engine
        self.later: Final = LaterPuts(self._store_later)

    @property
    def name(self) -> str:
        return self._name

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        waiting = [self.later.get(key) for key in keys]
        values = self._engine.table(self._name, None).values
        return [values.get(key) if later is None else later for key, later in zip(keys, waiting, strict=True)]

    def scan(
        self,
        keys: KeyRange,
        *,
        limit: int | None = None,
        reverse: bool = False,
        snapshot: Snapshot | None = None,
    ) -> list[tuple[bytes, bytes]]:
        waiting = self.later.unsettled() if snapshot is None else None
        pairs = self._scan(keys, limit, snapshot, reverse=reverse)
        return scanned(pairs, waiting, keys, limit, reverse=reverse) if waiting else pairs

    def take(self, keys: KeyRange, count: int) -> list[tuple[bytes, bytes]]:
        return self.scan(keys, limit=count)

    def _scan(
        self, keys: KeyRange, limit: int | None, snapshot: Snapshot | None, *, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        with self._engine.lock:
            table = self._engine.table(self._name, snapshot)
            start, end = table.span(keys)
            if reverse:
                found = table.keys[start:end][::-1][:limit]
            else:
                found = table.keys[start : end if limit is None else min(end, start + limit)]
            return [(key, table.values[key]) for key in found]

    def iterate(
        self, keys: KeyRange, *, reverse: bool = False, snapshot: Snapshot | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        pairs = self.scan(keys, reverse=reverse, snapshot=snapshot)
        return self._walk(pairs)

    def _store_later(self, pairs: list[tuple[bytes, bytes]]) -> None:
        batch = self._engine.batch()
        batch.put_all(self, pairs)
        batch.comes_after_later_puts = False  # the batch consists of them
        self._engine.write(batch)

    def _walk(self, pairs: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for pair in pairs:
            self._engine.require_open()
            yield pair


class MemoryEngine:
    """A memory engine implements `kv.engine.KeyValueEngine`."""

    def __init__(self, families: Sequence[str], *, write_ahead_log: bool = False) -> None:
        self._families = {name: MemoryFamily(name, self) for name in families}
        self._tables = {name: _Table() for name in families}
        self._write_ahead_log = write_ahead_log
        self._closed = False
        self.lock: Final = RLock()
        # The states that a crash can lead back to: the tables at the last moment when all families were flushed, the
        # batches since then, and per family how many of these its own flushes cover.
        self._base = {name: _Table() for name in families}
        self._batches: list[list[_Operation]] = []
        self._flushed = dict.fromkeys(families, 0)
        self._base_sequence = 0

    def family(self, name: str) -> MemoryFamily:
        self.require_open()
        return self._families[name]

    def table(self, name: str, snapshot: Snapshot | None) -> _Table:
        self.require_open()
        if snapshot is None:
            return self._tables[name]
        if not isinstance(snapshot, MemorySnapshot):
            raise TypeError(f"a snapshot of another engine: {snapshot!r}")
        return snapshot.table(name)

    def batch(self) -> MemoryBatch:
        self.require_open()
        return MemoryBatch(self.require_open)

    def write(self, batch: WriteBatch, *, sync: bool = False) -> None:
        self.require_open()
        if not isinstance(batch, MemoryBatch):
            raise TypeError(f"a batch of another engine: {batch!r}")
        if sync and not self._write_ahead_log:
            raise KvError("a synchronous write needs the write-ahead log")
        if batch.comes_after_later_puts:
            for name in {family for family, _, _ in batch.operations()}:
                self._families[name].later.settle()
        with self.lock:
            operations = batch.take()
            _apply(self._tables, operations)
            self._batches.append(operations)
            if sync:
                self._rebase()

    def put_later(self, family: Family, pairs: list[tuple[bytes, bytes]]) -> None:
        self.require_open()
        self._families[family.name].later.add(pairs)

    def settle(self, *, more_than: int = 0) -> None:
        for family in self._families.values():
            family.later.settle(more_than=more_than)

    def flush(self, names: Sequence[str]) -> None:
        self.require_open()
        for name in names:
            self._families[name].later.settle()
        with self.lock:
            for name in names:
                self._flushed[name] = len(self._batches)
            if self._write_ahead_log or min(self._flushed.values()) == len(self._batches):
                self._rebase()

    def snapshot(self) -> MemorySnapshot:
        self.require_open()
        self.settle()
        with self.lock:
            return MemorySnapshot(self, {name: table.copy() for name, table in self._tables.items()})

    def compact(self, family: Family, keys: KeyRange) -> None:
        """Do nothing: deleted keys are gone at once, so there is no space to give back."""
        self.table(family.name, None).span(keys)

    def gather_tables(self, family: Family, count: int | None) -> None:  # noqa: ARG002 - there are no tables
        self.table(family.name, None)

    def write_table(self, family: Family, path: Path, pairs: Iterable[tuple[bytes, bytes]]) -> int:
        self.table(family.name, None)
        return write_table(path, pairs)

    def ingest(self, family: Family, tables: Sequence[Path]) -> None:
        self.require_open()
        self.settle()
        with self.lock:
            operations: list[_Operation] = []
            for path in tables:
                operations += [(family.name, _only(key), value) for key, value in read_table(path)]
            for table in (self._tables, self._base):
                _apply(table, operations)

    def checkpoint(self, directory: Path) -> None:
        self.require_open()
        try:
            directory.mkdir(parents=True)
        except FileExistsError as error:
            raise KvError(f"{directory}: exists") from error
        self.flush(list(self._families))
        with self.lock:
            for name, table in self._tables.items():
                data = b"".join(counted(key) + counted(table.values[key]) for key in table.keys)
                (directory / (name + TABLE_SUFFIX)).write_bytes(data)

    @classmethod
    def from_checkpoint(cls, directory: Path) -> MemoryEngine:
        """Return an engine holding what `checkpoint` wrote."""
        files = sorted(directory.glob(f"*{TABLE_SUFFIX}"))
        engine = cls([path.name.removesuffix(TABLE_SUFFIX) for path in files])
        for path in files:
            engine.ingest(engine.family(path.name.removesuffix(TABLE_SUFFIX)), [path])
        return engine

    def sequence(self) -> int:
        self.require_open()
        return self._base_sequence + sum(map(len, self._batches))

    def statistics(self) -> dict[str, int]:
        self.require_open()
        return {f"{name}.keys_estimate": len(table.keys) for name, table in self._tables.items()}

    def close(self) -> None:
        """Close the engine. Buffered puts are kept, as everything is, for an engine that is opened again."""
        if not self._closed:
            self.settle()
        self._closed = True

    def crash(self, surviving_batches: int = 0, *, power_loss: bool = False) -> None:
        """Go back to a state that RocksDB may show after the process ended without `close`.

        `surviving_batches` of those written since all families were flushed last are kept, as if memtables had
        been flushed in between; a family flushed by hand keeps at least what it flushed. With a write-ahead log
        the death of the process loses nothing, and `power_loss` nothing from before the last flush or synchronous
        write. Open batches and snapshots are gone in a real crash; do not use them afterwards.
        """
        for family in self._families.values():
            family.later.clear()
        with self.lock:
            if self._write_ahead_log and not power_loss:
                return
            for count, operations in enumerate(self._batches):
                kept = [each for each in operations if count < max(surviving_batches, self._flushed[each[0]])]
                _apply(self._base, kept)
                self._base_sequence += len(kept)
            self._tables = {name: table.copy() for name, table in self._base.items()}
            self._batches = []
            self._flushed = dict.fromkeys(self._families, 0)

    def require_open(self) -> None:
        if self._closed:
            raise EngineClosed("used after close()")

    def _rebase(self) -> None:
        for operations in self._batches:
            _apply(self._base, operations)
            self._base_sequence += len(operations)
        self._batches = []
        self._flushed = dict.fromkeys(self._families, 0)


def _apply(tables: dict[str, _Table], operations: Iterable[_Operation]) -> None:
    for family, keys, value in operations:
        if value is None:
            tables[family].delete_range(keys)
        else:
            tables[family].put(keys.start, value)


def write_table(path: Path, pairs: Iterable[tuple[bytes, bytes]]) -> int:
    """Make a table file for `ingest`, as `KeyValueEngine.write_table` does."""
    count = 0
    last: bytes | None = None
    with path.open("wb") as file:
        for key, value in pairs:
            if last is not None and key <= last:
                raise KvError(f"keys out of order: {last.hex()}, {key.hex()}")
            file.write(counted(key) + counted(value))
            last = key
            count += 1
    if count == 0:
        raise KvError("a table needs at least one pair")
    return count


def read_table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of a file made by `write_table`."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        key, at = read_counted(data, at)
        value, at = read_counted(data, at)
        yield key, value
