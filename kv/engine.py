"""The contract of an ordered key-value engine with column families.

Implementations: `kv.rocks.RocksEngine` (RocksDB through rocksdict) and `kv.memory.MemoryEngine`
(a sorted map with the same contract, for tests). `tests/contracts/test_key_value_engine.py` runs on both.

Threads: reads and writes may come from any thread; `close()` only when no call is under way, but for `compact`.
Every call after `close()` raises `EngineClosed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol


class KeyRange(NamedTuple):
    """Keys with `start <= key < end`, in bytewise order. `end` None means to the last key."""

    start: bytes
    end: bytes | None


class Snapshot(Protocol):
    """A frozen view of all families. A context manager; reads through it see no later write."""

    def __enter__(self) -> Snapshot: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def close(self) -> None: ...


class Family(Protocol):
    """One column family: an ordered map from bytes to bytes."""

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
        """The first `limit` pairs of the range in order (from its end when `reverse`).

        Raises EngineCorrupt when the engine stopped on damage instead of on the range's end:
        a short answer without an error means the range really ends there.
        """

    def take(self, keys: KeyRange, count: int) -> list[tuple[bytes, bytes]]:
        """`scan` with a limit, for who knows that the range has so many. Where it has not, it takes twice as long."""

    def iterate(
        self, keys: KeyRange, *, reverse: bool = False, snapshot: Snapshot | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """`scan` without a limit, lazily, over the state at the time of this call.

        Raises EngineCorrupt where damage ends it early, and EngineClosed when the engine was closed meanwhile.
        """


class WriteBatch(Protocol):
    """Writes that take effect together or not at all, in the order they were added. Written once."""

    def put(self, family: Family, key: bytes, value: bytes) -> None: ...

    def put_all(self, family: Family, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """`put` for each key and value, in their order: one call for what a whole round stores in a family."""

    def delete(self, family: Family, key: bytes) -> None: ...

    def delete_all(self, family: Family, keys: Iterable[bytes]) -> None:
        """`delete` for each key."""

    def delete_range(self, family: Family, keys: KeyRange) -> None:
        """Delete all keys of the range; `keys.end` must not be None."""

    def __len__(self) -> int: ...


class KeyValueEngine(Protocol):
    """A set of families that are written atomically together."""

    def family(self, name: str) -> Family:
        """Raises KeyError for a family the engine was not opened with."""

    def batch(self) -> WriteBatch: ...

    def write(self, batch: WriteBatch, *, sync: bool = False) -> None:
        """Apply the batch. With `sync` it survives power loss when the call returns (write-ahead log only)."""

    def put_later(self, family: Family, pairs: list[tuple[bytes, bytes]]) -> None:
        """Puts that everybody sees at once, and that are stored when they have to be: before the family is read but for
        single keys, is written to by a batch, or is flushed.

        So a crash may take them back and leave what was written after them. Without a write-ahead log only; in a family
        whose options do not say `later_puts` they are written at once.
        """

    def settle(self, *, more_than: int = 0) -> None:
        """Store what was put later, in each family where it is more than so many. Raises KvError; then it waits on."""

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
        """Let so many fresh tables gather before a compaction merges them; None: as many as usual.

        For a time of many small flushes: merging each of them costs more than reads that look into all of them.
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
        """The number of the last change. Grows with every write, and is found again with it after a restart."""

    def statistics(self) -> dict[str, int]:
        """Engine figures (bytes of memtables and tables, estimated keys, …), for metrics; any thread may ask.

        Named `<family>.<figure>` or `<family>.<figure>.<which>`; those of the whole database have no dot.
        """

    def close(self) -> None:
        """Flush what must not be lost, release iterators and handles, give up the lock. Repeatable."""
