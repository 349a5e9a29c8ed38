"""Removing the queue files of a topic in one step, seen from a crash: all of them are there, or none.

    consumequeue/<topic>/           one rename        →  consumequeue/.deleted/topic/
    consumequeue/.deleted/topic/    file after file   →  nothing

One by one under their own names, a crash in the middle would leave queues, or files of a queue, that nothing tells from
queues that have lost something. Below `consumequeue/`, because that may be a file system of its own. RocketMQ passes
over the folder, since `topic` is no queue number; no topic has its name, which they may not have for the dot.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from quarry_mq.store.fs.protocol import Disk
from quarry_mq.store.layout.paths import parse_segment_name

DELETED_NAME: Final = ".deleted"


class TopicRemoval:
    """The removal of topics below one `consumequeue/` directory. Methods raise OSError."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._deleted = directory / DELETED_NAME

    def remove(self, topic: str) -> list[Path]:
        """Returns which queue files are gone, durably.

        A folder with anything in it that is no queue file is refused (ENOTEMPTY) whole.
        """
        folder = self._directory / topic
        if not self._disk.exists(folder):
            return []
        files = list(self._queue_files(folder))
        self.finish()
        self._disk.make_directories(self._deleted)
        self._disk.move(folder, self._deleted / "topic")
        self.finish()
        return files

    def finish(self) -> None:
        """Remove what has been moved away. To be called at a start: the last run may not have come to it."""
        self._remove_tree(self._deleted)

    def _remove_tree(self, path: Path) -> None:
        for entry in self._disk.list_directory(path):
            if entry.is_directory:
                self._remove_tree(path / entry.name)
            else:
                self._disk.remove(path / entry.name)
        self._disk.remove_directory(path)

    def _queue_files(self, folder: Path) -> Iterator[Path]:
        for queue in self._disk.list_directory(folder):
            if not queue.is_directory or not queue.name.isdecimal():
                raise _not_ours(folder / queue.name)
            for file in self._disk.list_directory(folder / queue.name):
                if file.is_directory or parse_segment_name(file.name) is None:
                    raise _not_ours(folder / queue.name / file.name)
                yield folder / queue.name / file.name


def _not_ours(path: Path) -> OSError:
    return OSError(errno.ENOTEMPTY, "is no queue file: the topic is not deleted with it", str(path))
