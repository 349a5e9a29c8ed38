"""The contract of an ordered key-value engine with column families, and a buffer for puts.

Implementations: `kv.rocks.RocksEngine` (RocksDB through rocksdict) and `kv.memory.MemoryEngine` (a sorted map with the
same contract, for tests). `tests/contracts/test_key_value_engine.py` runs on both.

Threads: reads and writes may come from any thread; `close()` only when no call is under way, but for `compact`. Every
call after `close()` raises `EngineClosed`.

Puts are buffered, so that many puts of the same keys cost the database one. Buffered pairs are in memory like a
memtable without a write-ahead log, and lost like one. `get` sees them; every other operation that could observe that
they are not stored first stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import NamedTuple, Protocol

from quarry_mq.kv.errors import KvError


class KeyRange(NamedTuple):
    """A key range is the keys with `start <= key < end`, in bytewise order. `end` None means to the last key."""

    start: bytes
    end: bytes | None


class Snapshot(Protocol):
    """A snapshot is a frozen view of all families, and a context manager; reads through it see no later write."""

    def __enter__(self) -> Snapshot: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def close(self) -> None: ...


class Family(Protocol):
    """A family is one column family: an ordered map from bytes to bytes."""

    @property
    def name(self) -> str: ...

    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(
        self,
        keys: KeyRange,
        *,
        limit: int | None = None,
        reverse: bool = False,
        snapshot: Snapshot | None = None,
    ) -> list[tuple[bytes, bytes]]:
        """Return the first `limit` pairs of the range in order (from its end when `reverse`).

        Raises EngineCorrupt when the engine stopped on damage instead of on the range's end: a short answer without an
        error means the range really ends there.
        """

    def take(self, keys: KeyRange, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first `count` pairs, for a caller that knows that the range has them; otherwise it takes twice
        as long.
        """

    def iterate(
        self, keys: KeyRange, *, reverse: bool = False, snapshot: Snapshot | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the range like `scan` without a limit, lazily, over the state at the time of this call.

        Raises EngineCorrupt where damage ends it early, and EngineClosed when the engine was closed meanwhile.
        """


class WriteBatch(Protocol):
    """A batch holds writes that take effect together or not at all, in the order they were added. It is
    written once.
    """

    def put(self, family: Family, key: bytes, value: bytes) -> None: ...

    def put_all(self, family: Family, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Put each key and value, in their order: one call for what a whole batch of messages stores in a family."""

    def delete(self, family: Family, key: bytes) -> None: ...

    def delete_all(self, family: Family, keys: Iterable[bytes]) -> None:
        """Delete each key."""

    def delete_range(self, family: Family, keys: KeyRange) -> None:
        """Delete all keys of the range; `keys.end` must not be None."""

    def __len__(self) -> int: ...


class KeyValueEngine(Protocol):
    """An engine is a set of families that are written atomically together."""

    def family(self, name: str) -> Family:
        """Return the family. Raises KeyError for a family the engine was not opened with."""

    def batch(self) -> WriteBatch: ...

    def write(self, batch: WriteBatch, *, sync: bool = False) -> None:
        """Apply the batch. With `sync` it survives power loss when the call returns (write-ahead log only)."""

    def put_later(self, family: Family, pairs: list[tuple[bytes, bytes]]) -> None:
        """Put pairs that all readers see at once, but that are stored later.

        They are stored before the family is read other than by single keys, before a batch writes to the family, and
        before the family is flushed. So a crash may take them back and leave what was written after them. This works
        only without a write-ahead log; in a family whose options do not say `later_puts` they are written at once.
        """

    def settle(self, *, more_than: int = 0) -> None:
        """Store what was put later, in each family that has more than `more_than` such pairs. Raises KvError; then they
        stay.
        """

    def flush(self, names: Sequence[str]) -> None:
        """Write the memtables of these families to tables, one after the other in the given order.

        Without a write-ahead log only what was flushed survives the end of the process.
        """

    def snapshot(self) -> Snapshot: ...

    def compact(self, family: Family, keys: KeyRange) -> None:
        """Rewrite the range down to the bottommost level so that deleted keys give their space back.

        One at a time. May take minutes, and may still run when `close()` is called, which ends it with EngineClosed.
        """

    def gather_tables(self, family: Family, count: int | None) -> None:
        """Let `count` fresh tables gather before a compaction merges them; None: as many as usual.

        This is for a time of many small flushes: merging each of them costs more than reads that search all of them.
        """

    def write_table(self, family: Family, path: Path, pairs: Iterable[tuple[bytes, bytes]]) -> int:
        """Make a table file for `ingest` from pairs in strictly ascending key order; returns their number.

        Raises KvError when there are none or they are out of order.
        """

    def ingest(self, family: Family, tables: Sequence[Path]) -> None:
        """Take over copies of finished table files whose key ranges do not overlap each other."""

    def checkpoint(self, directory: Path) -> None:
        """Make a consistent copy of all families in `directory`, which must not exist."""

    def sequence(self) -> int:
        """Return the number of the last change. It grows with every write, and is the same again after a restart."""

    def statistics(self) -> dict[str, int]:
        """Return statistics of the engine (bytes of memtables and tables, estimated keys, …), for metrics.

        They are named `<family>.<figure>` or `<family>.<figure>.<which>`; those of the whole database have no dot. May
        be called from any thread.
        """

    def close(self) -> None:
        """Flush what must not be lost, release iterators and handles, give up the lock. Repeatable."""


Pair = tuple[bytes, bytes]


class LaterPuts:
    """The buffered puts of one family. Any thread may call; a thread that adds pairs waits for one that stores them."""

    __slots__ = ("_lock", "_store", "_waiting")

    def __init__(self, store: Callable[[list[Pair]], None]) -> None:
        """Make an empty buffer. `store` writes pairs of different keys, in any order, and raises `kv.KvError`."""
        self._store = store
        self._waiting: dict[bytes, bytes] = {}
        self._lock = RLock()

    def add(self, pairs: Iterable[Pair]) -> None:
        with self._lock:
            self._waiting.update(pairs)

    def get(self, key: bytes) -> bytes | None:
        return self._waiting.get(key)

    def settle(self, *, more_than: int = 0) -> None:
        """Store the buffered pairs, if there are more than `more_than`. Raises `kv.KvError`; then they
        stay buffered.
        """
        if len(self._waiting) <= more_than:
            return
        with self._lock:
            if self._waiting:
                # unsorted: sorting costs twice what it saves the database (ADR 47)
                self._store(list(self._waiting.items()))
                # replaced, not emptied: a reader looks here first, and then in the database, where the key is by now
                self._waiting = {}

    def unsettled(self) -> Mapping[bytes, bytes]:
        """Store as much as possible and return the rest: all pairs if the database accepts no writes any more.

        Reads continue; the error is reported to callers that write.
        """
        try:
            self.settle()
        except KvError:
            with self._lock:
                return dict(self._waiting)
        return {}

    def clear(self) -> None:
        """Drop the buffered pairs, as a crash does."""
        with self._lock:
            self._waiting = {}


def merged(stored: Iterable[Pair], waiting: Mapping[bytes, bytes], keys: KeyRange, *, reverse: bool) -> Iterator[Pair]:
    """Yield the pairs of a range in order (from its end when `reverse`), both stored and buffered ones."""
    ours = sorted(
        ((key, value) for key, value in waiting.items() if keys.start <= key and (keys.end is None or key < keys.end)),
        reverse=reverse,
    )
    others = (pair for pair in stored if pair[0] not in waiting)
    return merge(ours, others, key=lambda pair: pair[0], reverse=reverse)


def scanned(
    stored: list[Pair], waiting: Mapping[bytes, bytes], keys: KeyRange, limit: int | None, *, reverse: bool
) -> list[Pair]:
    """Return the first `limit` merged pairs, from the first `limit` stored ones."""
    return list(islice(merged(stored, waiting, keys, reverse=reverse), limit))
