"""Replacement records take the place of damaged ones that an operator gave up (docs/formats/commit-log.md, "Replaced
records").

They fill a stretch of the log exactly:

    replacement record, at most 4 MiB | … | replacement record of at least 92 bytes [| blank, where a segment ends]

A replacement is a record of topic `~`, which no client can name, with the transaction flag PREPARED: neither Quarry nor
RocketMQ makes an entry for it. Its body is `FE` throughout, so that a position in its middle, where an old entry may
point, is recognized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from quarry_mq.protocol.messages.system_flag import TransactionState
from quarry_mq.store.message import Host, Message, PhysicalOffset, QueueOffset
from quarry_mq.store.record.codec import decode_record, encode_blank, encode_record
from quarry_mq.store.record.layout import BLANK_SIZE, MESSAGE_SIZE_MAXIMUM, RECORD_SIZE_MINIMUM
from quarry_mq.store.record.properties import Decoded, StoredMessage

REPLACED_TOPIC: Final = "~"
"""The topic of replacements has one byte, so that the smallest possible record is replaced by one of its own size."""

FILL: Final = b"\xfe"
_FILLED: Final = FILL * BLANK_SIZE
_NOBODY: Final = Host(bytes(4), 0)


def encode_replacement(
    begin: PhysicalOffset, size: int, store_timestamp_ms: int, *, closes_segment: bool
) -> Iterator[tuple[PhysicalOffset, bytes]]:
    """Yield the records that fill [begin, begin + size), each with its offset.

    `closes_segment`: the stretch ends where its segment does, so a blank comes last. Raises ValueError when the stretch
    is too small for a record (92 bytes), or for a blank (8).
    """
    at, left = begin, size
    if closes_segment:
        left = size - BLANK_SIZE if size >= RECORD_SIZE_MINIMUM + BLANK_SIZE else 0
    elif size < RECORD_SIZE_MINIMUM:
        raise ValueError(f"{size} bytes are too few for a record")
    while left:
        piece = left
        if left > MESSAGE_SIZE_MAXIMUM:
            piece = min(MESSAGE_SIZE_MAXIMUM, left - RECORD_SIZE_MINIMUM)
        body = FILL * (piece - RECORD_SIZE_MINIMUM)
        flag = TransactionState.PREPARED.value
        message = Message(REPLACED_TOPIC, 0, body, {}, store_timestamp_ms, _NOBODY, _NOBODY, system_flag=flag)
        yield at, encode_record(message, QueueOffset(0), at, store_timestamp_ms, b"")
        at, left = PhysicalOffset(at + piece), left - piece
    if closes_segment:
        rest = begin + size - at
        yield at, encode_blank(rest).ljust(rest, FILL)


def is_replaced(
    segment: memoryview,
    position: int,
    physical_offset: PhysicalOffset,
    decode: Callable[[memoryview, int, PhysicalOffset], Decoded] = decode_record,
) -> bool:
    """Return whether what once began at `position` of a segment has been replaced. Meant for positions of entries.

    The 16 bytes at the position are read directly, all others by `decode`.
    """
    window = bytes(segment[position : position + 2 * BLANK_SIZE])
    if _FILLED in (window[:BLANK_SIZE], window[BLANK_SIZE:]):
        return True  # in the middle of a replacement, or at a blank that replaces a small record
    for begin in range(max(0, position - RECORD_SIZE_MINIMUM + 1), position + RECORD_SIZE_MINIMUM):
        # at the border of two replacements: no record can begin so near to a whole one
        found = decode(segment, begin, PhysicalOffset(physical_offset + begin - position))
        if isinstance(found, StoredMessage) and found.topic == REPLACED_TOPIC:
            return True
    return False
