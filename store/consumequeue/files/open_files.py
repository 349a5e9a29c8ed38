"""Keep a bounded number of files open for any number of queues, and record which files are not durable yet."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from threading import Lock

from quarry_mq.store.consumequeue.files.layout import ENTRY_SIZE
from quarry_mq.store.fs.protocol import Disk, SparseFile
from quarry_mq.store.layout.paths import segment_name
from quarry_mq.store.message import PhysicalOffset

Key = tuple[Path, int]
"""Directory of the queue and index of the file's first unit."""


class OpenFiles:
    """Caches the most recently used open files. `flush` may run on another thread beside all other calls.

    Files that are not durable yet are remembered until the next flush. Their number is bounded by the records written
    since the last flush, not by the number of queues.
    """

    def __init__(self, disk: Disk, *, open_max: int) -> None:
        self._disk = disk
        self._open_max = open_max
        self._open: OrderedDict[Key, SparseFile] = OrderedDict()
        self._lock = Lock()
        self._dirty: dict[Key, None] = {}  # guarded by _lock
        self._new_names: dict[Path, None] = {}  # guarded by _lock: directories to sync

    def get(self, directory: Path, first: int) -> SparseFile:
        """Return the open file. Raises FileNotFoundError and every other OSError."""
        return self._opened((directory, first), None)

    def make(self, directory: Path, first: int, size: int) -> None:
        """Make the file, and the directories of its queue and topic if they are missing."""
        topic = directory.parent
        with self._lock:
            # first: a failure half way must not leave a name that is never synced
            self._new_names.update(dict.fromkeys((directory, topic, topic.parent)))
            self._dirty[directory, first] = None
        if not self._disk.exists(directory):
            self._disk.make_directory(topic)
            self._disk.make_directory(directory)
        self._opened((directory, first), size)

    def write(self, directory: Path, first: int, position: int, data: bytes) -> None:
        self._opened((directory, first), None).write(position, data)
        with self._lock:
            self._dirty[directory, first] = None

    def evict(self, directory: Path, first: int) -> None:
        """Close the file and drop it from the cache, because it is about to be removed."""
        file = self._open.pop((directory, first), None)
        if file is not None:
            file.close()
        with self._lock:
            self._dirty.pop((directory, first), None)

    def flush(self) -> None:
        """Make durable what was written before the call. After an OSError the next flush does what is left."""
        with self._lock:
            dirty, self._dirty = self._dirty, {}
            names, self._new_names = self._new_names, {}
        try:
            for key in list(dirty):
                self._flush(key)
                del dirty[key]
            for directory in list(names):
                with suppress(FileNotFoundError):  # removed since
                    self._disk.sync_directory(directory)
                del names[directory]
        finally:
            with self._lock:
                self._dirty.update(dirty)
                self._new_names.update(names)

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _flush(self, key: Key) -> None:
        directory, first = key
        try:
            # a descriptor of its own: the other thread may close the cached one at any moment
            file = self._disk.open_sparse(_path(directory, first))
        except FileNotFoundError:
            return  # removed since
        try:
            file.flush()
        finally:
            file.close()

    def _opened(self, key: Key, size: int | None) -> SparseFile:
        file = self._open.get(key)
        if file is not None:
            self._open.move_to_end(key)
            return file
        file = self._disk.open_sparse(_path(*key), size)
        self._open[key] = file
        while len(self._open) > self._open_max:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
        return file


def _path(directory: Path, first: int) -> Path:
    return directory / segment_name(PhysicalOffset(first * ENTRY_SIZE))
