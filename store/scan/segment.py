"""The scan of one segment: it makes batches of columns and reports what ended the segment.

The CRCs of many records are checked together: bodies against heads, records against their CRC properties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import Blank, Decoded, StoredMessage, decode_record
from quarry_mq.store.record.codec import crc32_of_each, hides_crc_property
from quarry_mq.store.record.layout import (
    CRC_DIGITS,
    CRC_PROPERTY_SIZE,
    CRC_PROPERTY_START,
    ENTRY_END,
    HEAD_SIZE,
    HEADS,
    PHYSICAL_OFFSET,
    PHYSICAL_OFFSET_POSITION,
    RECORD_SIZE_MINIMUM,
    SIZE,
)
from quarry_mq.store.scan.columns import Bytes, Flags, Integers, RecordBatch, RecordColumns, pieces, single_row
from quarry_mq.store.scan.fields import gather

_MASK: Final = 0x7FFF_FFFF
_POWERS: Final = 10 ** np.arange(CRC_DIGITS)
"""Powers for the property's digits, which come lowest first."""


def mismatches(segment: memoryview, octets: Bytes, columns: RecordColumns, *, require_crc_property: bool) -> Flags:
    """Return which records do not match one of their CRCs, or lack a required CRC property; shape (n,)."""
    starts, lengths = columns.body_position, columns.body_length
    wrong: Flags = _checksums(segment, starts, starts + lengths) != columns.body_crc
    if require_crc_property:
        wrong |= ~columns.has_crc_property
    wrong |= _hidden(segment, octets, columns)
    if not columns.has_crc_property.any():
        return wrong
    rows = np.flatnonzero(columns.has_crc_property)
    starts = columns.position[rows]
    property_starts = starts + columns.size[rows] - CRC_PROPERTY_SIZE
    wrong[rows] |= _stored(octets, property_starts) != _checksums(segment, starts, property_starts)
    return wrong


def _checksums(segment: memoryview, starts: Integers, ends: Integers) -> Integers:
    values = crc32_of_each(segment, starts.tolist(), ends.tolist())
    return np.array(values, np.int64) & _MASK


def _stored(octets: Bytes, property_starts: Integers) -> Integers:
    """Return the numbers in the CRC properties that begin there; -1 where no writer makes such a text."""
    text = pieces(octets, property_starts + len(CRC_PROPERTY_START), CRC_DIGITS + 1)
    values = text.view(np.uint8).reshape(-1, CRC_DIGITS + 1)
    digits = values[:, :CRC_DIGITS].astype(np.int64) - ord("0")
    proper = ((digits >= 0) & (digits <= 9)).all(axis=1) & (values[:, CRC_DIGITS] == ENTRY_END)
    return np.where(proper, digits @ _POWERS, -1)


def _hidden(segment: memoryview, octets: Bytes, columns: RecordColumns) -> Flags:
    """Return which records have a CRC property that one wrong byte hides."""
    hidden: Flags = np.zeros(len(columns), np.bool_)
    rows = np.flatnonzero(~columns.has_crc_property & (columns.properties_length >= CRC_PROPERTY_SIZE))
    if not len(rows):
        return hidden
    ends = columns.position[rows] + columns.size[rows]
    names = pieces(octets, ends - CRC_PROPERTY_SIZE, len(CRC_PROPERTY_START)).view(np.uint8)
    differing = names.reshape(-1, len(CRC_PROPERTY_START)) != np.frombuffer(CRC_PROPERTY_START, np.uint8)
    for row in rows[differing.sum(axis=1) <= 1].tolist():
        end = int(columns.position[row] + columns.size[row])
        properties = bytes(segment[int(columns.properties_position[row]) : end])
        hidden[row] = hides_crc_property(segment[int(columns.position[row]) : end], properties)
    return hidden


WINDOW_BYTES: Final = 4 << 20
WINDOW_RECORDS: Final = 4096
"""The largest part of a segment that becomes one batch.

It has enough records to share the cost of some hundred array operations, and few enough that heads and bodies are still
in the processor's cache when their CRCs are computed.
"""

_CACHE_LINE_BYTES: Final = 64
_HEAD_SIZE_MAXIMUM: Final = HEADS[-1].size


def scan_segment(
    segment: memoryview,
    base: PhysicalOffset,
    position: int = 0,
    *,
    end: int | None = None,
    check_crc: bool = True,
    require_crc_property: bool = False,
    window_bytes: int = WINDOW_BYTES,
    await_bytes: Callable[[int], None] = lambda _: None,
) -> Iterator[RecordBatch]:
    """Yield everything from `position`, the start of a record, to the segment's end or to what is no record.

    `segment` is all of the segment's memory, as contiguous bytes; its first byte has the physical offset `base`. No
    record that begins at or after the position `end` is read: for a log that is still written. Only the last batch has
    an `ended_by`; it may have no records. A segment that is full to its last byte has no `ended_by`. Verdicts are those
    of `decode_record` with the same `check_crc` and `require_crc_property`, which is called for everything unusual.

    `await_bytes(p)` is called before any byte of a position below p is read, and may block or raise.
    """
    octets = np.frombuffer(segment, np.uint8)
    checks = _Checks(check_crc, require_crc_property)
    end = len(segment) if end is None else min(end, len(segment))
    while position < end:
        window_end = min(position + window_bytes, end)
        await_bytes(window_end)
        if check_crc:
            _touch(octets, position, window_end)
        found = _find_records(segment, position, window_end, await_bytes)
        for batch in _batches(segment, octets, base, found, checks):
            yield batch
            position = batch.end - base
            if batch.ended_by is not None:
                return


