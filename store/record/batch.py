"""A batch of RocketMQ's older clients is one message whose body holds inner messages, one after the other.

The inner message, big-endian:

| field             | bytes | type                           |
|-------------------|-------|--------------------------------|
| size              | 4     | i32, of this inner message     |
| magic             | 4     | i32, 0; ignored                |
| body CRC          | 4     | i32, 0; ignored                |
| flag              | 4     | i32                            |
| body length       | 4     | i32                            |
| body              | n     |                                |
| properties length | 2     | i16                            |
| properties        | p     | `store.record.properties`      |
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import Message
from quarry_mq.store.record.layout import PROPERTIES_LENGTH
from quarry_mq.store.record.properties import decode_properties

_INNER_HEAD: Final = Struct(">iiiii")
_INNER_SIZE_MINIMUM: Final = _INNER_HEAD.size + PROPERTIES_LENGTH.size

assert _INNER_HEAD.size == 20


def split_batch(outer: Message) -> list[Message]:
    """Return the messages of a batch, at least one, ready to be appended one after the other.

    Flag, body and properties are the inner message's, everything else is the outer one's; an inner message is never
    part of a transaction, so its prepared transaction offset is 0. Raises Invalid naming the position at which the
    batch is malformed.
    """
    data = outer.body
    messages = []
    position = 0
    while position < len(data):
        if len(data) - position < _INNER_SIZE_MINIMUM:
            raise _malformed(position, "the inner message is cut short")
        size, _magic, _crc, flag, body_length = _INNER_HEAD.unpack_from(data, position)
        body_start = position + _INNER_HEAD.size
        properties_start = body_start + body_length + PROPERTIES_LENGTH.size
        end = position + size
        if body_length < 0 or properties_start > end or end > len(data):
            raise _malformed(position, f"size {size} and body length {body_length} do not fit")
        (properties_length,) = PROPERTIES_LENGTH.unpack_from(data, body_start + body_length)
        if properties_start + properties_length != end:
            raise _malformed(position, f"properties length {properties_length} does not fit size {size}")
        messages.append(
            outer._replace(
                flag=flag,
                body=data[body_start : body_start + body_length],
                properties=decode_properties(data[properties_start:end]),
                prepared_transaction_offset=0,
            )
        )
        position = end
    if not messages:
        raise Invalid("batch: it holds no message")
    return messages


def _malformed(position: int, reason: str) -> Invalid:
    return Invalid(f"batch: at byte {position}: {reason}")
