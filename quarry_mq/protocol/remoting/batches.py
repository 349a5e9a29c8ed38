"""The body of a batch of messages, as remoting producers send it.

```text
batch    = message …           one after the other, without a count
message  = i32 size            of this message, with this field
           i32 magic           0; brokers do not look at it
           i32 CRC of the body 0; the same
           i32 flag            of the user
           i32 size + body
           i16 size + properties in their stored form (name 0x01 value 0x02, the last 0x02 may be missing)
```

Source: `MessageDecoder.encodeMessage` of RocketMQ 5.5.0. All integers are big-endian.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final, NamedTuple

_HEAD: Final = Struct(">iiiii")
_PROPERTIES_SIZE: Final = Struct(">h")


class BatchMalformed(ValueError):
    """The body of a batch cannot be taken apart. The text says where."""


class BatchedMessage(NamedTuple):
    """A batched message is one of several in the body of a batch."""

    flag: int
    body: bytes
    raw_properties: bytes


def split_batch(data: bytes, messages_max: int) -> list[BatchedMessage]:
    """Return the messages of a batch. Raises BatchMalformed, also for more than `messages_max` of them."""
    found: list[BatchedMessage] = []
    at = 0
    while at < len(data):
        if len(found) == messages_max:
            raise BatchMalformed(f"more than {messages_max} messages in a batch")
        try:
            size, _, _, flag, body_size = _HEAD.unpack_from(data, at)
            body_at = at + _HEAD.size
            (properties_size,) = _PROPERTIES_SIZE.unpack_from(data, body_at + max(body_size, 0))
        except error as cause:
            raise BatchMalformed(f"message {len(found)} of the batch ends too early") from cause
        properties_at = body_at + body_size + _PROPERTIES_SIZE.size
        end = properties_at + properties_size
        if body_size < 0 or properties_size < 0 or end > len(data) or size != end - at:
            raise BatchMalformed(f"message {len(found)} of the batch: its sizes do not fit together")
        found.append(BatchedMessage(flag, data[body_at : body_at + body_size], data[properties_at:end]))
        at = end
    return found
