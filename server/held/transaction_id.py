"""The opaque id of one transaction: 32 hexadecimal digits.

The first 16 digits are the offset of its half message in the half queue. The other 16 are the proof
(`server.delivery.handle_key`) of the topic and of the first 16, so that the broker refuses the id of another topic's
transaction and one that it never gave out.

Older versions had 8 digits, a CRC-32, in place of the proof. Such an id
is accepted for a transaction that began before the store's key was made.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

from quarry_mq.server.delivery.handle_key import HandleKey, Purpose
from quarry_mq.server.errors import InvalidTransactionId
from quarry_mq.store.offsets import QueueOffset

_FORM: Final = re.compile(r"([0-9A-F]{16})([0-9A-F]{16}|[0-9A-F]{8})", re.ASCII)
_CHECK_DIGITS: Final = 8
_OFFSET_MAX: Final = 2**63 - 1


class NamedTransaction(NamedTuple):
    """The transaction that an id names. Without a proof anybody may have made the id."""

    queue_offset: QueueOffset
    is_proven: bool


def encode_transaction_id(queue_offset: int, topic: str, key: HandleKey) -> str:
    digits = f"{queue_offset:016X}"
    return digits + key.proof(Purpose.TRANSACTION, topic, fields=digits.encode()).hex().upper()


def decode_transaction_id(text: str, topic: str, key: HandleKey) -> NamedTransaction:
    """Decode an id. Raises InvalidTransactionId for any text that was not made for this topic."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidTransactionId("cannot found transaction data: the transaction id is none of this topic")
    digits, rest = found.groups()
    is_proven = len(rest) > _CHECK_DIGITS
    if is_proven:
        is_of_topic = key.proves(bytes.fromhex(rest), Purpose.TRANSACTION, topic, fields=digits.encode())
    else:
        is_of_topic = int(rest, 16) == crc32(f"{digits}{topic}".encode())
    if not is_of_topic or int(digits, 16) > _OFFSET_MAX:
        raise InvalidTransactionId("cannot found transaction data: the transaction id is none of this topic")
    return NamedTransaction(QueueOffset(int(digits, 16)), is_proven)
