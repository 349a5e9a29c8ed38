"""Making the log durable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from quarry_mq.store.commitlog.segments import SegmentList
from quarry_mq.store.commitlog.writer import CommitLogWriter
from quarry_mq.store.errors import StorePoisoned
from quarry_mq.store.fs.protocol import Descriptor
from quarry_mq.store.offsets import PhysicalOffset


class BegunFlush(NamedTuple):
    """A flush of which only the fdatasync is still to be made."""

    path: Path
    file: Descriptor
    end: PhysicalOffset
    """How far the log is durable then."""


class CommitLogFlusher:
    """Flushes what a writer has committed. May run in another thread beside the writer.

    Lock order: this flusher's lock, then the segment list's.
    """

    def __init__(self, segments: SegmentList, writer: CommitLogWriter, flushed_up_to: PhysicalOffset) -> None:
        """Everything below `flushed_up_to` must be durable already, and be known to be."""
        self.began_segment: Callable[[], None] | None = None
        """Called when something in a segment has become durable for the first time, before `flush` returns."""
        self._segments = segments
        self._writer = writer
        self._lock = Lock()
        self._flushed_up_to = flushed_up_to  # guarded by _lock for writing
        self._begun_until = self._begun(flushed_up_to)  # guarded by _lock

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
            base = self._first_base()
            try:
                while base < end:
                    self._segments.segment_at(base).flush()
                    base = PhysicalOffset(base + self._segments.segment_size)
            except OSError as cause:
                raise self._poisoned(cause) from cause
            self._flushed_up_to = end
            self._segments.release(end)
            if self.began_segment is not None and end > self._begun_until:
                self._begun_until = self._begun(end)
                self.began_segment()
            return end

    def begin(self) -> BegunFlush | None:
        """A `flush` in two halves, for who can ask the disk better than a thread of Python can. Does not block.

        Afterwards `end` has to be called, come what may: no other flush gets on before. None: `flush` is needed,
        because another runs, because more than one file is to be flushed, or none, or the first of a segment. Raises
        StorePoisoned.
        """
        if not self._lock.acquire(blocking=False):
            return None
        begun = None
        try:
            begun = self._begin()
        finally:
            if begun is None:
                self._lock.release()
        return begun

    def _begin(self) -> BegunFlush | None:
        self._writer.poison.check()
        end = self._writer.end
        if end <= self._flushed_up_to or (self.began_segment is not None and end > self._begun_until):
            return None
        base = self._first_base()
        if end >= base + self._segments.segment_size:
            return None
        segment = self._segments.segment_at(base)
        file = segment.descriptor()
        return None if file is None else BegunFlush(segment.path, file, end)

    def end(self, begun: BegunFlush, error: OSError | None) -> None:
        """What became of the fdatasync. Raises StorePoisoned where it failed."""
        try:
            if error is not None:
                raise self._poisoned(error) from error
            self._flushed_up_to = begun.end
        finally:
            self._lock.release()

    def _first_base(self) -> PhysicalOffset:
        """The first segment with something to flush."""
        start = max(self._flushed_up_to, self._segments.minimum)
        base = self._segments.base_of(start)
        return start if base + self._segments.segment_size == start else base

    def _begun(self, end: PhysicalOffset) -> PhysicalOffset:
        """The end of the segment that holds the last byte before `end`, where one does."""
        if end <= self._segments.minimum:
            return end
        last = self._segments.base_of(PhysicalOffset(end - 1))
        return PhysicalOffset(last + self._segments.segment_size)

    def _poisoned(self, cause: OSError) -> StorePoisoned:
        return self._writer.poison.set("flushing the commit log", cause)
