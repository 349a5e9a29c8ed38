"""Copy into RocksDB the entries that the file queues had when double write began, while the broker serves.

    log  [begin ............ backfilled_to ............ end)  [end ........ both are written)
          done, durably       read, looked up, put

The log is read in bulk and holds every field of an entry; the file queues show whether the entry is still valid. A
topic that was deleted has no entries there any more, though the log has its records, and light queues have the offsets
that their readers know. So RocksDB gets exactly what the files hold, and no deleted entry.

Queues are not listed or measured for it, which would cost more than reading the entry: an entry is read at the position
that its index gives. Entries of records below the end of a backfill are no longer written; they can only be removed,
with their topic or with their files.

Reading and looking up run on their own thread, which writes no file queues; puts are small and run on the thread that
dispatches. If a topic is deleted in between, the rest of the portion is looked up again.

In the end each queue gets the next offset that it has in the files: if all its records have expired, the log does not
show it. After a kill the backfill resumes at `backfilled_to`: repeating an entry changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.consumequeue import ColumnRequests, EntryColumns, FileConsumeQueues, RocksConsumeQueues
from quarry_mq.store.consumequeue.dispatch import NO_DELETED_TOPICS
from quarry_mq.store.consumequeue.files.layout import ENTRY_SIZE, entries_in, is_file_name, real
from quarry_mq.store.consumequeue.files.open_files import OpenFiles
from quarry_mq.store.consumequeue.search import FoundEntry, first_at_least
from quarry_mq.store.errors import OffsetOutOfRange, StoreDamaged
from quarry_mq.store.fs import Disk
from quarry_mq.store.lru_cache import LruCache
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.migration.open_queues import OpenQueues
from quarry_mq.store.scan import FoundRecords, found_in, scan_log
from quarry_mq.store.state.identity import StoreIdentity

OPEN_FILES_MAX: Final = 256
ENTRIES_PER_STEP: Final = 4_096
LIGHT_QUEUES_KNOWN_MAX: Final = 131_072

Flags = NDArray[np.bool_]


class PresentEntries:
    """Looks up entries of file queues that another thread writes. Use it on one thread.

    Files stay open, so a topic that was deleted is still seen until `forget`. Raises OSError.
    """

    def __init__(self, disk: Disk, queues: FileConsumeQueues) -> None:
        self._directory = queues.directory
        self._units_per_file = queues.units_per_file
        self._reader = queues.entry_reader()
        self._files = OpenFiles(disk, open_max=OPEN_FILES_MAX)

    def invalidate(self) -> None:
        """Close the open files, so that they are opened again as they are then."""
        self._files.close()

    def close(self) -> None:
        self._files.close()
        self._reader.close()

    def mask(self, entries: EntryColumns) -> Flags:
        """Return which of the entries their queue holds: at their index, with their physical offset."""
        present = np.zeros(len(entries), np.bool_)
        order = np.argsort(entries.queue_index, kind="stable")
        begins = np.searchsorted(entries.queue_index[order], np.arange(len(entries.queues) + 1)).tolist()
        for queue, begin, end in zip(entries.queues, begins, begins[1:], strict=False):
            rows = order[begin:end]
            if len(rows):
                present[rows] = self._mask_of(queue, entries.queue_offset[rows], entries.physical_offset[rows])
        return present

    def physical_at(self, queue: QueueId, offset: int) -> int | None:
        """Return where the record of one entry lies; None when there is no such entry."""
        found = self._read(queue, offset, 1)
        return int(found["physical_offset"][0]) if len(found) and bool(real(found)[0]) else None

    def find(self, queue: QueueId, at: PhysicalOffset) -> FoundEntry | None:
        """Return the first entry of the queue whose record lies at or above `at`."""
        try:
            entries = self._reader.open(queue)
            return first_at_least(entries.entry_at_or_after, entries.begin, entries.maximum, at)
        except FileNotFoundError:
            return None  # the queue is just being removed

    def _mask_of(self, queue: QueueId, offsets: NDArray[np.int64], physicals: NDArray[np.int64]) -> Flags:
        """Return the flags of one queue. Its offsets are close together, unless the queue began again in between."""
        present = np.zeros(len(offsets), np.bool_)
        if not is_file_name(queue.topic):
            return present
        windows = offsets // ENTRIES_PER_STEP
        for window in np.unique(windows).tolist():
            rows = np.flatnonzero(windows == window)
            start = int(offsets[rows].min())
            found = self._read(queue, start, int(offsets[rows].max()) + 1 - start)
            places = offsets[rows] - start
            there = places < len(found)
            at = found[places[there]]
            present[rows[there]] = real(at) & (at["physical_offset"] == physicals[rows[there]])
        return present

    def _read(self, queue: QueueId, start: int, count: int) -> NDArray[np.void]:
        """Read up to `count` entries from index `start` on, across the border of two files if need be."""
        directory = self._directory / queue.topic / str(queue.number)
        parts = []
        while count > 0:
            first = start - start % self._units_per_file
            length = min(count, first + self._units_per_file - start)
            try:
                data = self._files.get(directory, first).read((start - first) * ENTRY_SIZE, length * ENTRY_SIZE)
            except (FileNotFoundError, NotADirectoryError):
                break
            parts.append(data)
            start, count = start + length, count - length
        joined = b"".join(parts)
        return entries_in(memoryview(joined[: len(joined) // ENTRY_SIZE * ENTRY_SIZE]))


class _Expected(NamedTuple):
    """The expected offset of a light queue's next entry. `physical`: where its record lies, if known."""

    offset: int
    physical: int | None


_NO_MORE: Final = _Expected(0, (1 << 63) - 1)


class PresentAssignment:
    """Assigns light queues the offsets that the file queues hold.

    Implements `store.consumequeue.dispatch.OffsetAssignment`. RocketMQ's offsets differ from what its records state
    (`DenseAssignment`), and a topic may have been deleted and created again. So each entry is looked up: nearly always
    it is the one after the previous entry.
    """

    deleted_topics = NO_DELETED_TOPICS

    def __init__(self, entries: PresentEntries) -> None:
        self._entries = entries
        self._next: LruCache[str, _Expected] = LruCache(LIGHT_QUEUES_KNOWN_MAX)

    def invalidate(self) -> None:
        self._next.rotate()
        self._next.rotate()

    def offset_of(self, name: str, stored: QueueOffset, at: PhysicalOffset) -> QueueOffset | None:
        """Return the offset; None: the queue does not hold the record."""
        queue = QueueId(name, 0)
        if not is_file_name(name):
            return None
        known = self._next.get(name)
        expected = known or _Expected(stored, None)
        if expected.physical is not None and expected.physical > at:
            return None
        physical = self._entries.physical_at(queue, expected.offset) if expected.physical is None else expected.physical
        if physical != at:
            found = self._entries.find(queue, at)
            expected = _NO_MORE if found is None else _Expected(found.queue_offset, found.physical_offset)
        is_present = expected is not _NO_MORE and expected.physical in (None, at)
        if self._next.is_full:
            self._next.rotate()
        self._next.put(name, _Expected(expected.offset + 1, None) if is_present else expected)
        return QueueOffset(expected.offset) if is_present else None


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
