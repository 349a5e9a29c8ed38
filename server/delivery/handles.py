"""Proofs that a handle was given out by this broker: for receipts, transactions and delayed messages.

Handles name what they stand for by numbers that anybody can count up. So each has a proof: BLAKE2b over the owner of
the handle and what it names, keyed with a secret of the store. Handles stay valid over restarts and cannot be forged.

A receipt handle, by which a client acknowledges one delivery, is URL-safe base64 of 37 bytes, big-endian. For a message
of a lite topic a full stop and the name of the lite topic follow, since some clients do not send it elsewhere.

| offset | bytes | field |
|-------:|------:|-------|
| 0      | 1     | version, 2 |
| 1      | 4     | queue number |
| 5      | 8     | queue offset |
| 13     | 8     | delivery id: unique per hand-out, over restarts too |
| 21     | 8     | expiry, wall-clock ms: after it the handle proves nothing |
| 29     | 8     | proof of bytes 0..29, group, and topic or light queue: valid for these only |

It names the delivery. The stored in-flight record decides whether the delivery is still valid, so handles stay valid
over a restart (rmq#10278). Handles of version 1 had a checksum in place of the proof, and are refused.
"""

from __future__ import annotations

import hmac
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from enum import Enum
from hashlib import blake2b
from struct import Struct
from typing import Any, Final, NamedTuple

from quarry_mq.protocol.names import is_light_queue
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.store.lru_cache import LruCache
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.metadata.lite import light_queue_name, parse_light_queue_name
from quarry_mq.store.native import Native

PROOF_SIZE: Final = 8
"""Bytes of a proof. Each guess costs an attacker a call to the broker."""

OWNERS_REMEMBERED: Final = 1_024
"""Groups with topics whose handles were made or read lately, for which the first part of a proof is kept."""


class Purpose(Enum):
    """The kind of a handle: the proof of one kind is not valid for another."""

    RECEIPT = b"r"
    TRANSACTION = b"t"
    RECALL = b"d"

    __hash__ = object.__hash__  # members are single objects; the hash of Enum is a call in Python


class HandleKey:
    """The secret key of a store, 16 to 64 bytes.

    `since` is the end of the log when the key was created. Handles of transactions and of delayed messages that were
    stored before may have been given out by an older version, which had no proofs. `native` makes many handles at once.
    """

    def __init__(self, raw: bytes, since: PhysicalOffset, native: Native | None = None) -> None:
        self.raw: Final = raw
        self.since: Final = since
        self.native: Final = native
        self._begun: LruCache[tuple[Purpose, tuple[str, ...]], Any] = LruCache(OWNERS_REMEMBERED)

    def begun(self, purpose: Purpose, *names: str) -> Any:
        """Return a hash of the owner of handles. A copy of it, updated with what a handle names, gives the proof.

        No name may have a zero byte.
        """
        owner = (purpose, names)
        begun = self._begun.get(owner)
        if begun is None:
            begun = blake2b(purpose.value, key=self.raw, digest_size=PROOF_SIZE)
            begun.update("".join(f"{name}\0" for name in names).encode())
            if self._begun.is_full:
                self._begun.rotate()
            self._begun.put(owner, begun)
        return begun

    def proof(self, purpose: Purpose, *names: str, fields: bytes) -> bytes:
        hashed = self.begun(purpose, *names).copy()
        hashed.update(fields)
        return bytes(hashed.digest())

    def proves(self, shown: bytes, purpose: Purpose, *names: str, fields: bytes) -> bool:
        """Return whether this is the proof, in constant time, which does not reveal how much of it is right."""
        return hmac.compare_digest(shown, self.proof(purpose, *names, fields=fields))


class TimedHandle(NamedTuple):
    """Name a delivery by its message, and by the time until which the message is hidden.

    It is all that remoting clients tell of a delivery. It proves nothing: whoever has the right to read for the group
    can make one.
    """

    queue_number: int
    queue_offset: int
    expires_at_ms: int

    def names(self, _delivery_id: int, visible_at_ms: int) -> bool:
        """Return whether it names the delivery with this id, whose message is hidden until this time."""
        return visible_at_ms == self.expires_at_ms


