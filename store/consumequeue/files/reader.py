"""Read RocketMQ's consume queue files, entry by entry or as columns; nothing is written.

Columns are read beside the thread that writes the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from quarry_mq.store.consumequeue.files.layout import ENTRY_SIZE, Entries, entries_in, is_file_name, real, written
from quarry_mq.store.consumequeue.files.open_files import OpenFiles
from quarry_mq.store.consumequeue.files.queue import FileQueue, FileShape
from quarry_mq.store.consumequeue.search import EntryWindow, joined
from quarry_mq.store.fs.protocol import DirectoryEntry, Disk, SegmentFile
from quarry_mq.store.layout.paths import parse_segment_name
from quarry_mq.store.message import ConsumeQueueEntry, PhysicalOffset, QueueBounds, QueueId, QueueOffset

ENTRIES_PER_STEP: Final = 4_096
"""Entries read in one step. Files are sparse: pages after the last entry should not be touched without need."""


class _File(NamedTuple):
    first: int
    """The queue offset of the file's first entry."""
    entries: int
    path: Path


class FileConsumeQueueReader:
    """Reads the queues below one `consumequeue/` directory.

    Names that are not RocketMQ's are skipped, and so are the files of a RocksDB in the same directory (double write).
    OSError passes through. Nothing is kept between calls, so a queue may grow meanwhile.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory

    def queues(self) -> Iterator[QueueId]:
        """Yield every queue with at least one file, by topic name and number."""
        for topic in self._disk.list_directory(self._directory):
            if not topic.is_directory:
                continue
            for queue, files in queues_of_topic(self._disk, self._directory, topic.name):
                if any(map(_is_usable, files)):
                    yield queue

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]:
        """Return at most `limit` entries with offset >= start, ascending; filler and holes are skipped.

        An entry's queue offset is its index. Entries below the log's min offset are not left out: see `bounds`.
        """
        files = self._files(queue)
        maximum = self._maximum(files)
        found: list[ConsumeQueueEntry] = []
        for file in files:
            if start >= file.first + file.entries:
                continue
            with _Opened(self._disk, file) as entries:
                for begin in range(
                    max(0, start - file.first), min(file.entries, maximum - file.first), ENTRIES_PER_STEP
                ):
                    step = entries[begin : min(begin + ENTRIES_PER_STEP, maximum - file.first)]
                    indexes = np.flatnonzero(real(step))[: limit - len(found)]
                    found += [_entry(file.first + begin + int(index), step[index]) for index in indexes]
                    if len(found) >= limit:
                        return found
        return found

    def bounds(self, queue: QueueId, minimum_physical_offset: PhysicalOffset) -> QueueBounds:
        """Return the first entry whose record the log still has, and the next free index.

        In an empty queue both are the next free index.
        """
        files = self._files(queue)
        maximum = self._maximum(files)
        for file in files:
            with _Opened(self._disk, file) as entries:
                for begin in range(0, min(file.entries, maximum - file.first), ENTRIES_PER_STEP):
                    step = entries[begin : begin + ENTRIES_PER_STEP]
                    kept = real(step) & (step["physical_offset"] >= minimum_physical_offset)
                    if kept.any():
                        first = file.first + begin + int(kept.argmax())
                        return QueueBounds(QueueOffset(min(first, maximum)), QueueOffset(maximum))
        return QueueBounds(QueueOffset(maximum), QueueOffset(maximum))

    def log_end(self) -> PhysicalOffset:
        """Return the end of the last record that any queue has an entry of; 0 when there is none."""
        end = 0
        for queue in self.queues():
            files = self._files(queue)
            # a queue may end in filler: then the last record is further back
            for last in range(self._maximum(files) - 1, files[0].first - 1, -ENTRIES_PER_STEP):
                begin = QueueOffset(max(files[0].first, last - ENTRIES_PER_STEP + 1))
                if found := self.entries(queue, begin, last - begin + 1):
                    end = max(end, found[-1].physical_offset + found[-1].size)
                    break
        return PhysicalOffset(end)

    def _maximum(self, files: list[_File]) -> int:
        """Return the index after the last written entry without a gap before it, as RocketMQ's recovery counts.

        A last file without any entry was made just before a crash; then the file before it decides.
        """
        for file in reversed(files):
            with _Opened(self._disk, file) as entries:
                count = _written_prefix(entries)
            if count:
                return file.first + count
        return files[0].first if files else 0

    def _files(self, queue: QueueId) -> list[_File]:
        if not is_file_name(queue.topic):
            return []
        directory = self._directory / queue.topic / str(queue.number)
        return [
            _File(int(entry.name) // ENTRY_SIZE, entry.size // ENTRY_SIZE, directory / entry.name)
            for entry in _segments_in(self._disk, directory)
            if _is_usable(entry)
        ]


def queues_of_topic(disk: Disk, directory: Path, topic: str) -> Iterator[tuple[QueueId, list[DirectoryEntry]]]:
    """Yield the queues of a topic below `consumequeue/`, by number, each with the entries named like queue files."""
    folders = disk.list_directory(directory / topic)
    for number in sorted(int(each.name) for each in folders if each.is_directory and each.name.isdecimal()):
        yield QueueId(topic, number), _segments_in(disk, directory / topic / str(number))


def _segments_in(disk: Disk, directory: Path) -> list[DirectoryEntry]:
    entries = disk.list_directory(directory)
    return [each for each in entries if not each.is_directory and parse_segment_name(each.name) is not None]


def _is_usable(file: DirectoryEntry) -> bool:
    """Return whether the file can be read: a crash leaves an empty file, which cannot be mapped."""
    return int(file.name) % ENTRY_SIZE == 0 and file.size >= ENTRY_SIZE


class _Opened:
    """Maps one file and gives its units while the block runs."""

    def __init__(self, disk: Disk, file: _File) -> None:
        self._segment: SegmentFile = disk.open_segment(file.path, writable=False)

    def __enter__(self) -> Entries:
        return entries_in(self._segment.view())

    def __exit__(self, *_: object) -> None:
        self._segment.close()


def _written_prefix(entries: Entries) -> int:
    for begin in range(0, len(entries), ENTRIES_PER_STEP):
        gaps = ~written(entries[begin : begin + ENTRIES_PER_STEP])
        if gaps.any():
            return begin + int(gaps.argmax())
    return len(entries)


def _entry(at: int, entry: np.void) -> ConsumeQueueEntry:
    return ConsumeQueueEntry(
        QueueOffset(at),
        PhysicalOffset(int(entry["physical_offset"])),
        int(entry["size"]),
        int(entry["tags_code"]),
        None,
    )


OPEN_FILES_MAX: Final = 2


class FileEntryReader:
    """Reads the queue files of `directory`."""

    def __init__(self, disk: Disk, directory: Path, shape: FileShape, queues: Callable[[], Iterator[QueueId]]) -> None:
        self._disk = disk
        self._directory = directory
        self._shape = shape._replace(is_shared=True)
        self._files = OpenFiles(disk, open_max=OPEN_FILES_MAX)
        self.queues = queues

    def open(self, queue: QueueId) -> FileQueueEntries:
        # open files may have been removed and made again since
        self._files.close()
        return FileQueueEntries(
            FileQueue(self._disk, self._files, self._directory / queue.topic / str(queue.number), self._shape)
        )

    def close(self) -> None:
        self._files.close()


class FileQueueEntries:
    def __init__(self, queue: FileQueue) -> None:
        self._queue = queue
        self.begin = queue.firsts[0] if queue.firsts else 0
        self.maximum = queue.maximum
        self.last_physical = int(queue.last_physical)
        self.entry_at_or_after = queue.entry_at_or_after

    def window(self, start: int, end: int) -> EntryWindow:
        found = []
        for first, data in self._queue.stretches(start, min(end, self.maximum)):
            entries = entries_in(memoryview(data))
            rows = np.flatnonzero(real(entries))
            found.append((first + rows, entries[rows]))
        return EntryWindow(
            joined([offsets for offsets, _ in found]),
            *(joined([entries[name] for _, entries in found]) for name in ("physical_offset", "size", "tags_code")),
        )
