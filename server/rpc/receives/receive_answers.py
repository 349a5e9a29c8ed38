"""Writes the answers to receives: each message is an item of the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from quarry_mq.protocol.messages.property_names import RESERVED_PROPERTIES
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.delivery import Delivered
from quarry_mq.server.wire.message_types import SPECIAL_PROPERTIES
from quarry_mq.server.wire.messages import RARE_PROPERTIES, fill_message
from quarry_mq.store.native import Native

MessageItems = Callable[[str, Sequence[Delivered]], list[bytes]]
"""Returns the items of messages, given the topic as the client named it."""

UNUSUAL_PROPERTIES: Final = RARE_PROPERTIES | SPECIAL_PROPERTIES
"""Messages with one of these properties are written in Python."""


def message_items(native: Native | None) -> MessageItems:
    """Return the function that writes items. The native part, if there is one, writes all plain ones at once."""
    if native is None:
        return lambda topic, messages: [_item(topic, each) for each in messages]
    write = native.ReceiveWriter(RESERVED_PROPERTIES, UNUSUAL_PROPERTIES).write

    def items(topic: str, messages: Sequence[Delivered]) -> list[bytes]:
        written = zip(write(topic, messages), messages, strict=True)
        return [_item(topic, each) if item is None else item for item, each in written]

    return items


def _item(topic: str, delivered: Delivered) -> bytes:
    response = service.ReceiveMessageResponse()
    fill_message(
        response.message,
        delivered.record,
        topic=topic,
        receipt_handle=delivered.receipt_handle,
        delivery_attempt=delivered.attempt,
        invisible_ms=delivered.invisible_ms,
    )
    return response.SerializeToString()
