"""The opaque handle of one scheduled message, which its sender gets and may recall it by.

URL-safe base64 of 25 bytes and the message's id, big-endian:

| offset | bytes | field |
|-------:|------:|-------|
| 0      | 1     | version, 2 |
| 1      | 8     | due, wall-clock ms |
| 9      | 8     | physical offset of its record |
| 17     | 8     | proof (`server.delivery.handle_key`) of the topic, the bytes before and the id: for no other topic |
| 25     |       | message id, UTF-8 |

A client that may recall in a topic can recall the messages whose handles it was given, and no others.

Version 1 had 4 bytes, a CRC-32, in place of the proof. Such a handle is
accepted for a message that was stored before the store's key was made.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from struct import Struct
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

from quarry_mq.server.delivery.handle_key import PROOF_SIZE, HandleKey, Purpose
from quarry_mq.server.errors import InvalidRecallHandle
from quarry_mq.store.offsets import PhysicalOffset

VERSION: Final = 2
UNPROVEN_VERSION: Final = 1
_FIELDS: Final = Struct(">Bqq")
_CHECK: Final = Struct(">I")
_HEAD: Final = _FIELDS.size + PROOF_SIZE
assert _HEAD == 25


class RecallHandle(NamedTuple):
    """The decoded fields of a recall handle. Without a proof anybody may have made it."""

    due_ms: int
    physical_offset: PhysicalOffset
    message_id: str
    is_proven: bool = True

    def encode(self, topic: str, key: HandleKey) -> str:
        fields, message_id = _FIELDS.pack(VERSION, self.due_ms, self.physical_offset), self.message_id.encode()
        proof = key.proof(Purpose.RECALL, topic, fields=fields + message_id)
        return urlsafe_b64encode(fields + proof + message_id).decode("ascii")

    @classmethod
    def decode(cls, text: str, topic: str, key: HandleKey) -> RecallHandle:
        """Decode a handle. Raises InvalidRecallHandle for any text that `encode` did not make for this topic."""
        try:
            raw = urlsafe_b64decode(text.encode("ascii"))
        except (UnicodeEncodeError, Base64Error, ValueError):
            raise InvalidRecallHandle("recall handle is invalid: it cannot be decoded") from None
        if urlsafe_b64encode(raw).decode("ascii") != text:
            raise InvalidRecallHandle(
                "recall handle is invalid: it is no base64"
            )  # the decoder ignores text after the padding
        is_proven = raw[:1] != bytes([UNPROVEN_VERSION])
        head = _HEAD if is_proven else _FIELDS.size + _CHECK.size
        fields, proof, message_id = raw[: _FIELDS.size], raw[_FIELDS.size : head], raw[head:]
        if not message_id or not (_is_proof if is_proven else _is_check)(proof, fields, message_id, topic, key):
            raise InvalidRecallHandle(
                "recall failed, topic not match: the recall handle belongs to another topic, or was never given out"
            )
        _, due_ms, at = _FIELDS.unpack(fields)
        if due_ms < 0 or at < 0:
            raise InvalidRecallHandle("recall handle is invalid: it was never given out")
        return cls(due_ms, PhysicalOffset(at), message_id.decode(errors="replace"), is_proven)


def _is_proof(proof: bytes, fields: bytes, message_id: bytes, topic: str, key: HandleKey) -> bool:
    return fields[0] == VERSION and key.proves(proof, Purpose.RECALL, topic, fields=fields + message_id)


def _is_check(check: bytes, fields: bytes, message_id: bytes, topic: str, _key: HandleKey) -> bool:
    return _CHECK.pack(crc32(message_id + b"\0" + topic.encode(), crc32(fields))) == check
