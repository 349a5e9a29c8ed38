"""The module makes the commit log durable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Generic, NamedTuple, Protocol, TypeVar

from quarry_mq.store.commitlog.segments import SegmentList
from quarry_mq.store.commitlog.writer import Poison
from quarry_mq.store.errors import StorePoisoned
from quarry_mq.store.fs.protocol import Descriptor
from quarry_mq.store.message import PhysicalOffset


class BegunFlush(NamedTuple):
    """A begun flush still lacks its fdatasync."""

    path: Path
    file: Descriptor
    end: PhysicalOffset
    """The offset up to which the log is durable after the fdatasync."""


class GrowingLog(Protocol):
    """The end of a log that grows: a writer's, or that of a receiver."""

    @property
    def poison(self) -> Poison: ...

    @property
    def end(self) -> PhysicalOffset: ...


Log = TypeVar("Log", bound=GrowingLog)


class CommitLogFlusher(Generic[Log]):
    """The flusher makes durable what a writer has committed. It may run in another thread than the writer.

    Lock order: this flusher's lock, then the segment list's.
    """

    def __init__(self, segments: SegmentList, writer: Log, flushed_up_to: PhysicalOffset) -> None:
        """Make a flusher. Everything below `flushed_up_to` must be known to be durable already."""
        self.began_segment: Callable[[], None] | None = None
        """A callback that `flush` calls before it returns when bytes of a segment have become durable for the first
        time.
        """
        self._segments = segments
        self.writer = writer
        self._lock = Lock()
        self._flushed_up_to = flushed_up_to  # guarded by _lock for writing
        self._begun_until = self._begun(flushed_up_to)  # guarded by _lock

    @property
    def flushed_up_to(self) -> PhysicalOffset:
        """Return the offset below which everything is durable. It only grows and may be read from any thread."""
        return self._flushed_up_to

    def flush(self) -> PhysicalOffset:
        """Make everything durable that was committed before this call; return the offset up to which it is durable.

        Blocks for the disk. Raises StorePoisoned when the disk refuses, and from then on in every call: see `Poison`.
        """
        with self._lock:
            self.writer.poison.check()
            end = self.writer.end
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
        """Begin a flush in two halves, for a caller that runs fdatasync without Python's lock. Does not block.

        Afterwards `end` has to be called in any case: no other flush can run before that. Returns None if `flush` is
        needed instead, because another flush runs, because not exactly one file is to be flushed, or because it is the
        first flush of a segment. Raises StorePoisoned.
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
        self.writer.poison.check()
        end = self.writer.end
        if end <= self._flushed_up_to or (self.began_segment is not None and end > self._begun_until):
            return None
        base = self._first_base()
        if end >= base + self._segments.segment_size:
            return None
        segment = self._segments.segment_at(base)
        file = segment.descriptor()
        return None if file is None else BegunFlush(segment.path, file, end)

    def end(self, begun: BegunFlush, error: OSError | None) -> None:
        """End the flush that `begin` began, with the result of the fdatasync. Raises StorePoisoned if it failed."""
        try:
            if error is not None:
                raise self._poisoned(error) from error
            self._flushed_up_to = begun.end
        finally:
            self._lock.release()

    def _first_base(self) -> PhysicalOffset:
        """Return the base of the first segment with bytes to flush."""
        start = max(self._flushed_up_to, self._segments.minimum)
        base = self._segments.base_of(start)
        return start if base + self._segments.segment_size == start else base

    def _begun(self, end: PhysicalOffset) -> PhysicalOffset:
        """Return the end of the segment that holds the last byte before `end`; `end` itself if no segment does."""
        if end <= self._segments.minimum:
            return end
        last = self._segments.base_of(PhysicalOffset(end - 1))
        return PhysicalOffset(last + self._segments.segment_size)

    def _poisoned(self, cause: OSError) -> StorePoisoned:
        return self.writer.poison.set("flushing the commit log", cause)
