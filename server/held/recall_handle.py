"""The opaque name of one delayed message, which its sender gets and may recall it by.

URL-safe base64 of 21 bytes and the message's id, big-endian:

| offset | bytes | field |
|-------:|------:|-------|
| 0      | 1     | version, 1 |
| 1      | 8     | due, wall-clock ms |
| 9      | 8     | physical offset of its record |
| 17     | 4     | CRC-32 of the bytes before, the id and the topic: a handle of another topic is refused |
| 21     |       | message id, UTF-8 |

It needs no secret: whoever may recall in a topic may recall any of its messages.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from struct import Struct
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

from server.errors import InvalidRecallHandle
from store.offsets import PhysicalOffset

VERSION: Final = 1
_FIELDS: Final = Struct(">Bqq")
_CHECK: Final = Struct(">I")
_HEAD: Final = _FIELDS.size + _CHECK.size
assert _HEAD == 21


class RecallHandle(NamedTuple):
    """The decoded fields."""

    due_ms: int
    physical_offset: PhysicalOffset
    message_id: str

    def encode(self, topic: str) -> str:
        fields, message_id = _FIELDS.pack(VERSION, self.due_ms, self.physical_offset), self.message_id.encode()
        check = _CHECK.pack(_sum(fields, message_id, topic))
        return urlsafe_b64encode(fields + check + message_id).decode("ascii")

    @classmethod
    def decode(cls, text: str, topic: str) -> RecallHandle:
        """Raises InvalidRecallHandle for anything that `encode` did not make for this topic."""
        try:
            raw = urlsafe_b64decode(text.encode("ascii"))
        except (UnicodeEncodeError, Base64Error, ValueError):
            raise InvalidRecallHandle("the recall handle cannot be decoded") from None
        if urlsafe_b64encode(raw).decode("ascii") != text:
            raise InvalidRecallHandle("the recall handle cannot be decoded")  # what follows padding is not looked at
        fields, check, message_id = raw[: _FIELDS.size], raw[_FIELDS.size : _HEAD], raw[_HEAD:]
        if len(raw) <= _HEAD or fields[0] != VERSION or _CHECK.pack(_sum(fields, message_id, topic)) != check:
            raise InvalidRecallHandle("the recall handle belongs to another topic, or is damaged")
        _, due_ms, at = _FIELDS.unpack(fields)
        return cls(due_ms, PhysicalOffset(at), message_id.decode())


def _sum(fields: bytes, message_id: bytes, topic: str) -> int:
    return crc32(message_id + b"\0" + topic.encode(), crc32(fields))