def _touch(octets: Bytes, begin: int, end: int) -> None:
    """Bring the range into the processor's cache, in an order that it prefetches. Hopping from record to record does
    not.
    """
    octets[begin:end:_CACHE_LINE_BYTES].max()


def scan_apart(records: memoryview, *, check_crc: bool = True) -> Iterator[RecordBatch]:
    """Yield the records that follow each other in memory, wherever each lies in its log, as a pull is answered.

    Positions count from the first byte of `records`, and so do `base` and `end` of a batch. Verdicts and `ended_by` are
    those of `scan_segment`.
    """
    octets = np.frombuffer(records, np.uint8)
    checks = _Checks(check_crc, crc_property_required=False)
    position = 0
    while position < len(records):
        found = _find_records(records, position, len(records), lambda _: None)
        for batch in _batches(records, octets, PhysicalOffset(0), found, checks, are_apart=True):
            yield batch
            position = batch.end
            if batch.ended_by is not None:
                return


class _Checks(NamedTuple):
    crc: bool
    crc_property_required: bool


class _Found(NamedTuple):
    """The object says where records seem to begin, and where the last of them ends."""

    positions: Integers
    end: int
    stopped: bool
    """True if no record of a possible size begins at `end`."""


def _find_records(segment: memoryview, begin: int, window_end: int, await_bytes: Callable[[int], None]) -> _Found:
    """Hop from size to size until `window_end` is reached. Only sizes are read."""
    limit = len(segment)
    heads_end = limit - HEAD_SIZE + 1
    window_end = min(window_end, heads_end)
    await_bytes(min(max(begin, window_end) + _HEAD_SIZE_MAXIMUM, limit))
    unpack = SIZE.unpack_from
    positions: list[int] = []
    append = positions.append
    at = begin
    stopped = at >= heads_end
    while at < window_end and len(positions) < WINDOW_RECORDS:
        (size,) = unpack(segment, at)
        if size < RECORD_SIZE_MINIMUM:
            stopped = True
            break
        append(at)
        at += size
    if at > limit:
        at = positions.pop()
        stopped = True
    await_bytes(at)
    return _Found(np.array(positions, np.int64), at, stopped)


def _batches(
    segment: memoryview,
    octets: Bytes,
    base: PhysicalOffset,
    found: _Found,
    checks: _Checks,
    *,
    are_apart: bool = False,
) -> Iterator[RecordBatch]:
    """Yield the records found, up to the first one that needs the exact decoder, then what that decoder says of it.

    `are_apart`: the records lie at the physical offsets that they state, and not one after the other.
    """
    bases = _stated_offsets(octets, found.positions) - found.positions if are_apart else base
    columns, topics, doubtful = gather(octets, bases, found.positions)
    sound = _count_before(doubtful)
    if checks.crc:
        candidates = columns.select(slice(sound))
        wrong = mismatches(segment, octets, candidates, require_crc_property=checks.crc_property_required)
        sound = _count_before(wrong)
    if sound == len(columns):
        end, unusual = found.end, found.stopped
    else:
        end, unusual = int(columns.position[sound]), True
        columns = columns.select(slice(sound))
    at = PhysicalOffset(base + end)
    decided = _decide(segment, end, _stated_offset(segment, end) if are_apart else at, checks) if unusual else None
    if not isinstance(decided, StoredMessage):
        after = PhysicalOffset(at + decided.size) if isinstance(decided, Blank) else at
        yield RecordBatch(segment, base, columns, topics, after, decided)
        return
    yield RecordBatch(segment, base, columns, topics, at, None)
    yield RecordBatch(
        segment, base, single_row(decided, end), (decided.topic,), PhysicalOffset(at + decided.size), None
    )


def _stated_offsets(octets: Bytes, positions: Integers) -> Integers:
    stated = pieces(octets, positions + PHYSICAL_OFFSET_POSITION, PHYSICAL_OFFSET.size).view(">i8")
    return stated.astype(np.int64)


def _stated_offset(segment: memoryview, position: int) -> PhysicalOffset:
    """Return the physical offset that a record states; 0 if the memory ends before."""
    at = position + PHYSICAL_OFFSET_POSITION
    if at + PHYSICAL_OFFSET.size > len(segment):
        return PhysicalOffset(0)
    (offset,) = PHYSICAL_OFFSET.unpack_from(segment, at)
    return PhysicalOffset(offset)


def _count_before(marked: Flags) -> int:
    """Return how many rows there are before the first marked one."""
    return int(marked.argmax()) if marked.any() else len(marked)


def _decide(segment: memoryview, position: int, at: PhysicalOffset, checks: _Checks) -> Decoded:
    return decode_record(segment, position, at, check_crc=checks.crc, require_crc_property=checks.crc_property_required)
