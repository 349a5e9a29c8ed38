"""The files of one consume queue: find them, and read and write their entries by index.

    <directory>/<20 digits: 20 * index of the file's first entry>

Every file of a store has the same size; the index of its first entry is a multiple of the number of entries per file.
Files are sparse, and written by position rather than through a mapping: a full disk then raises an error, not SIGBUS.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from quarry_mq.store.consumequeue.files.layout import ENTRY, ENTRY_SIZE, FILLER_SIZE, RECORD_SIZE_MAX, entries_in, real
from quarry_mq.store.consumequeue.files.open_files import OpenFiles
from quarry_mq.store.consumequeue.search import FoundEntry, first_at_least
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs.protocol import Disk
from quarry_mq.store.layout.paths import parse_segment_name, segment_name
from quarry_mq.store.message import ConsumeQueueEntry, PhysicalOffset, QueueOffset

ENTRIES_PER_STEP: Final = 4_096
"""Entries read in one step when more than one may be needed."""

FILLER: Final = ENTRY.pack(0, FILLER_SIZE, 0)


class FileShape(NamedTuple):
    """The properties that all queue files of a store share."""

    size: int
    """Bytes of each file."""
    short_from: PhysicalOffset | None
    """After a crash, a file with no entry of a record below this offset may be too short; None: no file may."""
    is_shared: bool = False
    """True if another thread writes the queues. It may just be making a file, so empty files are skipped."""


class FileQueue:
    """The state of one queue. All of it can be read again from the files.

        firsts           index of each file's first entry, ascending
        maximum          max offset: the index after the last entry, filler included
        last_physical    physical offset of the last real entry; 0 when there is none
        first            the first entry whose record was still in the log at the last look-up

    Only one thread may use it. Raises OSError, and StoreDamaged for a file whose size differs from the other files.
    """

    __slots__ = (
        "_disk",
        "_entries_max",
        "_files",
        "_shape",
        "directory",
        "first",
        "firsts",
        "last_physical",
        "maximum",
    )

    def __init__(self, disk: Disk, files: OpenFiles, directory: Path, shape: FileShape) -> None:
        self._disk = disk
        self._files = files
        self._shape = shape
        self._entries_max = shape.size // ENTRY_SIZE
        self.directory = directory
        self.first: FoundEntry | None = None
        self.firsts = self._find_files()
        self.maximum = 0
        self.last_physical = PhysicalOffset(0)
        self.measure()

    def measure(self) -> None:
        """Set the max offset and the last physical offset from the files."""
        self.maximum = self.firsts[0] if self.firsts else 0
        self.last_physical = PhysicalOffset(0)
        for first in reversed(self.firsts):
            count = self._count(first)
            if count:
                self.maximum = first + count
                break
        last = self.entry_before(self.maximum)
        if last is not None:
            self.last_physical = last.physical_offset

    # -- reading

    def read(self, start: int, limit: int) -> list[ConsumeQueueEntry]:
        """Return at most `limit` real entries with index >= `start`, ascending."""
        found: list[ConsumeQueueEntry] = []
        at, step = start, min(limit, ENTRIES_PER_STEP)
        while at < self.maximum and len(found) < limit:
            first = self._file_of(at)
            if first is None:
                at = self._following(at)
                continue
            count = min(step, first + self._entries_max - at, self.maximum - at)
            data = self._files.get(self.directory, first).read((at - first) * ENTRY_SIZE, count * ENTRY_SIZE)
            for index, (physical, size, tags_code) in enumerate(ENTRY.iter_unpack(data), at):
                if 0 < size <= RECORD_SIZE_MAX:
                    found.append(ConsumeQueueEntry(QueueOffset(index), PhysicalOffset(physical), size, tags_code, None))
            at += count
            step = ENTRIES_PER_STEP  # filler is skipped in few steps
        return found[:limit]

    def stretches(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes of the entries [start, end) file by file, each with the index of its first entry."""
        while start < end:
            first = self._file_of(start)
            if first is None:
                start = self._following(start)
                continue
            stop = min(end, first + self._entries_max)
            data = self._files.get(self.directory, first).read(
                (start - first) * ENTRY_SIZE, (stop - start) * ENTRY_SIZE
            )
            yield start, data
            start = stop

    def entry_at_or_after(self, start: int, end: int) -> FoundEntry | None:
        """Return the first real entry of [start, end)."""
        end = min(end, self.maximum)
        step = 1  # the entry at `start` is nearly always real
        while start < end:
            first = self._file_of(start)
            if first is None:
                start = self._following(start)
                continue
            count = min(step, first + self._entries_max - start, end - start)
            data = self._files.get(self.directory, first).read((start - first) * ENTRY_SIZE, count * ENTRY_SIZE)
            entries = entries_in(memoryview(data))
            mask = real(entries)
            if mask.any():
                index = int(mask.argmax())
                return FoundEntry(QueueOffset(start + index), PhysicalOffset(int(entries[index]["physical_offset"])))
            start += count
            step = ENTRIES_PER_STEP
        return None

    def entry_before(self, end: int) -> ConsumeQueueEntry | None:
        """Return the last real entry with index < `end`."""
        step = 1
        while self.firsts and end > self.firsts[0]:
            begin = max(self.firsts[0], end - step)
            found = self.read(begin, end - begin)
            found = [each for each in found if each.queue_offset < end]
            if found:
                return found[-1]
            end = begin
            step = ENTRIES_PER_STEP
        return None

    def end_below(self, at: PhysicalOffset) -> int:
        """Return the index after the last intact entry of a record below `at`. Physical offsets ascend up to there.

        A power cut can tear an entry that is being written or zeroed, at the border of two sectors. What is left of its
        physical offset is then too low, and the entry may seem to lie below `at` though entries before it do not. No
        entry after a torn entry is torn.
        """
        end = self.maximum
        while True:
            first = first_at_least(self.entry_at_or_after, self.firsts[0] if self.firsts else 0, end, at)
            begin = end if first is None else int(first.queue_offset)
            whole = self._end_of_ascent(begin)
            if whole == begin:
                return whole
            end = whole

    def _end_of_ascent(self, end: int) -> int:
        """Return the index after the last entry below `end` with a physical offset above that of the entry before."""
        last = self.entry_before(end)
        while last is not None:
            before = self.entry_before(last.queue_offset)
            if before is None:
                is_whole = last.physical_offset > 0 or last.queue_offset == 0
            else:
                is_whole = before.physical_offset < last.physical_offset
            if is_whole and not self._follows_zeros(last.queue_offset):
                return end
            end, last = last.queue_offset, before
        return end

    def _follows_zeros(self, index: int) -> bool:
        """Return whether the unit before an entry, in the same file, was zeroed: then the entry may be torn.

        Gaps are written as filler, so only entries that were about to be zeroed, too, come after zeros.
        """
        first = self._file_of(index)
        if first is None or index == first:
            return False
        return not any(self._files.get(self.directory, first).read((index - 1 - first) * ENTRY_SIZE, ENTRY_SIZE))

    # -- writing

    def write(self, start: int, entries: bytes) -> None:
        """Write whole entries from index `start` on, and fill any gap before them with filler.

        Repeating it changes nothing. Not durable before `OpenFiles.flush`.
        """
        count = len(entries) // ENTRY_SIZE
        if self.first is not None and start < self.first.queue_offset:
            self.first = None  # history is being completed downwards
        at = start
        while at < start + count:
            first = at - at % self._entries_max
            end = min(start + count, first + self._entries_max)
            self._close_gap(first, at)
            data = entries[(at - start) * ENTRY_SIZE : (end - start) * ENTRY_SIZE]
            self._files.write(self.directory, first, (at - first) * ENTRY_SIZE, data)
            self.maximum = max(self.maximum, end)
            at = end
        physical, size, _ = ENTRY.unpack_from(entries, len(entries) - ENTRY_SIZE)
        if size <= RECORD_SIZE_MAX:
            self.last_physical = max(self.last_physical, PhysicalOffset(physical))

    def reserve(self, end: int) -> None:
        """Write filler up to index `end`, which is above the max offset: the next entry will have this index."""
        self._close_gap(end - end % self._entries_max, end)
        self.maximum = end

    def truncate(self, end: int) -> None:
        """Remove every entry with index >= `end`, also entries after a gap. Durable with the next flush.

        The file in which the offsets continue stays, even if it has no entry.
        """
        for first in reversed(self.firsts):
            if first >= end and first != self.firsts[0]:
                self._files.evict(self.directory, first)
                self._disk.remove(self._path(first))
                self.firsts.remove(first)
                continue
            begin = max(end - first, 0) * ENTRY_SIZE
            after = min(self._disk.data_end(self._path(first)), self._entries_max * ENTRY_SIZE)
            while begin < after:
                zeros = bytes(min(after - begin, ENTRIES_PER_STEP * ENTRY_SIZE))
                self._files.write(self.directory, first, begin, zeros)
                begin += len(zeros)
            break
        self.first = None
        self.measure()

    def remove_before(self, minimum: PhysicalOffset, files_max: int) -> int:
        """Remove leading files whose entries all lie below `minimum`, never the last file; return their number."""
        removed = 0
        while len(self.firsts) > 1 and removed < files_max:
            last = self.entry_before(self.firsts[1])
            if last is not None and last.physical_offset >= minimum:
                break
            first = self.firsts.pop(0)
            self._files.evict(self.directory, first)
            self._disk.remove(self._path(first))
            removed += 1
        return removed

    def remove(self) -> None:
        """Remove all files and the directory, the last file first: after a crash the queue begins as it did before."""
        for first in reversed(self.firsts):
            self._files.evict(self.directory, first)
            self._disk.remove(self._path(first))
        self.firsts.clear()
        self._disk.remove_directory(self.directory)

    # -- inside

    def _find_files(self) -> list[int]:
        firsts = []
        for entry in self._disk.list_directory(self.directory):
            base = parse_segment_name(entry.name)
            if base is None or entry.is_directory or base % ENTRY_SIZE:
                continue
            if entry.size == 0 and self._shape.is_shared:
                continue
            if entry.size != self._shape.size:
                path = self.directory / entry.name
                if entry.size > self._shape.size or self._was_flushed(path):
                    raise StoreDamaged(path, f"has {entry.size} bytes, the other queue files have {self._shape.size}")
                self._files.make(self.directory, base // ENTRY_SIZE, self._shape.size)
            firsts.append(base // ENTRY_SIZE)
        return firsts

    def _was_flushed(self, path: Path) -> bool:
        """Return whether a file that is too short once had its full length durably; if so, it is damaged."""
        flushed_up_to = self._shape.short_from
        if flushed_up_to is None:
            return True
        data = self._disk.read(path)
        entries = entries_in(memoryview(data[: len(data) // ENTRY_SIZE * ENTRY_SIZE]))
        return bool(np.any(real(entries) & (entries["physical_offset"] < flushed_up_to)))

    def _count(self, first: int) -> int:
        """Return the number of units in the file up to and including the last written one."""
        file = self._files.get(self.directory, first)
        end = min(self._disk.data_end(self._path(first)), self._entries_max * ENTRY_SIZE)
        end = -(-end // ENTRY_SIZE)
        while end > 0:
            begin = max(0, end - ENTRIES_PER_STEP)
            entries = entries_in(memoryview(file.read(begin * ENTRY_SIZE, (end - begin) * ENTRY_SIZE)))
            indexes = np.flatnonzero(entries["size"] > 0)
            if len(indexes):
                return begin + int(indexes[-1]) + 1
            end = begin
        return 0

    def _close_gap(self, first: int, at: int) -> None:
        """Make the file if it is missing, and write filler into any gap before index `at`."""
        if self.firsts and self.maximum < first and (last := self._file_of(self.maximum)) is not None:
            self._fill(last, self.maximum, last + self._entries_max)
        known = first in self.firsts
        if not known:
            self._files.make(self.directory, first, self._shape.size)
            insort(self.firsts, first)
        begin = max(first, self.maximum) if known else first
        if begin < at:
            self._fill(first, begin, at)

    def _fill(self, first: int, begin: int, end: int) -> None:
        while begin < end:
            count = min(end - begin, ENTRIES_PER_STEP)
            self._files.write(self.directory, first, (begin - first) * ENTRY_SIZE, FILLER * count)
            begin += count

    def _file_of(self, at: int) -> int | None:
        place = bisect_right(self.firsts, at) - 1
        if place < 0 or at >= self.firsts[place] + self._entries_max:
            return None
        return self.firsts[place]

    def _following(self, at: int) -> int:
        """Return the first index of the file after `at`, which lies in no file."""
        place = bisect_right(self.firsts, at)
        return self.firsts[place] if place < len(self.firsts) else self.maximum

    def _path(self, first: int) -> Path:
        return self.directory / segment_name(PhysicalOffset(first * ENTRY_SIZE))
