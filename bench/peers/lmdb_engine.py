"""The contract of key-value engines on LMDB, to compare RocksDB with (docs/adr/0082-one-engine-and-one-family.md).

LMDB is one B+ tree per family in a mapped file: a read copies no block, and a write copies each page that it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any, Final
from weakref import WeakSet

from bench.harness import CannotRun
from quarry_mq.kv import EngineClosed, Family, KeyRange, KvError, Snapshot, WriteBatch
from quarry_mq.kv.engine import LaterPuts, Pair, merged, scanned
from quarry_mq.kv.memory import MemoryBatch, read_table, write_table

MAP_BYTES: Final = 1 << 34
"""The most that a database can hold. It takes this much of the address space, not of the disk."""
FAMILIES_MAX: Final = 16
PAIRS_PER_READ: Final = 256


class LmdbSnapshot:
    """An LMDB snapshot implements `kv.engine.Snapshot` by one read transaction."""

    def __init__(self, engine: LmdbEngine) -> None:
        self._engine = engine
        self._transaction: Any = engine.environment.begin()
        self._lock = RLock()

    def __enter__(self) -> LmdbSnapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        self._engine.require_open()
        with self._lock:
            if self._transaction is None:
                raise EngineClosed("the snapshot is closed")
            yield self._transaction

    def close(self) -> None:
        with self._lock:
            if self._transaction is not None:
                self._transaction.abort()
            self._transaction = None


class LmdbFamily:
    """An LMDB family implements `kv.engine.Family`."""

    def __init__(self, name: str, engine: LmdbEngine, native: Any) -> None:
        self._name = name
        self._engine = engine
        self.native: Final = native
        self.later: Final = LaterPuts(self._store_later)

    @property
    def name(self) -> str:
        return self._name

    def get(self, key: bytes) -> bytes | None:
        self._engine.require_open()
        if (waiting := self.later.get(key)) is not None:
            return waiting
        with self._engine.environment.begin(db=self.native) as transaction:
            value: bytes | None = transaction.get(key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._engine.require_open()
        waiting = [self.later.get(key) for key in keys]
        with self._engine.environment.begin(db=self.native) as transaction:
            get = transaction.get
            return [get(key) if later is None else later for key, later in zip(keys, waiting, strict=True)]

    def scan(
        self, keys: KeyRange, *, limit: int | None = None, reverse: bool = False, snapshot: Snapshot | None = None
    ) -> list[Pair]:
        self._engine.require_open()
        if snapshot is not None:
            if not isinstance(snapshot, LmdbSnapshot):
                raise TypeError(f"a snapshot of another engine: {snapshot!r}")
            with snapshot.transaction() as transaction:
                return self._walk(transaction, keys, limit, reverse=reverse)
        waiting = self.later.unsettled()
        with self._engine.environment.begin() as transaction:
            pairs = self._walk(transaction, keys, limit, reverse=reverse)
        return scanned(pairs, waiting, keys, limit, reverse=reverse) if waiting else pairs

    def take(self, keys: KeyRange, count: int) -> list[Pair]:
        return self.scan(keys, limit=count)

    def iterate(self, keys: KeyRange, *, reverse: bool = False, snapshot: Snapshot | None = None) -> Iterator[Pair]:
        self._engine.require_open()
        if snapshot is not None:
            return self._iterate(keys, snapshot, reverse=reverse)
        waiting = self.later.unsettled()
        pairs = self._iterate(keys, self._engine.stored(), reverse=reverse)
        return merged(pairs, waiting, keys, reverse=reverse) if waiting else pairs

    def _walk(self, transaction: Any, keys: KeyRange, limit: int | None, *, reverse: bool) -> list[Pair]:
        with transaction.cursor(self.native) as cursor:
            pairs = _backwards(cursor, keys) if reverse else _upwards(cursor, keys)
            return list(islice(pairs, limit))

    def _iterate(self, keys: KeyRange, snapshot: Snapshot, *, reverse: bool) -> Iterator[Pair]:
        while True:
            chunk = self.scan(keys, limit=PAIRS_PER_READ, reverse=reverse, snapshot=snapshot)
            for pair in chunk:
                self._engine.require_open()
                yield pair
            if len(chunk) < PAIRS_PER_READ:
                return
            last = chunk[-1][0]
            keys = KeyRange(keys.start, last) if reverse else KeyRange(last + b"\0", keys.end)

    def _store_later(self, pairs: list[Pair]) -> None:
        batch = self._engine.batch()
        batch.put_all(self, pairs)
        batch.comes_after_later_puts = False  # the batch consists of them
        self._engine.write(batch)


def _upwards(cursor: Any, keys: KeyRange) -> Iterator[Pair]:
    if cursor.set_range(keys.start):
        for key, value in cursor.iternext():
            if keys.end is not None and key >= keys.end:
                return
            yield key, value


def _backwards(cursor: Any, keys: KeyRange) -> Iterator[Pair]:
    is_after = keys.end is not None and cursor.set_range(keys.end)
    if cursor.prev() if is_after else cursor.last():
        for key, value in cursor.iterprev():
            if key < keys.start:
                return
            yield key, value


class LmdbEngine:
    """An LMDB engine implements `kv.engine.KeyValueEngine`. It has no log: only what was flushed is on the disk."""

    def __init__(self, directory: Path, families: Sequence[str]) -> None:
        """Open the database, or make it. Raises CannotRun without the package `lmdb`."""
        try:
            lmdb: Any = import_module("lmdb")
        except ModuleNotFoundError as error:
            raise CannotRun("the Python package lmdb is not installed") from error
        directory.mkdir(parents=True, exist_ok=True)
        self.environment: Final[Any] = lmdb.open(
            str(directory), map_size=MAP_BYTES, max_dbs=FAMILIES_MAX, sync=False, metasync=False
        )
        self._families = {name: LmdbFamily(name, self, self.environment.open_db(name.encode())) for name in families}
        self._snapshots: WeakSet[LmdbSnapshot] = WeakSet()
        self._closed = False

    def family(self, name: str) -> LmdbFamily:
        self.require_open()
        return self._families[name]

    def batch(self) -> MemoryBatch:
        self.require_open()
        return MemoryBatch(self.require_open)

    def write(self, batch: WriteBatch, *, sync: bool = False) -> None:
        self.require_open()
        if not isinstance(batch, MemoryBatch):
            raise TypeError(f"a batch of another engine: {batch!r}")
        if sync:
            raise KvError("a synchronous write needs a write-ahead log")
        if batch.comes_after_later_puts:
            for name in {family for family, _, _ in batch.operations()}:
                self._families[name].later.settle()
        with self.environment.begin(write=True) as transaction:
            for name, keys, value in batch.take():
                native = self._families[name].native
                if value is None:
                    with transaction.cursor(native) as cursor:
                        _delete(cursor, keys)
                else:
                    transaction.put(keys.start, value, db=native)

    def put_later(self, family: Family, pairs: list[Pair]) -> None:
        self.require_open()
        self._families[family.name].later.add(pairs)

    def settle(self, *, more_than: int = 0) -> None:
        for family in self._families.values():
            family.later.settle(more_than=more_than)

    def flush(self, names: Sequence[str]) -> None:
        self.require_open()
        for name in names:
            self._families[name].later.settle()
        self.environment.sync(True)

    def stored(self) -> LmdbSnapshot:
        """Return a view of what is stored, without the buffered puts."""
        snapshot = LmdbSnapshot(self)
        self._snapshots.add(snapshot)
        return snapshot

    def snapshot(self) -> LmdbSnapshot:
        self.require_open()
        self.settle()
        return self.stored()

    def compact(self, family: Family, keys: KeyRange) -> None:  # noqa: ARG002 - free pages are used again
        self.require_open()

    def gather_tables(self, family: Family, count: int | None) -> None:  # noqa: ARG002 - there are no tables
        self.require_open()

    def write_table(self, family: Family, path: Path, pairs: Iterable[Pair]) -> int:  # noqa: ARG002 - a file is of no family
        self.require_open()
        return write_table(path, pairs)

    def ingest(self, family: Family, tables: Sequence[Path]) -> None:
        self.require_open()
        self.settle()
        batch = self.batch()
        for path in tables:
            batch.put_all(family, read_table(path))
        self.write(batch)

    def checkpoint(self, directory: Path) -> None:
        self.require_open()
        try:
            directory.mkdir(parents=True)
        except OSError as error:
            raise KvError(f"{directory}: {error.strerror}") from error
        self.settle()
        self.environment.copy(str(directory))

    def sequence(self) -> int:
        self.require_open()
        number: int = self.environment.info()["last_txnid"]
        return number

    def statistics(self) -> dict[str, int]:
        self.require_open()
        with self.environment.begin() as transaction:
            return {
                f"{name}.keys_estimate": transaction.stat(family.native)["entries"]
                for name, family in self._families.items()
            }

    def close(self) -> None:
        if self._closed:
            return
        self.flush(list(self._families))
        self._closed = True
        for snapshot in list(self._snapshots):
            snapshot.close()
        self.environment.close()

    def require_open(self) -> None:
        if self._closed:
            raise EngineClosed("used after close()")


def _delete(cursor: Any, keys: KeyRange) -> None:
    """Delete the keys of a range one by one: LMDB has no other way."""
    if cursor.set_range(keys.start):
        while (key := cursor.key()) and (keys.end is None or key < keys.end):
            if not cursor.delete():
                return
