"""Making the log durable."""

from __future__ import annotations

from threading import Lock

from store.commitlog.segments import SegmentList
from store.commitlog.writer import CommitLogWriter
from store.offsets import PhysicalOffset


class CommitLogFlusher:
    """Flushes what a writer has committed. May run in another thread beside the writer.

    Lock order: this flusher's lock, then the segment list's.
    """

    def __init__(self, segments: SegmentList, writer: CommitLogWriter, flushed_up_to: PhysicalOffset) -> None:
        """Everything below `flushed_up_to` must be durable already."""
        self._segments = segments
        self._writer = writer
        self._lock = Lock()
        self._flushed_up_to = flushed_up_to  # guarded by _lock for writing

    @property
    def flushed_up_to(self) -> PhysicalOffset:
        """Everything below is durable. Only grows; may be read from any thread."""
        return self._flushed_up_to

    def flush(self) -> PhysicalOffset:
        """Make everything durable that was committed before this call; returns how far the log is durable.

        Blocks for the disk. Raises StorePoisoned when the disk refuses, and ever after: see `Poison`.
        """
        with self._lock:
            self._writer.poison.check()
            end = self._writer.end
            if end <= self._flushed_up_to:
                return self._flushed_up_to
            start = max(self._flushed_up_to, self._segments.minimum)
            base = self._segments.base_of(start)
            if base + self._segments.segment_size == start:
                base = start
            try:
                while base < end:
                    self._segments.segment_at(base).flush()
                    base = PhysicalOffset(base + self._segments.segment_size)
            except OSError as cause:
                raise self._writer.poison.set("flushing the commit log", cause) from cause
            self._flushed_up_to = end
            self._segments.release(end)
            return end
