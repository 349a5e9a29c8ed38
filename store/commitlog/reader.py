"""The module reads a commit log without copying it.

A page that the device cannot give would end the process when it is read through a mapping (SIGBUS), and again each time
a consumer asks for the same message. So pages are fetched before they are read: there, it is an error. One call fetches
a window of them. The window of a record that lies apart has little more than the record: 128 KiB take 5 µs, a record
0.7 µs. Where reading goes on behind a window, the next one is twice as large, and most records lie in the one before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from quarry_mq.store.commitlog.segments import SegmentList
from quarry_mq.store.errors import OffsetOutOfRange, StoreDamaged
from quarry_mq.store.fs.protocol import SegmentFile
from quarry_mq.store.message import ConsumeQueueEntry, Host, PhysicalOffset
from quarry_mq.store.native import Native, RecordReader
from quarry_mq.store.record import (
    REPLACED_TOPIC,
    Blank,
    Corrupt,
    Decoded,
    EndOfData,
    StoredMessage,
    Torn,
    decode_record,
    is_replaced,
    parts_to_decode,
)
from quarry_mq.store.record.layout import HEAD_BYTES

RECORD_BYTES: Final = 4 * 1024
"""Bytes that are fetched at least: most records are smaller."""
GAP_BYTES: Final = 16 * 1024
"""Distance from a window at which reading still goes on behind it: between the records of a queue lie those of others.

