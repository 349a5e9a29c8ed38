"""The module puts the bytes of another log at the end of this one: the log of a follower."""

from __future__ import annotations

from typing import Final

from quarry_mq.store.commitlog.segments import SegmentList
from quarry_mq.store.commitlog.writer import Poison
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.fs import SegmentFile
from quarry_mq.store.message import PhysicalOffset


class CommitLogReceiver:
    """The receiver continues a log with bytes that another broker wrote, at the same offsets.

    What is received may end anywhere, also inside a record. So `end` is the number of the next byte and not always the
    end of a record; a scan of the log stops before a record that is not complete. Everything from `end` on is zero, as
    in a log with a writer. Not thread-safe, but `end` may be read from any thread.
    """

    def __init__(self, segments: SegmentList, end: PhysicalOffset) -> None:
        """Continue at `end`, within [minimum, end_of_files]. Raises OffsetOutOfRange."""
        if end > segments.end_of_files:
            raise OffsetOutOfRange(f"the log cannot end at {end}: its files end at {segments.end_of_files}")
        self.poison: Final = Poison()
        self.end = end
        self._segments = segments
        self._base = end
        self._segment: SegmentFile | None = None
        if end < segments.end_of_files:
            self._enter(segments.base_of(end))

    def receive(self, offset: PhysicalOffset, data: bytes | memoryview) -> PhysicalOffset:
        """Write bytes at the end of the log, across segments if need be, and return the new end.

        Raises OffsetOutOfRange if `offset` is not the end, StorePoisoned after a failed write or flush, and OSError if
        the next segment cannot be made: the bytes up to `end` are written, and the rest may be received again.
        """
        self.poison.check()
        if offset != self.end:
            raise OffsetOutOfRange(f"bytes at offset {offset} do not continue a log that ends at {self.end}")
        rest = memoryview(data)
        while rest:
            segment = self._segment
            if segment is None or self.end == self._base + self._segments.segment_size:
                segment = self._next_segment()
            part = rest[: self._base + self._segments.segment_size - self.end]
            try:
                segment.write(self.end - self._base, part)
            except OSError as cause:
                raise self.poison.set("writing to the commit log", cause) from cause
            self.end = PhysicalOffset(self.end + len(part))
            rest = rest[len(part) :]
        return self.end

    def _next_segment(self) -> SegmentFile:
        if self.end < self._segments.end_of_files:  # made before a crash, and never used
            return self._enter(self.end)
        segment = self._segments.append_segment()
        self._segment, self._base = segment, self.end
        return segment

    def _enter(self, base: PhysicalOffset) -> SegmentFile:
        self._segment, self._base = self._segments.open_for_writing(base), base
        return self._segment
