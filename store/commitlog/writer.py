"""The only writer of a commit log.

A batch of encoded messages becomes records, dispatch requests and results.
"""

from __future__ import annotations

from typing import Final

from quarry_mq.store.commitlog.segments import SegmentList
from quarry_mq.store.errors import MessageTooLarge, OffsetOutOfRange, StoreDamaged, StorePoisoned
from quarry_mq.store.fs.protocol import SegmentFile
from quarry_mq.store.message import (
    Appended,
    DispatchRequest,
    EncodedBatch,
    EncodedMessage,
    Message,
    PhysicalOffset,
    QueueOffset,
    UnknownQueues,
)
from quarry_mq.store.native import EncodeBatch, Native
from quarry_mq.store.record import encode_blank, encode_record
from quarry_mq.store.record.layout import BLANK_SIZE
from quarry_mq.store.record.properties import EncodedProperties


class Poison:
    """The poison is shared by everything that writes one log: it is set once and never taken back.

    After a failed fsync Linux counts the pages as clean, so the next fsync reports success over data that is gone
    ("fsyncgate"). Only reading the disk again, at a restart, tells what is there.
    """

    __slots__ = ("_cause", "reason")

    def __init__(self) -> None:
        self.reason: str | None = None
        """The reason of the first failure; None as long as nothing has failed. Set by any thread, at most once."""
        self._cause: Exception | None = None

    def set(self, action: str, cause: Exception) -> StorePoisoned:
        """Remember the first failure and return the error to raise."""
        if self.reason is None:
            self._cause = cause
            self.reason = f"{action} failed ({cause}); restart to recover what is on disk"
        return StorePoisoned(self.reason)

    def check(self) -> None:
        """Raise StorePoisoned once anything has failed."""
        if self.reason is not None:
            raise StorePoisoned(self.reason) from self._cause


ZEROS: Final = bytes(256 * 1024)
"""Zeros that are written ahead of the log: each time the log gets there, one flush takes longer."""


