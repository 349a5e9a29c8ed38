"""The module removes files of expired segments without blocking appends.

To remove a file of a gigabyte at once takes ext4 a third of a second with the mount option `discard`. The log's
fdatasync waits for that: four times the usual 99th percentile (rmq#7799). Removal in steps of 16 MiB, with pauses, is
hardly noticed (docs/benchmarks.md).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from threading import Event, Lock
from typing import Final, NamedTuple

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.store.commitlog import CommitLogReader
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.paths import expired_directory

log = structlog.get_logger(__name__)

STEP_BYTES: Final = 16 << 20
PAUSE_PER_STEP: Final = 3
"""The pause after a step, as a multiple of the step's time: three quarters of the disk's time are left to others."""

STEP_PAUSE_MIN_S: Final = 0.005


class Removed(NamedTuple):
    """The entry describes a file that was removed."""

    path: Path
    size: int
    seconds: float


class SegmentRemover:
    """The remover takes files of segments that are no longer part of the log, and removes them one after the other.

    First all are moved to `commitlog/expired/`, where no start takes them for a part of the log; a start removes what
    it finds there. Then each file is truncated in steps and unlinked. A file that this process still has mapped (a
    reader has a view) waits; after `patience_s` it is unlinked without truncation, so the views stay valid and its disk
    space is freed with the last of them. A file that has another name is unlinked in the same way: somebody else's copy
    (`quarry backup` makes hard links) must stay whole.

    One thread calls `run`; all other methods may be called from any thread.
    """

    def __init__(
        self,
        disk: Disk,
        commit_log: Path,
        reader: CommitLogReader,
        *,
        clock: Clock,
        patience_s: float = 120.0,
        pause_s: float = 0.1,
    ) -> None:
        self._disk = disk
        self._directory = expired_directory(commit_log)
        self._reader = reader
        self._clock = clock
        self._patience_s = patience_s
        self._pause_s = pause_s
        self._stopping = Event()
        self._lock = Lock()
        self._to_move: list[Path] = []  # guarded by _lock; oldest first
        self._waiting: dict[Path, int] = {  # guarded by _lock; moved files and their sizes, oldest first
            self._directory / entry.name: entry.size
            for entry in disk.list_directory(self._directory)
            if not entry.is_directory
        }
        self._mapped_since_s: dict[Path, float] = {}

    def configure(self, *, patience_s: float, pause_s: float) -> None:
        """Set how long views are waited for, and the pause between two files."""
        self._patience_s = patience_s
        self._pause_s = pause_s

    def take(self, paths: Iterable[Path]) -> None:
        """Remove these files, too, at the next `run`: the oldest first."""
        with self._lock:
            self._to_move.extend(paths)

    @property
    def pending(self) -> int:
        """Return how many files are still there."""
        with self._lock:
            return len(self._to_move) + len(self._waiting)

    def pending_bytes(self, segment_size: int) -> int:
        """Return the disk space that these files take, in bytes."""
        with self._lock:
            return len(self._to_move) * segment_size + sum(self._waiting.values())

    @property
    def is_stuck(self) -> bool:
        """Return whether some files could not even be moved away: nothing more should expire before they are."""
        with self._lock:
            return bool(self._to_move)

    def run(self) -> list[Removed]:
        """Remove what can be removed now; return what was removed. To be repeated while something is `pending`.

        Blocks for the disk and for pauses. Raises OSError when the disk refuses; the next run begins with the file at
        fault, none is skipped.
        """
        self._move_all()
        with self._lock:
            waiting = list(self._waiting.items())
        removed = []
        for path, size in waiting:
            if not self._may_go(path):
                continue
            started_s = self._clock.monotonic_s()
            self._give_back(path, size)
            if self._stopping.is_set():
                break
            self._disk.remove(path)
            self._mapped_since_s.pop(path, None)
            with self._lock:
                del self._waiting[path]
            removed.append(Removed(path, size, self._clock.monotonic_s() - started_s))
            self._stopping.wait(self._pause_s)
        return removed

    def stop(self) -> None:
        """Ask a running `run` to end soon, in the middle of a file if need be; later calls of `run` do nothing."""
        self._stopping.set()

    def _move_all(self) -> None:
        """Move all files in order, so that a crash in between leaves a log without a gap."""
        while not self._stopping.is_set():
            with self._lock:
                if not self._to_move:
                    return
                path = self._to_move[0]
            if self._size(path) is not None:
                self._move(path)
            target = self._directory / path.name
            size = self._size(target)
            with self._lock:
                del self._to_move[0]
                if size is not None:
                    self._waiting[target] = size

    def _move(self, path: Path) -> None:
        """Move a file out of the log. If the disk has no space for another name, remove the file where it is."""
        try:
            self._disk.make_directories(self._directory)
            self._disk.move(path, self._directory / path.name)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._disk.remove(path)

    def _size(self, path: Path) -> int | None:
        """Return the size; None when the file is gone: moved by a move that then failed, or removed by
        somebody else.
        """
        return next((each.size for each in self._disk.list_directory(path.parent) if each.name == path.name), None)

    def _may_go(self, path: Path) -> bool:
        # the reader keeps the segment that it read last, even if no caller uses it any more
        self._reader.let_go()
        if not self._disk.exists(path) or not self._disk.is_mapped(path):
            return True
        now_s = self._clock.monotonic_s()
        return now_s - self._mapped_since_s.setdefault(path, now_s) >= self._patience_s

    def _give_back(self, path: Path, size: int) -> None:
        """Truncate the file in steps until the rest may go at once."""
        if not self._disk.exists(path):
            return
        if self._disk.is_mapped(path):
            log.warning(
                "an expired segment is still read: its room comes back when the last reader is done",
                file=path.name,
                size_bytes=size,
            )
            return
        if self._disk.name_count(path) > 1:
            return
        while size > STEP_BYTES and not self._stopping.is_set():
            size -= STEP_BYTES
            started_s = self._clock.monotonic_s()
            self._disk.truncate(path, size)
            with self._lock:
                self._waiting[path] = size
            step_s = self._clock.monotonic_s() - started_s
            self._stopping.wait(max(STEP_PAUSE_MIN_S, PAUSE_PER_STEP * step_s))
