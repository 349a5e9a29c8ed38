"""The position of the next page of messages, in the form that callers keep.

| field  | bytes | meaning                                                                          |
|--------|-------|----------------------------------------------------------------------------------|
| layout | 1     | 1; another number is of another version                                          |
| order  | 1     | 1: the oldest first                                                              |
| place  | 8     | offset in the log, big-endian: the page begins after (before) the record there   |
| of     | 4     | CRC-32 of topic, lite topic and queue, so that it is not used for anything else  |
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

from quarry_mq.store.errors import Invalid
from quarry_mq.store.offsets import PhysicalOffset

LAYOUT: Final = 1
_CURSOR: Final = Struct(">BBqI")
assert _CURSOR.size == 14


def pack_cursor(place: PhysicalOffset, *, is_ascending: bool, selected: str) -> bytes:
    """Encode a cursor. `selected` identifies the messages, by any text that is always the same for them."""
    return _CURSOR.pack(LAYOUT, is_ascending, place, crc32(selected.encode()))


def parse_cursor(cursor: bytes, *, is_ascending: bool, selected: str) -> PhysicalOffset:
    """Decode a cursor. Raises Invalid."""
    if not cursor or cursor[0] != LAYOUT:
        raise Invalid("cursor: it is none of this call's answers, or one of another version: begin anew without it")
    if len(cursor) != _CURSOR.size:
        raise Invalid(f"cursor: it has {len(cursor)} bytes, not {_CURSOR.size}: give `next` of an answer as it was")
    _, order, place, of = _CURSOR.unpack(cursor)
    if order not in {0, 1} or place < 0:
        raise Invalid("cursor: it is none of this call's answers: begin anew without it")
    if bool(order) is not is_ascending:
        raise Invalid("cursor: it is of the other order; is_ascending has to be as it was")
    if of != crc32(selected.encode()):
        raise Invalid("cursor: it is of other messages; topic, lite_topic and queue have to be as they were")
    return PhysicalOffset(place)
