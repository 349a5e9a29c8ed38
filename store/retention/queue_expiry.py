"""Clean-up of consume queues below the log's minimum: which sweeps are due, one sweep, and when tables are rewritten.

A row (`store.state.identity`) says how far each kind of queues is cleaned up. It is written when a sweep is complete
and durable. So a start knows whether one is due.

A sweep removes entries below the log's minimum M from the consume queues, in steps of two halves.

    prepare      blocks: finds out what to remove, or makes removals durable. Runs on its own thread
    carry_out    a millisecond of changes, until there are no more. Runs on the thread that dispatches

Between the two, the queues may grow, topics may be deleted, M may grow. So an entry that was found is removed only if
it is still to be removed. Readers honour M all the time, so they notice nothing of a sweep.

A crash at any moment undoes a sweep in whole or in part; the next one begins at the first queue and skips what is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from quarry_mq.kv import EngineFull, KeyRange
from quarry_mq.store.consumequeue import FileConsumeQueues, RocksConsumeQueues
from quarry_mq.store.consumequeue.rocks.expired_entries import ExpiredEntries
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY
from quarry_mq.store.fs import Disk
from quarry_mq.store.message import PhysicalOffset, QueueId
from quarry_mq.store.migration.open_queues import OpenQueues
from quarry_mq.store.state.identity import EntryCounts, StoreIdentity

ROWS_PER_SLICE: Final = 256
"""Bounds examined at a time: one to two milliseconds with the interpreter's lock, which other threads wait for."""

RANGES_PER_FLUSH: Final = 16_384
"""Range deletes in the memtable. The first read after a write has to sort them: one to two milliseconds."""

ROWS_PER_STEP: Final = 2_048
"""Range deletes, or min offsets, written in a step: one to two milliseconds."""

LOOKS_PER_SLICE: Final = 16
"""File queues examined at a time: about 50 us each."""

FILES_PER_STEP: Final = 4
"""Queue files removed in a step: 6 MB each, some hundred microseconds."""

Pause = Callable[[], bool]
"""A function that waits after a slice of work; it returns True if the work is to end."""


_Row = TypeVar("_Row")


def never_pause() -> bool:
    """Never pause: a `Pause` for work that nothing waits for."""
    return False


class QueueSweep(Protocol):
    """A queue round is one sweep over one kind of queues. An error of either half (`kv.KvError`) ends it; then a new
    one begins.
    """

    entries: int
    """An upper bound of the entries removed so far."""
    files: int
    """Files removed so far."""

    def prepare(self) -> bool:
        """Find out what to do next; return False when nothing is left. Then everything done is durable."""

    def carry_out(self) -> bool:
        """Do a part of it; return False when nothing is left of it."""


class RocksSweep:
    """The sweep handles some thousand queues at a time: search, range deletes, a flush, and then the min offsets.

    The order matters because reads are slow while a memtable holds many range deletes, and because a min offset must
    not survive a crash that takes the range delete back. `dropped` gets the number of entries that went with each
    flush, on the thread of `prepare`.
    """

    def __init__(
        self,
        queues: RocksConsumeQueues,
        *,
        dropped: Callable[[int], None],
        pause: Pause = never_pause,
        rows_per_slice: int = ROWS_PER_SLICE,
        ranges_per_flush: int = RANGES_PER_FLUSH,
    ) -> None:
        self._queues = queues
        self._search = queues.expired_entries()
        self._dropped = dropped
        self._pause = pause
        self._rows_per_slice = rows_per_slice
        self._ranges_per_flush = self._ranges_wanted = ranges_per_flush
        self._key: bytes | None = b""  # the first key that is not done; None after the last queue
        self._removals = queues.removals
        self._found: ExpiredEntries | None = None
        self._ranges: deque[KeyRange] = deque()
        self._min_offsets: deque[tuple[bytes, bytes]] = deque()
        self.entries = 0
        self.kept_entries = 0
        """An upper bound of the entries that stay in the queues done so far."""
        self.files = 0

    @property
    def minimum(self) -> PhysicalOffset:
        return self._search.minimum

    def prepare(self) -> bool:
        if self._found is not None:
            self._finish(self._found)
            return True
        if self._key is None:
            return False
        self._found = self._find(self._key)
        self._ranges.extend(self._found.ranges)
        return True

    def carry_out(self) -> bool:
        if self._ranges and not self._queues.drop(_take(self._ranges), removals=self._removals):
            # Queues were removed since, and may have begun again: search again. Examine fewer at a time, so that the
            # sweep gets through a time of many removals.
            self._ranges.clear()
            self._found = None
            self._ranges_wanted = 1
        if self._min_offsets and not self._queues.store_min_offsets(_take(self._min_offsets), removals=self._removals):
            self._min_offsets.clear()  # a min offset that is not stored costs a later search more time, nothing else
        return bool(self._ranges or self._min_offsets)

    def _find(self, key: bytes) -> ExpiredEntries:
        self._removals = self._queues.removals
        found = self._search.step(key, rows_max=self._rows_per_slice)
        while found.next_key is not None and len(found.ranges) < self._ranges_wanted and not self._pause():
            found.add(self._search.step(found.next_key, rows_max=self._rows_per_slice))
        return found

    def _finish(self, found: ExpiredEntries) -> None:
        """Flush once all ranges that were found are dropped, and continue with their min offsets."""
        if found.ranges:
            self._queues.flush_entries()
            self._dropped(found.entries)
        self._min_offsets.extend(found.min_offsets)
        self._key = found.next_key
        self._found = None
        self._ranges_wanted = min(2 * self._ranges_wanted, self._ranges_per_flush)
        self.entries += found.entries
        self.kept_entries += found.kept_entries


def _take(rows: deque[_Row]) -> list[_Row]:
    return [rows.popleft() for _ in range(min(ROWS_PER_STEP, len(rows)))]


class FileSweep:
    """The sweep removes whole files without entries at or above M, but never a queue's last file: it holds the next
    offset.
    """

    def __init__(self, queues: FileConsumeQueues, minimum: PhysicalOffset, *, pause: Pause = never_pause) -> None:
        self._queues = queues
        self._pause = pause
        self._looked_at = queues.with_expired_files(minimum)
        self._expiring: deque[QueueId] = deque()
        self.minimum: Final = minimum
        self.entries = 0
        self.files = 0

    def prepare(self) -> bool:
        for _ in range(LOOKS_PER_SLICE):
            queue = next(self._looked_at, self)
            if queue is self:
                return bool(self._expiring)
            if isinstance(queue, QueueId):
                self._expiring.append(queue)
        self._pause()
        return True

    def carry_out(self) -> bool:
        removed = 0
        while self._expiring and removed < FILES_PER_STEP:
            files, entries = self._queues.remove_expired(
                self._expiring[0], self.minimum, files_max=FILES_PER_STEP - removed
            )
            if not files:
                self._expiring.popleft()
            removed += files
            self.entries += entries
        self.files += removed
        return bool(self._expiring)


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