VERSION: Final = 2
LITE_TOPIC_BEGIN: Final = "."
"""Begins the lite topic's name: a character that neither base64 nor names of lite topics have."""
_TO_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_FIELDS: Final = Struct(">BIqqq")
_SIZE: Final = _FIELDS.size + PROOF_SIZE
assert _FIELDS.size == 29
assert _SIZE == 37


class ReceiptHandle(NamedTuple):
    """The decoded fields of a receipt handle."""

    queue_number: int
    queue_offset: int
    delivery_id: int
    expires_at_ms: int

    def names(self, delivery_id: int, _visible_at_ms: int) -> bool:
        """Return whether it names the delivery with this id, whose message is hidden until this time."""
        return delivery_id == self.delivery_id

    def encode(self, group: str, topic: str, key: HandleKey) -> str:
        """Return the handle as text. `topic` is the topic or light queue that the message was delivered from."""
        deliveries = [(self.queue_offset, self.delivery_id)]
        return encode_all(self.queue_number, deliveries, self.expires_at_ms, group=group, topic=topic, key=key)[0]

    @classmethod
    def decode(cls, text: str, group: str, topic: str, key: HandleKey) -> ReceiptHandle:
        """Decode a handle. Raises InvalidReceiptHandle unless `encode` made it for this group and topic."""
        try:
            raw = a2b_base64(text.partition(LITE_TOPIC_BEGIN)[0].encode("ascii").translate(_FROM_URL_SAFE))
        except (UnicodeEncodeError, Base64Error, ValueError):
            raise InvalidReceiptHandle("the receipt handle cannot be decoded") from None
        if len(raw) != _SIZE:
            raise InvalidReceiptHandle("the receipt handle has the wrong length")
        fields, proof = raw[: _FIELDS.size], raw[_FIELDS.size :]
        if fields[0] != VERSION or not key.proves(proof, Purpose.RECEIPT, group, topic, fields=fields):
            raise InvalidReceiptHandle(
                "the receipt handle belongs to another group or topic, or is not one of this broker"
            )
        return tuple.__new__(cls, _FIELDS.unpack(fields)[1:])  # half the time of the constructor


def encode_all(
    queue_number: int,
    deliveries: list[tuple[int, int]],
    expires_at_ms: int,
    *,
    group: str,
    topic: str,
    key: HandleKey,
) -> list[str]:
    """Return the handles of deliveries from one queue, each given as queue offset and delivery id.

    `topic` is the topic or light queue that the messages were delivered from.
    """
    light = parse_light_queue_name(topic) if is_light_queue(topic) else None
    if light is None and key.native is not None:
        return key.native.receipt_handles(key.raw, f"{group}\0{topic}\0", queue_number, deliveries, expires_at_ms)
    end = "" if light is None else f"{LITE_TOPIC_BEGIN}{light[1]}"
    begun = key.begun(Purpose.RECEIPT, group, topic)
    texts = []
    for queue_offset, delivery_id in deliveries:
        fields = _FIELDS.pack(VERSION, queue_number, queue_offset, delivery_id, expires_at_ms)
        proof = begun.copy()
        proof.update(fields)
        encoded = b2a_base64(fields + proof.digest(), newline=False).translate(_TO_URL_SAFE)
        texts.append(encoded.decode("ascii") + end)
    return texts


def lite_topic_of(text: str) -> str:
    """Return the lite topic that a handle names, or "" for none. Only `decode` checks whether the handle is genuine."""
    return text.partition(LITE_TOPIC_BEGIN)[2]


def topic_of(text: str, topic: str) -> str:
    """Return the topic, or the light queue of it, from which the handle's message was delivered."""
    lite_topic = lite_topic_of(text)
    return light_queue_name(topic, lite_topic) if lite_topic else topic
