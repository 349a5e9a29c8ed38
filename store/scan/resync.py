"""The module finds a record from a position that need not be the beginning of one: after damage, or inside a segment.

A record states its own physical offset, so a record can be told from a copy of one inside a body: the copy states where
its original lay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.fs import PAGE_BYTES, SegmentFile
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import Blank, StoredMessage
from quarry_mq.store.record.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MINIMUM, SIZE

RECORD_MAGIC: Final = re.compile(b"|".join(re.escape(magic.to_bytes(4, "big")) for magic in (MAGIC_V1, MAGIC_V2)))
"""Matches the magic codes of records: a copy of one may lie in a body, too."""
_BLANK_MAGIC: Final = re.compile(re.escape(MAGIC_BLANK.to_bytes(4, "big")))
_MAGIC_POSITION: Final = SIZE.size
_PART_BYTES: Final = 1 << 20
"""Bytes that are fetched at once, as long as all can be read."""


def next_whole(segments: SegmentList, damaged: PhysicalOffset) -> PhysicalOffset | None:
    """Return the next offset in the segment of a damaged record where the log certainly continues.

    The end that the damaged record states is tried first: a body may hold anything, even the copy of a record.
    Otherwise it is the first record that states its own offset and passes every check, or the blank that fits the rest.
    """
    size = _stated_size(segments, damaged)
    if size >= RECORD_SIZE_MINIMUM and _goes_on(segments, PhysicalOffset(damaged + size)):
        return PhysicalOffset(damaged + size)
    first = PhysicalOffset(damaged + RECORD_SIZE_MINIMUM)
    for magic in (RECORD_MAGIC, _BLANK_MAGIC):
        for candidate in _candidates(segments, damaged, first, magic):
            if _goes_on(segments, candidate):
                return candidate
    return None


def next_readable(segments: SegmentList, damaged: PhysicalOffset) -> PhysicalOffset | None:
    """Return where to continue reading in the segment of a damaged record, or of unwritten bytes that others follow."""
    return next_whole(segments, damaged) if _stated_size(segments, damaged) else first_record(segments, damaged)


def first_record(segments: SegmentList, start: PhysicalOffset) -> PhysicalOffset | None:
    """Return where the first whole record from `start` on begins, in the segment of `start`; None if there is none.

    The record has passed every check. The result can only be wrong if somebody writes into a body a record with a right
    CRC that states the very offset at which it will lie; a reader that arrives here from before will notice that.
    """
    for candidate in _candidates(segments, start, start, RECORD_MAGIC):
        if is_whole(segments, candidate):
            return candidate
    return None


def is_whole(segments: SegmentList, at: PhysicalOffset) -> bool:
    """Return whether a whole record begins there."""
    return at < segments.end_of_files and isinstance(
        CommitLogReader(segments).decode(at, check_crc=True), StoredMessage
    )


def _goes_on(segments: SegmentList, at: PhysicalOffset) -> bool:
    """Return whether a whole record, or the blank up to the segment's end, begins there."""
    return at < segments.end_of_files and isinstance(
        CommitLogReader(segments).decode(at, check_crc=True), StoredMessage | Blank
    )


def _candidates(
    segments: SegmentList, inside: PhysicalOffset, first: PhysicalOffset, magic: re.Pattern[bytes]
) -> Iterator[PhysicalOffset]:
    """Yield each offset from `first` on, in the segment that holds `inside`, where the magic lies as it does in a
    record.
    """
    base = segments.base_of(inside)
    segment = segments.segment_at(inside)
    view = segment.view()
    data_end = segments.disk.data_end(segments.path_of(inside))
    for begin, end in _readable_parts(segment, first - base + _MAGIC_POSITION, data_end):
        for match in magic.finditer(view[:end], begin):
            yield PhysicalOffset(base + match.start() - _MAGIC_POSITION)


def _stated_size(segments: SegmentList, damaged: PhysicalOffset) -> int:
    """Return the size that a damaged record states; -1 if it cannot be read."""
    segment, position = segments.segment_at(damaged), damaged - segments.base_of(damaged)
    try:
        segment.fetch(position, SIZE.size)
    except OSError:
        return -1
    (size,) = SIZE.unpack_from(segment.view(), position)
    return int(size)


def _readable_parts(segment: SegmentFile, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [begin, end) that the device gives, each with the last bytes of a part that it continues.

    So each magic code lies within one part.
    """
    at, continues_from = begin, begin
    step = _PART_BYTES
    while at < end:
        until = min(at - at % step + step, end)
        try:
            segment.fetch(at, until - at)
        except OSError:
            if step > PAGE_BYTES:
                step = PAGE_BYTES  # from here on page by page
                continue
            continues_from = until
        else:
            yield continues_from, until
            continues_from = max(begin, until - SIZE.size + 1)
        at = until
