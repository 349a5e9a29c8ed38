"""Keys of in-flight rows, family `inflight` of `quarry/` (docs/formats/delivery-state.md).

    u16 group length, group, u16 topic length, topic, i32 queue number, i64 queue offset      big-endian

What the rows say is the business of `server.delivery.inflight`; which messages they are of can be told from here.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from store.offsets import QueueId, QueueOffset

_LENGTH: Final = Struct(">H")
_POSITION: Final = Struct(">iq")


def group_prefix(group: str) -> bytes:
    """The common beginning of all rows of one group."""
    return _text(group)


def subscription_prefix(group: str, topic: str) -> bytes:
    """The common beginning of all rows of one group on one topic."""
    return _text(group) + _text(topic)


def pack_position(number: int, offset: int) -> bytes:
    """What completes a subscription's prefix to a key: queue number and queue offset."""
    return _POSITION.pack(number, offset)


def parse_key(key: bytes) -> tuple[str, QueueId, QueueOffset]:
    """Group, queue and offset of a row. Raises struct.error or UnicodeDecodeError for other bytes."""
    group, at = _read_text(key, 0)
    topic, at = _read_text(key, at)
    number, offset = _POSITION.unpack_from(key, at)
    return group, QueueId(topic, number), QueueOffset(offset)


def _text(text: str) -> bytes:
    raw = text.encode()
    return _LENGTH.pack(len(raw)) + raw


def _read_text(key: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(key, at)
    end = at + _LENGTH.size + length
    return key[at + _LENGTH.size : end].decode(), end
