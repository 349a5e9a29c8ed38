"""Look up the entries of file queues on a thread that does not write them.

Queues are not listed or measured for it, which would cost more than reading the entry: an entry is read at the position
that its index gives. Entries of records below the end of a backfill are no longer written; they can only be removed,
with their topic or with their files.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.consumequeue import EntryColumns, FileConsumeQueues
from quarry_mq.store.consumequeue.files.layout import ENTRY_SIZE, entries_in, is_file_name, real
from quarry_mq.store.consumequeue.files.open_files import OpenFiles
from quarry_mq.store.consumequeue.search import FoundEntry, first_at_least
from quarry_mq.store.fs import Disk
from quarry_mq.store.lru_cache import LruCache
from quarry_mq.store.offsets import PhysicalOffset, QueueId, QueueOffset

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
