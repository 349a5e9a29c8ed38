"""The opaque name of one transaction: 24 hexadecimal digits.

16 digits: the offset of its half message in the half queue. 8 digits: CRC-32 of them and the topic, so that the id of
another topic's transaction is refused.
"""

from __future__ import annotations

import re
from typing import Final

from isal.isal_zlib import crc32

from server.errors import InvalidTransactionId
from store.offsets import QueueOffset

_FORM: Final = re.compile(r"([0-9A-F]{16})([0-9A-F]{8})", re.ASCII)


def encode_transaction_id(queue_offset: int, topic: str) -> str:
    digits = f"{queue_offset:016X}"
    return f"{digits}{_sum(digits, topic):08X}"


def decode_transaction_id(text: str, topic: str) -> QueueOffset:
    """Raises InvalidTransactionId for anything that `encode_transaction_id` did not make for this topic."""
    found = _FORM.fullmatch(text)
    if found is None or int(found[2], 16) != _sum(found[1], topic):
        raise InvalidTransactionId("the transaction id is none of this topic")
    return QueueOffset(int(found[1], 16))


def _sum(digits: str, topic: str) -> int:
    return crc32(f"{digits}{topic}".encode())