class CommitLogWriter:
    """The writer puts records at the end of the log: `add` each of them, then `commit` or `discard` all.

    A record holds its own offset, so ask for the offset first: `next` while the record fits into `room`, else `place`.

    Nothing reaches the log before `commit`, which writes once per segment touched and then publishes the new `end`. Not
    thread-safe, but `end` may be read from any thread.

        end     the first offset after the last committed record; everything below may be read
        next    where the next record will lie, if it has at most `room` bytes; else ask `place`
        room    bytes that the next record may have in the segment being filled; a blank fits after it then

    These three are for reading. They are plain attributes because properties would cost each append a quarter of a
    microsecond.

    Everything from `end` on must be zero (`cut` sees to it): an old record after the end would become valid again as
    soon as a new one ends exactly where it begins.
    """

    def __init__(self, segments: SegmentList, end: PhysicalOffset, *, lays_zeros: bool = False) -> None:
        """Continue writing at `end`, within [minimum, end_of_files].

        `lays_zeros`: write zeros ahead of the log, for logs that are flushed at each append. Overwriting them needs no
        change of the file system's metadata, which is a third of a flush (ADR 44). Raises OffsetOutOfRange, and
        StoreDamaged when no blank fits after `end`.
        """
        self.poison: Final = Poison()
        self._segments = segments
        self._lays_zeros = lays_zeros
        self._segment: SegmentFile | None = None  # the segment being filled; None before the very first
        self._base = end
        self._limit = end  # where the segment being filled ends
        if end < segments.end_of_files:
            self._segment = segments.open_for_writing(end)
            self._base = segments.base_of(end)
            self._limit = PhysicalOffset(self._base + segments.segment_size)
            if self._limit - end < BLANK_SIZE:
                raise StoreDamaged(
                    segments.path_of(end), f"the log ends at {end}, there is no space for a blank after it"
                )
        elif end > segments.end_of_files:
            raise OffsetOutOfRange(f"the log cannot end at {end}: its files end at {segments.end_of_files}")
        self.end = self.next = end
        self.room = self._limit - end - BLANK_SIZE
        self._start = end  # the offset of the first byte in `_buffer`
        self._buffer: list[bytes] = []
        self._filled: list[tuple[SegmentFile, int, list[bytes]]] = []  # records for segments already left
        self._rolled = False  # whether the segment changed since the last commit or discard
        self._published = (self._segment, self._base, self._limit)  # the segment of `end`, for `discard`
        self._zeros_end = end
        self._look_ahead_at = end

    @property
    def record_size_max(self) -> int:
        """Return the size of the largest record that a segment can hold."""
        return self._segments.segment_size - BLANK_SIZE

    def place(self, size: int) -> PhysicalOffset:
        """Return the offset of a record of `size` bytes, which will be the next one.

        Moves on to the next segment when the record and a blank after it do not fit any more. Raises MessageTooLarge
        when no segment could hold it, StorePoisoned after a failed write or flush, OSError when the next segment cannot
        be made (the same call may succeed later).
        """
        if self.poison.reason is not None:
            self.poison.check()
        if size > self.room:
            self._roll(size)
        return self.next

    def add(self, record: bytes) -> None:
        """Buffer the record at `next`. Raises ValueError when it does not fit there."""
        size = len(record)
        if size > self.room:
            raise ValueError(f"a record of {size} bytes, but only {self.room} fit")
        self._buffer.append(record)
        self.next = PhysicalOffset(self.next + size)
        self.room -= size

    def commit(self) -> PhysicalOffset:
        """Write everything buffered into the segments and publish the new end; return it.

        The records survive the death of the process from now on. Raises StorePoisoned; a write that failed halfway is
        not repeated.
        """
        if self.poison.reason is not None:
            self.poison.check()
        try:
            if self._rolled:
                self._leave_filled()
            if self.next >= self._look_ahead_at:
                self._look_ahead()
            buffer = self._buffer
            if buffer and self._segment is not None:
                records = buffer[0] if len(buffer) == 1 else b"".join(buffer)
                self._segment.write(self._start - self._base, records)
                buffer.clear()
        except OSError as cause:
            raise self.poison.set("writing to the commit log", cause) from cause
        except Exception as cause:
            # it is not known any more whether the bytes after the end are zero, whatever the error was
            self.poison.set("writing to the commit log", cause)
            raise
        self._start = self.end = self.next
        return self.end

    def discard(self) -> None:
        """Drop what is buffered. A segment that was added meanwhile stays empty and is filled later."""
        self._buffer.clear()
        self._filled.clear()
        self._segment, self._base, self._limit = self._published
        self._start = self.next = self.end
        self.room = self._limit - self.next - BLANK_SIZE
        self._rolled = False

    def close(self) -> None:
        """Discard what is buffered and remove segments that hold nothing, as RocketMQ does at a clean stop.

        The first segment is never removed: only its name tells where the offsets continue. Raises OSError.
        """
        self.discard()
        if self._segment is not None:
            unused = self.end == self._base > self._segments.minimum
            self._segments.remove_after(PhysicalOffset(self._base - 1) if unused else self._base)

    def _roll(self, size: int) -> None:
        segment_size = self._segments.segment_size
        if size + BLANK_SIZE > segment_size:
            raise MessageTooLarge(
                f"a record of {size} bytes does not fit a segment of {segment_size}; "
                f"at most {segment_size - BLANK_SIZE}"
            )
        base = self._limit
        if base < self._segments.end_of_files:  # made before a crash or a discard, and never used
            following = self._segments.open_for_writing(base)
        else:
            following = self._segments.append_segment()
        if self._segment is not None:
            self._buffer.append(encode_blank(self._limit - self.next))
            self._filled.append((self._segment, self._start - self._base, self._buffer))
        self._segment = following
        self._base = self._start = self.next = base
        self._limit = PhysicalOffset(base + segment_size)
        self.room = segment_size - BLANK_SIZE
        self._buffer = []
        self._rolled = True

    def _leave_filled(self) -> None:
        for segment, position, records in self._filled:
            segment.write(position, b"".join(records))
        self._filled.clear()
        self._rolled = False
        self._published = (self._segment, self._base, self._limit)
        self._zeros_end = self._base
        self._look_ahead_at = self._base

    def _look_ahead(self) -> None:
        """Prepare what later appends and flushes would otherwise wait for: the next segment, and allocated blocks."""
        half = PhysicalOffset(self._base + self._segments.segment_size // 2)
        self._look_ahead_at = half
        if self.next >= half:
            # Not sooner: a store that is hardly used allocates the blocks of one segment, not of two.
            self._look_ahead_at = self._limit
            if self._limit == self._segments.end_of_files:
                self._segments.prepare_next()
        if self._lays_zeros and self._segment is not None:
            if self.next >= self._zeros_end:
                zeros = ZEROS[: self._limit - self.next]
                self._segment.write(self.next - self._base, zeros)
                self._zeros_end = PhysicalOffset(self.next + len(zeros))
            self._look_ahead_at = min(self._look_ahead_at, self._zeros_end)


_make: Final = tuple.__new__


def encode_batch(
    messages: list[EncodedMessage],
    next_offsets: dict[tuple[str, int], QueueOffset],
    physical_offset: PhysicalOffset,
    stored_ms: int,
    crc_property: bool,  # noqa: FBT001 - as the native part has it
) -> EncodedBatch | UnknownQueues:
    """Assign offsets to the messages and encode their records, the first of which is to lie at `physical_offset`.

    If `next_offsets` lacks some of the queues, only those queues are returned. Raises Invalid for what no record can
    hold.
    """
    queues = ((message.topic, message.queue_number) for message in messages)
    if unknown := [queue for queue in queues if queue not in next_offsets]:
        return unknown
    records: list[bytes] = []
    requests: list[DispatchRequest] = []
    appended: list[Appended] = []
    assigned: dict[tuple[str, int], QueueOffset] = {}
    at = physical_offset
    for topic, number, body, raw_properties, born_ms, born_host, store_host, system_flag, code, flag in messages:
        queue = topic, number
        offset = assigned[queue] if queue in assigned else next_offsets[queue]
        assigned[queue] = QueueOffset(offset + 1)
        message = Message(topic, number, body, {}, born_ms, born_host, store_host, flag, system_flag)
        record = encode_record(message, offset, at, stored_ms, raw_properties, crc_property=crc_property)
        size = len(record)
        records.append(record)
        properties = EncodedProperties(raw_properties)
        requests.append(
            _make(DispatchRequest, (topic, number, offset, at, size, code, stored_ms, system_flag, properties, ()))
        )
        appended.append(_make(Appended, (offset, at, size, stored_ms)))
        at = PhysicalOffset(at + size)
    return b"".join(records), requests, appended, assigned


def native_batch_encoder(native: Native) -> EncodeBatch:
    """Return the `encode_batch` of the native part."""
    return native.BatchEncoder(DispatchRequest, Appended, EncodedProperties).make
