"""The protocol between a primary and its replicas: frames, without I/O.

A frame is a header of 24 bytes and a body; all integers are big-endian:

    u32 body size, u8 type, u8 0, u16 0, u32 CRC-32 of the body, u32 CRC-32 of the 16 other bytes of the header,
    i64 term of the sender

| type        | from    | body |
|-------------|---------|------|
| 1 HELLO     | replica | JSON (`handshake`) |
| 2 WELCOME   | primary | 32 bytes MAC, JSON |
| 3 PROOF     | replica | 32 bytes MAC |
| 4 LOG       | primary | i64 offset, bytes of the log |
| 5 STATE     | primary | cursor of the batch, changes (`store.state.state_log`) |
| 6 BEAT      | primary | i64 beat, cursor, i64 log begin, i64 log end, i64 last change |
| 7 ACK       | replica | i64 beat, i64 received, i64 flushed, i64 number, i64 position |
| 8 BYE       | either  | text (UTF-8) that says why the connection ends |
| 10 ROWS     | primary | changes: a part of all rows |
| 11 ROWS END | primary | cursor of the rows |

A cursor is 16 bytes run, i64 number, i64 position. The position is where the queues of the primary ended;
`store.follower.copied_store` says what a replica does with it. A beat with position -1 allows nothing yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.state.state_log import CURSOR, StateCursor

HEADER: Final = Struct(">IBBHIIq")
HEADER_SIZE: Final = HEADER.size
BODY_SIZE_MAX: Final = 64 << 20
"""Bytes of a body at most: one batch of changes is sent whole, and a batch may have the rows of many messages."""
HANDSHAKE_SIZE_MAX: Final = 64 << 10
"""Bytes of a body at most before the other side has proved that it has the key."""

_CHECKED: Final = Struct(">IBBHIq")
_LOG: Final = Struct(">q")
_BEAT: Final = Struct(">q16sqqqqq")
_ACK: Final = Struct(">qqqqq")


class FrameType(IntEnum):
    """The type says what the body of a frame is."""

    HELLO = 1
    WELCOME = 2
    PROOF = 3
    LOG = 4
    STATE = 5
    BEAT = 6
    ACK = 7
    BYE = 8
    ROWS = 10
    ROWS_END = 11


class WireError(Exception):
    """An error of the other side: it does not keep to the protocol, or bytes were changed on the way."""


class Frame(NamedTuple):
    """A frame as it was received. `body` is valid until more bytes are fed."""

    type: FrameType
    term: int
    body: memoryview


class Beat(NamedTuple):
    """A beat says how far the primary is."""

    number: int
    cursor: StateCursor
    log_begin: PhysicalOffset
    log_end: PhysicalOffset
    last_change: int
    """The number of the last change of the primary, which the cursor may not have reached yet."""


class Ack(NamedTuple):
    """An acknowledgement says how far the replica is, and which beat it has seen."""

    beat: int
    received: PhysicalOffset
    flushed: PhysicalOffset
    number: int
    position: PhysicalOffset


def header(kind: FrameType, term: int, *body: bytes | memoryview) -> bytes:
    """Return the header of a frame whose body is sent after it, in parts."""
    size = checksum = 0
    for part in body:
        size += len(part)
        checksum = crc32(part, checksum)
    return HEADER.pack(size, kind, 0, 0, checksum, crc32(_CHECKED.pack(size, kind, 0, 0, checksum, term)), term)


def frame(kind: FrameType, term: int, body: bytes) -> bytes:
    """Return a whole frame."""
    return header(kind, term, body) + body


def log_head(offset: PhysicalOffset) -> bytes:
    """Return the first part of the body of LOG; the bytes of the log follow."""
    return _LOG.pack(offset)


def read_log(body: memoryview) -> tuple[PhysicalOffset, memoryview]:
    """Return the offset and the bytes of LOG. Raises WireError."""
    (offset,) = _unpack(_LOG, body)
    return PhysicalOffset(offset), body[_LOG.size :]


def pack_cursor(cursor: StateCursor) -> bytes:
    """Return the body of ROWS END, and the first part of the body of STATE; there the changes follow."""
    return CURSOR.pack(*cursor)


def read_cursor(body: memoryview) -> tuple[StateCursor, memoryview]:
    """Return the cursor of STATE or ROWS END, and the changes. Raises WireError."""
    run, number, position = _unpack(CURSOR, body)
    return StateCursor(run, number, PhysicalOffset(position)), body[CURSOR.size :]


def pack_beat(beat: Beat) -> bytes:
    """Return the body of BEAT."""
    return _BEAT.pack(beat.number, *beat.cursor, *beat[2:])


def read_beat(body: memoryview) -> Beat:
    """Return what BEAT says. Raises WireError."""
    number, run, state, position, begin, end, last_change = _unpack(_BEAT, body)
    cursor = StateCursor(run, state, PhysicalOffset(position))
    return Beat(number, cursor, PhysicalOffset(begin), PhysicalOffset(end), last_change)


def pack_ack(ack: Ack) -> bytes:
    """Return the body of ACK."""
    return _ACK.pack(*ack)


def read_ack(body: memoryview) -> Ack:
    """Return what ACK says. Raises WireError."""
    beat, received, flushed, number, position = _unpack(_ACK, body)
    return Ack(beat, PhysicalOffset(received), PhysicalOffset(flushed), number, PhysicalOffset(position))


def _unpack(layout: Struct, body: memoryview) -> tuple[Any, ...]:
    if len(body) < layout.size:
        raise WireError(f"a body of {len(body)} bytes is too short")
    return layout.unpack_from(body)


class FrameReader:
    """The reader takes what was received in pieces of any size, and yields the complete frames."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self.size_max = HANDSHAKE_SIZE_MAX
        """Bytes of a body at most; raised to `BODY_SIZE_MAX` after the handshake."""

    def feed(self, data: bytes | memoryview, *, is_one_due: bool = False) -> Iterator[Frame]:
        """Add received bytes, and yield the complete frames. Read the iterator to its end. Raises WireError.

        `is_one_due`: yield one at most. The others are kept, and not looked at.
        """
        self._kept += data
        at, is_done = 0, False
        with memoryview(self._kept) as view:
            while not is_done and len(view) - at >= HEADER_SIZE:
                size, kind, zero, zeros, checksum, head_checksum, term = HEADER.unpack_from(view, at)
                if head_checksum != crc32(_CHECKED.pack(size, kind, zero, zeros, checksum, term)):
                    raise WireError("the checksum of a header is wrong")
                if size > self.size_max:
                    raise WireError(f"a frame of {size} bytes is too large")
                end = at + HEADER_SIZE + size
                if len(view) < end:
                    break
                with view[at + HEADER_SIZE : end] as body:
                    if crc32(body) != checksum:
                        raise WireError("the checksum of a body is wrong")
                    if kind in _TYPES:  # others are of a newer version, and passed over
                        yield Frame(FrameType(kind), term, body)
                        is_done = is_one_due
                at = end
        del self._kept[:at]


_TYPES: Final = frozenset(FrameType)
