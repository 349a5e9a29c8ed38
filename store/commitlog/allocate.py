"""The module makes the next segment before it is needed, so that no append waits for the allocation of a gigabyte."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import structlog

from quarry_mq.store.fs.protocol import Disk, SegmentFile

log = structlog.get_logger(__name__)


class NextSegment:
    """A next segment makes at most one segment ahead, in another thread.

    Not thread-safe: only the thread that appends segments may call its methods.
    """

    def __init__(self, disk: Disk, executor: Executor | None = None) -> None:
        self._disk = disk
        self._executor = executor
        self._owned: ThreadPoolExecutor | None = None
        self._pending: Future[SegmentFile] | None = None

    def prepare(self, path: Path, size: int) -> None:
        """Begin to make the segment, unless one is already made or being made. Never waits, never fails."""
        if self._pending is None:
            self._pending = self._workers().submit(self._make, path, size)

    def take(self, path: Path, size: int) -> SegmentFile:
        """Return the prepared segment, waiting for it if need be; without a prepared one, make it now.

        If preparing failed, it is tried again, as space may have been freed since. Raises OSError.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            with suppress(OSError):
                return pending.result()
        return self._disk.create_segment(path, size)

    def close(self) -> None:
        """Remove the segment that was prepared but not taken, and end the thread. Repeatable. Raises OSError."""
        pending, self._pending = self._pending, None
        segment = None
        if pending is not None:
            with suppress(OSError):
                segment = pending.result()
        if self._owned is not None:
            self._owned.shutdown()
            self._owned = None
        if segment is not None:
            segment.close()
            self._disk.remove(segment.path)

    def _make(self, path: Path, size: int) -> SegmentFile:
        try:
            return self._disk.create_segment(path, size)
        except OSError as error:
            # making it is tried again when the segment is needed: until then an operator can free space
            log.warning("the next segment cannot be made yet", path=str(path), size_bytes=size, error=str(error))
            raise

    def _workers(self) -> Executor:
        if self._executor is not None:
            return self._executor
        if self._owned is None:
            self._owned = ThreadPoolExecutor(max_workers=1, thread_name_prefix="allocate-segment")
        return self._owned
