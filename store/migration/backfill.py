"""Copy into RocksDB the entries that the file queues had when double write began, while the broker serves.

    log  [begin ............ backfilled_to ............ end)  [end ........ both are written)
          done, durably       read, looked up, put

The log is read in bulk and holds every field of an entry; the file queues show whether the entry is still valid. A
topic that was deleted has no entries there any more, though the log has its records, and light queues have the offsets
that their readers know (`store.migration.present_entries`). So RocksDB gets exactly what the files hold, and no deleted
entry.

Reading and looking up run on their own thread; puts are small and run on the thread that dispatches. If a topic is
deleted in between, the rest of the portion is looked up again.

In the end each queue gets the next offset that it has in the files: if all its records have expired, the log does not
show it. After a kill the backfill resumes at `backfilled_to`: repeating an entry changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.consumequeue import ColumnRequests, EntryColumns, FileConsumeQueues, RocksConsumeQueues
from quarry_mq.store.errors import OffsetOutOfRange, StoreDamaged
from quarry_mq.store.fs import Disk
from quarry_mq.store.migration.open_queues import OpenQueues
from quarry_mq.store.migration.present_entries import PresentAssignment, PresentEntries
from quarry_mq.store.offsets import PhysicalOffset, QueueId
from quarry_mq.store.scan import FoundRecords, found_in, scan_log
from quarry_mq.store.state.identity import StoreIdentity

PORTION_BYTES: Final = 8 << 20
"""Bytes of the log read at once. The more, the more entries of a queue are looked up together."""
PORTION_ENTRIES: Final = 32_768
ENTRIES_PER_PUT: Final = 512
"""Entries put at once: about a millisecond of the thread that dispatches."""
QUEUES_PER_STEP: Final = 32


@dataclass(slots=True)
class Portion:
    """A range of the log that was read."""

    begin: PhysicalOffset
    end: PhysicalOffset
    found: EntryColumns
    """All entries of its records, queue by queue. Those of light queues are in the files."""
    in_files: EntryColumns
    """The entries of `found` that the file queues hold."""
    removals: int
    """`DoubleWriteConsumeQueues.removals` at the look-up."""
    put: int = 0
    """The number of entries of `held` that are in RocksDB."""

    @property
    def size(self) -> int:
        return self.end - self.begin


class Backfill:
    """Perform one run of the backfill, from where the last run stopped to where both queues are written."""

    def __init__(self, disk: Disk, queues: OpenQueues, segments: SegmentList, identity: StoreIdentity) -> None:
        """Begin with both queues open. On the thread that dispatches."""
        files, rocks, up_to = queues.files, queues.rocks, queues.store.dispatched_up_to()
        assert files is not None
        assert rocks is not None
        assert up_to is not None
        self._queues = queues
        self._files: FileConsumeQueues = files
        self._rocks: RocksConsumeQueues = rocks
        self._segments = segments
        self._identity = identity
        self._entries = PresentEntries(disk, files)
        self._assignment = PresentAssignment(self._entries)
        self._looked_up_at = queues.removals
        self._at = max(identity.backfilled_to or PhysicalOffset(0), segments.minimum)
        goal = identity.backfill_end or PhysicalOffset(0)
        # do not wait for records that a power cut has taken from the log: both are written from there on
        self.end: Final = min(goal, up_to)
        self._goal: Final = goal
        self._records: Iterator[FoundRecords] | None = None
        self._rest: Iterator[QueueId] | None = None

    @property
    def at(self) -> PhysicalOffset:
        """The log offset up to which it has read."""
        return self._at

    # -- on another thread

    def read(self) -> Portion | None:
        """Read the next range of the log; None at the end. Raises StoreDamaged, OSError."""
        begin = self._at
        if begin >= self.end:
            return None
        removals = self._queues.removals
        self._look_again(removals)
        entries: list[EntryColumns] = []
        while self._at < self.end and self._at - begin < PORTION_BYTES and sum(map(len, entries)) < PORTION_ENTRIES:
            run = self._next_run()
            if run is None:
                continue
            entries.append(_entries(run))
            self._at = run.end
        found = EntryColumns.joined(entries).grouped()
        return Portion(begin, self._at, found, self._in_files(found), removals)

    def look_up_again(self, portion: Portion) -> None:
        """Look up the entries of a portion again: since it was read, the files may have lost some."""
        portion.removals = self._queues.removals
        self._look_again(portion.removals)
        # light queues need no new offsets: an entry no longer at its offset is deleted, and later ones do not
        # belong to this portion
        portion.in_files, portion.put = self._in_files(portion.found), 0

    def close(self) -> None:
        """Close what is open. No other thread may be using it."""
        self._records = None
        self._entries.close()

    def _look_again(self, removals: int) -> None:
        if removals != self._looked_up_at:
            self._looked_up_at = removals
            self._entries.invalidate()
            self._assignment.invalidate()

    def _in_files(self, found: EntryColumns) -> EntryColumns:
        in_files = self._entries.mask(found)
        doubled = self._queues.doubled
        if doubled is not None:
            in_files &= np.array([doubled(queue.topic) for queue in found.queues], np.bool_)[found.queue_index]
        return found.select(in_files)

    def _next_run(self) -> FoundRecords | None:
        """Return the next records; None at the end, and when the log's min offset has risen: it continues there."""
        if self._records is None:
            self._at = max(self._at, self._segments.minimum)
            self._records = self._scan()
        try:
            run = next(self._records)
        except OffsetOutOfRange:
            self._records = None
            return None
        except StopIteration:
            self._at = self.end
            return None
        if run.stopped_by is not None:
            self._records = None
            path = self._segments.path_of(run.end)
            raise StoreDamaged(
                path, f"the log is broken at offset {run.end}, but continues to {self.end}: {run.stopped_by}"
            )
        return run

    def _scan(self) -> Iterator[FoundRecords]:
        for batch in scan_log(self._segments, self._at, self.end, check_crc=False):
            yield found_in(batch, self._at, self._assignment)

    # -- on the thread that dispatches

    def is_stale(self, portion: Portion) -> bool:
        """Return whether the portion has to be looked up again before more of it is put."""
        return portion.removals != self._queues.removals or portion.removals % 2 == 1

    def put(self, portion: Portion) -> bool:
        """Put a few entries; return whether any are left. Raises kv.KvError, after which it may be called again."""
        entries = portion.in_files.select(slice(portion.put, portion.put + ENTRIES_PER_PUT))
        if len(entries):
            self._rocks.put_missing_entries(entries.compact())
        portion.put += len(entries)
        return portion.put < len(portion.in_files)

    def raise_max_offsets(self) -> bool:
        """Raise a few queues to their next offsets in the files, after all puts. Returns whether any are left."""
        if self._rest is None:
            self._rest = self._files.queues()
        doubled = self._queues.doubled
        some = list(islice(self._rest, QUEUES_PER_STEP))
        for queue in some:
            if doubled is None or doubled(queue.topic):
                self._rocks.reserve(queue, self._files.next_offset(queue))
        return bool(some)

    def save(self, up_to: PhysicalOffset) -> None:
        """Record that what was put below `up_to` is durable. Any thread; at the end only after `raise_max_offsets`."""
        self._identity.backfilled_to = self._goal if up_to >= self.end else up_to


def _entries(run: FoundRecords) -> EntryColumns:
    requests = run.requests
    assert isinstance(requests, ColumnRequests)
    return requests.entries
