"""Read entries of consume queue files as columns, beside the thread that writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from quarry_mq.store.consumequeue.files.layout import entries_in, real
from quarry_mq.store.consumequeue.files.open_files import OpenFiles
from quarry_mq.store.consumequeue.files.queue import FileQueue, FileShape
from quarry_mq.store.consumequeue.windows import EntryWindow, joined
from quarry_mq.store.fs.protocol import Disk
from quarry_mq.store.offsets import QueueId

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