At a larger one, a window costs more than its records do when each of them is fetched alone.
"""
WINDOW_BYTES: Final = 128 * 1024
"""Bytes to which windows grow. How much a device reads ahead around a page that is missing, the system decides."""
WINDOW_BYTES_MAX: Final = 1024 * 1024
"""Bytes that are fetched at once for one large record."""

FoundT = TypeVar("FoundT")

_PHYSICAL_OFFSET: Final = attrgetter("physical_offset")
_NOTHING: Final = memoryview(b"")


class _Window(NamedTuple):
    """The part of a segment that was fetched last. `view` begins with the segment and ends with the window."""

    base: PhysicalOffset
    begin: int
    view: memoryview
    removals: int
    segment: SegmentFile
    whole: memoryview


class CommitLogReader:
    """The reader returns views and decoded records of a log. May be used from any thread.

    `end` returns how far the log may be read at this moment: the `end` of the writer for a live log. Without it the
    files are read to their end.
    """

    def __init__(self, segments: SegmentList, end: Callable[[], PhysicalOffset] | None = None) -> None:
        self._segments = segments
        self._segment_size = segments.segment_size
        self._end = end
        # Neighbouring records are read together. The tuple is replaced as a whole, so that threads see values that
        # belong together.
        self._last: _Window | None = None
        self._native: RecordReader | None = None

    def use(self, native: Native) -> None:
        """Decode plain records with the native part from now on."""
        self._native = native.RecordReader(StoredMessage, Host, REPLACED_TOPIC)

    @property
    def end(self) -> PhysicalOffset:
        """Return the offset at which reading ends now."""
        return self._segments.end_of_files if self._end is None else self._end()

    def read(self, physical_offset: PhysicalOffset, size: int) -> memoryview:
        """Return a read-only view of `size` bytes, not copied. The view keeps its segment mapped as long as it lives.

        Raises OffsetOutOfRange when they are not all within [minimum, end) and within one segment.
        """
        end = self.end
        window = self._window_at(physical_offset, end)
        position = physical_offset - window.base
        if size < 0 or position + size > self._segment_size or physical_offset + size > end:
            raise OffsetOutOfRange(f"no segment holds {size} bytes at offset {physical_offset}; the log ends at {end}")
        if window.begin <= position and position + size <= len(window.view):
            return window.view[position : position + size]
        try:
            window.segment.fetch(position, size)
        except OSError as error:
            reason = f"the bytes at offset {physical_offset} cannot be read: {error.strerror}"
            raise StoreDamaged(window.segment.path, reason, record_at=physical_offset) from error
        return window.segment.view()[position : position + size]

    def path_of(self, physical_offset: PhysicalOffset) -> Path:
        """Return the path of the file that holds the byte. Raises OffsetOutOfRange."""
        return self._segments.path_of(physical_offset)

    def decode(self, physical_offset: PhysicalOffset, *, check_crc: bool = False, size: int = RECORD_BYTES) -> Decoded:
        """Return the record at the offset, or what else lies there. Raises OffsetOutOfRange as `read` does.

        `size` is the size of the record, if it is known.
        """
        end = self.end
        base, begin, view, _, segment, _ = self._window_at(physical_offset, end, size)
        position = physical_offset - base
        found: Decoded | None = None
        if begin <= position:
            if check_crc and self._native is not None:
                found = self._native.read(view, position, physical_offset)
            if found is None:
                found = decode_record(view, position, physical_offset, check_crc=check_crc)
        if not isinstance(found, StoredMessage):
            # it may be more than the window has
            found = self._decode_alone(segment, position, physical_offset, check_crc=check_crc)
        if isinstance(found, StoredMessage) and physical_offset + found.size > end:
            return Torn(physical_offset, f"its {found.size} bytes reach over the log's end at {end}")
        return found

    def read_all(self, entries: list[ConsumeQueueEntry]) -> list[StoredMessage] | None:
        """Return the records of these entries, with every CRC checked, in fewer steps than `decode` for each.

        Returns None where `decode` has to say what is unusual about one of them. Raises OffsetOutOfRange.
        """
        if self._native is None:
            return self._read_each(entries)
        parts = self._natively(self._native.read_all, entries)
        return None if parts is None else [record for part in parts for record in part]

    def join(self, entries: list[ConsumeQueueEntry]) -> bytes | None:
        """Return the records of these entries as they lie in the log, one behind the other, with every CRC checked.

        Returns None without the native part, and where `decode` has to say what is unusual about one of them. Raises
        OffsetOutOfRange.
        """
        if self._native is None or not entries:
            return None
        parts = self._natively(self._native.join, entries)
        return None if parts is None else b"".join(parts)

    def _natively(self, read: Callable[..., FoundT | None], entries: list[ConsumeQueueEntry]) -> list[FoundT] | None:
        """Call a method of the native reader for the entries in each segment; None if it returns None, or a page cannot
        be read.
        """
        end, size = self.end, self._segment_size
        found: list[FoundT] = []
        while entries:
            base, segment, whole = self._segment_of(entries[0].physical_offset, end)
            inside = entries
            if entries[-1].physical_offset >= base + size:
                inside = entries[: bisect_left(entries, base + size, key=_PHYSICAL_OFFSET)]
            try:
                part = read(whole, base, end, inside, segment.fetch)
            except OSError:
                return None
            if part is None:
                return None
            found.append(part)
            entries = entries[len(inside) :]
        return found

    def _read_each(self, entries: list[ConsumeQueueEntry]) -> list[StoredMessage] | None:
        """Implement `read_all` without the native part."""
        end = self.end
        base, begin, view = PhysicalOffset(0), 0, _NOTHING
        found: list[StoredMessage] = []
        for entry in entries:
            at, size = entry.physical_offset, entry.size
            position = at - base
            if position < begin or position + size > len(view):
                base, begin, view, _, _, _ = self._window_at(at, end, size)
                position = at - base
                if position < begin:
                    return None
            record = decode_record(view, position, at)
            if type(record) is not StoredMessage or record.topic == REPLACED_TOPIC or at + record.size > end:
                return None
            found.append(record)
        return found

    def is_replaced(self, physical_offset: PhysicalOffset) -> bool:
        """Return whether the record that once began there was damaged and has been replaced. Raises
        OffsetOutOfRange.
        """
        window = self._window_at(physical_offset, self.end)
        position = physical_offset - window.base

        def decode(_: memoryview, begin: int, at: PhysicalOffset) -> Decoded:
            return self._decode_alone(window.segment, begin, at, check_crc=True)

        try:
            window.segment.fetch(position, min(HEAD_BYTES, self._segment_size - position))
        except OSError:
            return False
        return is_replaced(window.segment.view(), position, physical_offset, decode)

    def scan(self, start: PhysicalOffset, *, check_crc: bool = True) -> Iterator[Decoded]:
        """Yield everything from `start`, which must be the start of a record, in log order.

        Yields StoredMessage and Blank and continues after each. The last thing yielded is one EndOfData, Torn or
        Corrupt; a log whose last segment is closed by a blank ends without it. Of a live log, the scan sees everything
        that is committed before it gets there. Raises OffsetOutOfRange outside [minimum, end], also later, when the
        segment to read has expired meanwhile.
        """
        if not self._segments.minimum <= start <= self.end:
            raise OffsetOutOfRange(f"offset {start} is outside the commit log [{self._segments.minimum}, {self.end}]")
        return self._scan(start, check_crc=check_crc)

    def _scan(self, start: PhysicalOffset, *, check_crc: bool) -> Iterator[Decoded]:
        at = start
        end = self.end
        while True:
            if at >= end:
                end = self.end  # a live log may have grown meanwhile
                if at >= end:
                    break
            found = self.decode(at, check_crc=check_crc)
            yield found
            match found:
                case StoredMessage(size=size):
                    at = PhysicalOffset(at + size)
                case Blank():
                    base = self._segments.base_of(at)
                    at = PhysicalOffset(base + self._segment_size)
                case _:
                    return
        if at < self._segments.end_of_files:
            yield EndOfData(at)

    def let_go(self) -> None:
        """Stop keeping the last segment mapped, unless another view of it exists."""
        self._last = None

    def _decode_alone(
        self, segment: SegmentFile, position: int, physical_offset: PhysicalOffset, *, check_crc: bool
    ) -> Decoded:
        """Return what lies at a position; Corrupt if the device does not give the bytes that are needed to tell."""
        view = segment.view()
        try:
            for begin, end in parts_to_decode(view, position):
                segment.fetch(begin, end - begin)
        except OSError as error:
            return Corrupt(physical_offset, f"its bytes cannot be read: {error.strerror}")
        return decode_record(view, position, physical_offset, check_crc=check_crc)

    def _segment_of(
        self, offset: PhysicalOffset, end: PhysicalOffset
    ) -> tuple[PhysicalOffset, SegmentFile, memoryview]:
        """Return where the segment that holds the byte begins, the segment, and a view of the whole of it.

        Raises OffsetOutOfRange.
        """
        last, segments = self._last, self._segments
        if (
            last is not None
            and last.removals == segments.removals  # otherwise the log may begin elsewhere now
            and 0 <= offset - last.base < self._segment_size
            and offset < end
        ):
            return last.base, last.segment, last.whole
        if not segments.minimum <= offset < end:
            raise OffsetOutOfRange(f"offset {offset} is outside the commit log [{segments.minimum}, {end})")
        segment = segments.segment_at(offset)
        return segments.base_of(offset), segment, segment.view()

    def _window_at(self, offset: PhysicalOffset, end: PhysicalOffset, size: int = RECORD_BYTES) -> _Window:
        """Return the window in which `size` bytes lie, as far as the segment and the largest window have them; an empty
        one if not all of the window can be read.
        """
        last, removals, step = self._last, self._segments.removals, 0
        base, segment, whole = self._segment_of(offset, end)
        position = offset - base
        if last is not None and last.segment is segment and last.removals == removals:
            if last.begin <= position and position + size <= len(last.view):
                return last
            if last.begin <= position <= len(last.view) + GAP_BYTES:
                step = min(2 * (len(last.view) - last.begin), WINDOW_BYTES)
        until = min(position + max(step, RECORD_BYTES, min(size, WINDOW_BYTES_MAX)), self._segment_size)
        try:
            segment.fetch(position, until - position)
        except OSError:
            return _Window(base, self._segment_size, whole, removals, segment, whole)
        self._last = last = _Window(base, position, whole[:until], removals, segment, whole)
        return last
