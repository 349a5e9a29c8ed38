"""Remove the queue files of a topic in one step that is atomic in a crash: afterwards all of them exist, or none.

    consumequeue/<topic>/           one rename        →  consumequeue/.deleted/topic/
    consumequeue/.deleted/topic/    file after file   →  nothing

If files were removed one by one under their own names, a crash in the middle would leave queues, or files of a queue,
that look like queues with lost data. The folder lies below `consumequeue/`, because that may be a file system of its
own. RocketMQ skips the folder, since `topic` is not a queue number. No topic can have the folder's name, because topic
names contain no dot.
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
    """Removes topics below one `consumequeue/` directory. Methods raise OSError."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._deleted = directory / DELETED_NAME

    def remove(self, topic: str) -> list[Path]:
        """Remove the topic durably and return its removed queue files.

        A folder that contains anything but queue files is refused as a whole (ENOTEMPTY).
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
        """Remove what has been moved away. Call it at each start: the last run may have stopped before doing so."""
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
    return OSError(errno.ENOTEMPTY, "is not a queue file: the topic is not deleted while this file is there", str(path))
