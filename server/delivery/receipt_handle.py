"""The opaque proof of one delivery that a client hands back to acknowledge it.

URL-safe base64 of 37 bytes, big-endian, and for a message of a lite topic a full stop and its name behind it: some
clients do not say it elsewhere.

| offset | bytes | field |
|-------:|------:|-------|
| 0      | 1     | version, 1 |
| 1      | 4     | queue number |
| 5      | 8     | queue offset |
| 13     | 8     | delivery id: unique per hand-out, over restarts too |
| 21     | 8     | expiry, wall-clock ms: after it the handle proves nothing |
| 29     | 4     | CRC-32 of bytes 0..29, group and topic or light queue: a handle of another one is refused |
| 33     | 4     | zero |

It names the delivery; whether the delivery still stands is decided by the stored in-flight record, so handles
stay good over a restart and need no secret (rmq#10278).
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

from server.errors import InvalidReceiptHandle
from store.metadata import is_light_queue
from store.metadata.lite import light_queue_name, parse_light_queue_name

VERSION: Final = 1
LITE_TOPIC_BEGIN: Final = "."
"""No character of base64, and none of names of lite topics."""
_FIELDS: Final = Struct(">BIqqq")
_WHOLE: Final = Struct(">29sIxxxx")
assert _FIELDS.size == 29
assert _WHOLE.size == 37


class ReceiptHandle(NamedTuple):
    """The decoded fields."""

    queue_number: int
    queue_offset: int
    delivery_id: int
    expires_at_ms: int

    def encode(self, group: str, topic: str) -> str:
        """`topic`: where its queue is, be it a light queue."""
        deliveries = ((self.queue_offset, self.delivery_id),)
        return encode_all(self.queue_number, deliveries, self.expires_at_ms, group=group, topic=topic)[0]

    @classmethod
    def decode(cls, text: str, group: str, topic: str) -> ReceiptHandle:
        """Raises InvalidReceiptHandle for anything that `encode` did not make for this group and topic."""
        try:
            raw = urlsafe_b64decode(text.partition(LITE_TOPIC_BEGIN)[0].encode("ascii"))
        except (UnicodeEncodeError, Base64Error, ValueError):
            raise InvalidReceiptHandle("the receipt handle cannot be decoded") from None
        if len(raw) != _WHOLE.size:
            raise InvalidReceiptHandle("the receipt handle has the wrong length")
        fields, check = _WHOLE.unpack(raw)
        if check != crc32(_bound_to(group, topic), crc32(fields)) or fields[0] != VERSION:
            raise InvalidReceiptHandle("the receipt handle belongs to another group or topic, or is damaged")
        return cls(*_FIELDS.unpack(fields)[1:])


def encode_all(
    queue_number: int, deliveries: Iterable[tuple[int, int]], expires_at_ms: int, *, group: str, topic: str
) -> list[str]:
    """The handles of deliveries from one queue, each given as queue offset and delivery id.

    `topic`: where the queue is, be it a light queue.
    """
    light = parse_light_queue_name(topic) if is_light_queue(topic) else None
    end = "" if light is None else f"{LITE_TOPIC_BEGIN}{light[1]}"
    bound_to = _bound_to(group, topic)
    texts = []
    for queue_offset, delivery_id in deliveries:
        fields = _FIELDS.pack(VERSION, queue_number, queue_offset, delivery_id, expires_at_ms)
        raw = _WHOLE.pack(fields, crc32(bound_to, crc32(fields)))
        texts.append(urlsafe_b64encode(raw).decode("ascii") + end)
    return texts


def lite_topic_of(text: str) -> str:
    """The lite topic that a handle names; "" for none. Whether it is one that was given out, `decode` tells."""
    return text.partition(LITE_TOPIC_BEGIN)[2]


def topic_of(text: str, topic: str) -> str:
    """Where the queue is in which the delivery was made that a handle names: the topic, or a light queue of it."""
    lite_topic = lite_topic_of(text)
    return light_queue_name(topic, lite_topic) if lite_topic else topic


def _bound_to(group: str, topic: str) -> bytes:
    return f"{group}\0{topic}".encode()
