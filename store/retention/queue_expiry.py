"""The module cleans up consume queues below the log's minimum: which sweeps are due, and when tables are rewritten.

A row (`store.state.identity`) says how far each kind of queues is cleaned up. It is written when a sweep is complete
and durable. So a start knows whether one is due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quarry_mq.kv import EngineFull, KeyRange
from quarry_mq.store.consumequeue import FileConsumeQueues, RocksConsumeQueues
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY
from quarry_mq.store.fs import Disk
from quarry_mq.store.migration.open_queues import OpenQueues
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.retention.queue_sweeps import FileSweep, Pause, QueueSweep, RocksSweep
from quarry_mq.store.state.identity import EntryCounts, StoreIdentity

SPARE_BYTES: Final = 64 << 20
"""Bytes of free space that a rewrite of the tables leaves to others."""

GATHERED_TABLES: Final = 64
"""Tables that RocksDB gathers before it merges them during a sweep.

A sweep flushes often, and range deletes are large: merged after every other flush, they would cause the tables of all
entries to be rewritten again and again (ADR 15). This number is enough for a million queues; each table costs a read
one microsecond.
"""


class DueSweep:
    """A due round is a sweep that is to be done. It ends early when a migration exchanges its queues."""

    def __init__(
        self,
        kind: str,
        sweep: QueueSweep,
        queues: OpenQueues,
        is_current: Callable[[], bool],
        done: Callable[[], None],
    ) -> None:
        self.kind: Final = kind
        """The kind of queues: `files` or `rocksdb`."""
        self._sweep = sweep
        self._queues = queues
        self._is_current = is_current
        self._done = done

    @property
    def entries(self) -> int:
        return self._sweep.entries

    @property
    def files(self) -> int:
        return self._sweep.files

    def prepare(self) -> bool:
        """Prepare the next part of the sweep, see `QueueSweep`."""
        with self._queues.using_rocks():
            return self._is_current() and self._sweep.prepare()

    def carry_out(self) -> bool:
        """Carry out a part of the sweep, see `QueueSweep`."""
        return self._is_current() and self._sweep.carry_out()

    def finish(self) -> bool:
        """Write down that the sweep is complete; return False if it ended early. Blocks."""
        if not self._is_current():
            return False
        self._done()
        return True


class QueueExpiry:
    """The expiry of one store's queues. Methods block for the disk and run one at a time, unless they say otherwise."""

    def __init__(self, disk: Disk, identity: StoreIdentity, queues: OpenQueues) -> None:
        self._disk = disk
        self._identity = identity
        self._queues = queues
        self._is_gathering = False

    # -- sweeps

    def expired_below(self) -> PhysicalOffset:
        """Return the offset below which all queues are cleaned up, except a RocksDB that is not complete.

        May be called from any thread.
        """
        identity = self._identity
        done = [] if self._queues.files is None else [identity.files_expired_below]
        if self._expiring_rocks() is not None:
            done.append(identity.rocksdb_expired_below)
        return min((each or PhysicalOffset(0) for each in done), default=PhysicalOffset(0))

    def due(self, minimum: PhysicalOffset, pause: Pause) -> DueSweep | None:
        """Return the next sweep for a log that begins at `minimum`. To be called on the thread of `carry_out`."""
        files, rocks = self._queues.files, self._expiring_rocks()
        if files is not None and (self._identity.files_expired_below or 0) < minimum:
            return self._due_files(files, minimum, pause)
        if rocks is not None and (self._identity.rocksdb_expired_below or 0) < minimum:
            return self._due_rocks(rocks, pause)
        return None

    def begin(self) -> None:
        """Prepare the tables for sweeps that follow. Repeatable."""
        if not self._is_gathering:
            self._gather_tables(GATHERED_TABLES)

    def end(self) -> None:
        """End the preparation of `begin`: no sweep and no rewrite is running any more. Repeatable."""
        if self._is_gathering:
            self._gather_tables(None)

    # -- the tables

    def table_bytes(self) -> int:
        """Return the bytes of RocksDB's tables of entries; 0 without RocksDB. May be called from any thread."""
        return self._queues.statistics().get(f"{ENTRIES_FAMILY}.table_bytes", 0)

    @property
    def has_tables(self) -> bool:
        """Return whether there is a RocksDB."""
        return self._queues.engine is not None

    def is_sparse(self, gone_ratio: float) -> bool:
        """Return whether at least that share of the entries was removed since RocksDB's tables were rewritten."""
        counts = self._identity.rocksdb_entries
        return counts.gone > 0 and counts.gone_ratio >= gone_ratio

    def rewrite_tables(self) -> None:
        """Rewrite RocksDB's tables without the removed entries. May take minutes; closing the engine ends it.

        Raises kv.EngineFull where there is no space for old and new tables, kv.EngineClosed, kv.KvError.
        """
        engine = self._queues.engine
        if engine is None:
            return
        before = self._identity.rocksdb_entries
        needed_bytes = int(self.table_bytes() * (1 - before.gone_ratio)) + SPARE_BYTES
        free_bytes = self._disk.free_bytes(self._queues.rocks_directory)
        if free_bytes is not None and free_bytes < needed_bytes:
            # no numbers: they differ at each try, and the same error is logged once
            raise EngineFull("the disk has no space for new tables of queue entries beside the old ones")
        engine.compact(engine.family(ENTRIES_FAMILY), KeyRange(b"", None))
        self._identity.rocksdb_entries = EntryCounts(0, before.kept)

    # -- helpers

    def _expiring_rocks(self) -> RocksConsumeQueues | None:
        """Return RocksDB if it is complete. While older entries are still brought over, stored min offsets would hide
        them.
        """
        rocks = self._queues.rocks
        return rocks if rocks is not None and rocks.is_complete else None

    def _due_files(self, files: FileConsumeQueues, minimum: PhysicalOffset, pause: Pause) -> DueSweep:
        def done() -> None:
            self._identity.files_expired_below = minimum

        sweep = FileSweep(files, minimum, pause=pause)
        return DueSweep("files", sweep, self._queues, lambda: self._queues.files is files, done)

    def _due_rocks(self, rocks: RocksConsumeQueues, pause: Pause) -> DueSweep:
        identity = self._identity

        def dropped(entries: int) -> None:
            counts = identity.rocksdb_entries
            identity.rocksdb_entries = counts._replace(gone=counts.gone + entries)

        def done() -> None:
            identity.rocksdb_entries = identity.rocksdb_entries._replace(kept=sweep.kept_entries)
            identity.rocksdb_expired_below = sweep.minimum

        sweep = RocksSweep(rocks, dropped=dropped, pause=pause)
        return DueSweep("rocksdb", sweep, self._queues, lambda: self._expiring_rocks() is rocks, done)

    def _gather_tables(self, count: int | None) -> None:
        with self._queues.using_rocks():
            engine = self._queues.engine
            if engine is not None:
                engine.gather_tables(engine.family(ENTRIES_FAMILY), count)
        self._is_gathering = count is not None
