"""Remove queues that a store does not need any more. They can be made again from the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.kind import DATABASE_MARKER
from quarry_mq.store.layout.paths import parse_segment_name


def remove_database(disk: Disk, directory: Path) -> None:
    """Remove the files of a database, and its directory unless it holds anything else (file queues lie there, too).

    `CURRENT` goes last, so that an interrupted removal can be recognized. Raises OSError.
    """
    files = [entry.name for entry in disk.list_directory(directory) if not entry.is_directory]
    for name in sorted(files, key=lambda name: (name == DATABASE_MARKER, name)):
        disk.remove(directory / name)
    if not disk.list_directory(directory):
        disk.remove_directory(directory)


class FileQueueRemoval:
    """Removes all file queues below `directory`, a few files at a time. After a kill, a new object continues.

    Files without the name of a queue file stay, and so do the directories that hold them.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._work = self._steps()

    def step(self) -> bool:
        """Remove the files of one queue; return whether any are left. After an OSError, begin with a new object."""
        return next(self._work, None) is not None

    def _steps(self) -> Iterator[Path]:
        for topic in self._directories(self._directory):
            for queue in self._directories(topic):
                for entry in self._disk.list_directory(queue):
                    if not entry.is_directory and parse_segment_name(entry.name) is not None:
                        self._disk.remove(queue / entry.name)
                self._remove_if_empty(queue)
                yield queue
            self._remove_if_empty(topic)
        self._remove_if_empty(self._directory)

    def _directories(self, path: Path) -> list[Path]:
        return [path / entry.name for entry in self._disk.list_directory(path) if entry.is_directory]

    def _remove_if_empty(self, directory: Path) -> None:
        if not self._disk.list_directory(directory):
            self._disk.remove_directory(directory)
