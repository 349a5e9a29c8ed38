"""Making the next segment before it is needed, so that no append waits for a gigabyte of blocks."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import structlog

from quarry_mq.store.fs.protocol import Disk, SegmentFile

log = structlog.get_logger(__name__)


class NextSegment:
    """At most one segment that is made ahead, in another thread.

    Not thread-safe: whoever appends segments calls everything here.
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
        """The prepared segment, waiting for it if need be; made now when none was prepared.

        Where preparing failed it is tried again, as space may have been freed since. Raises OSError.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            with suppress(OSError):
                return pending.result()
        return self._disk.create_segment(path, size)

    def close(self) -> None:
        """Remove the segment that nobody took, and end the thread. Repeatable. Raises OSError."""
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
            # it is tried again when it is needed: an operator has until then to make room
            log.warning("the next segment cannot be made yet", path=str(path), size_bytes=size, error=str(error))
            raise

    def _workers(self) -> Executor:
        if self._executor is not None:
            return self._executor
        if self._owned is None:
            self._owned = ThreadPoolExecutor(max_workers=1, thread_name_prefix="allocate-segment")
        return self._owned
