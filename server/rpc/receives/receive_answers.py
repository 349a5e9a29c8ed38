"""What receives are answered with: each message as an item of the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from quarry_mq.server._generated.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.delivery import Delivered
from quarry_mq.server.property_names import RESERVED_PROPERTIES
from quarry_mq.server.wire.message_types import SPECIAL_PROPERTIES
from quarry_mq.server.wire.messages import RARE_PROPERTIES, fill_message
from quarry_mq.store.native import Native

MessageItems = Callable[[str, Sequence[Delivered]], list[bytes]]
"""The items of messages, by the topic that they were asked for by."""

UNUSUAL_PROPERTIES: Final = RARE_PROPERTIES | SPECIAL_PROPERTIES
"""Messages with one of these are written in Python."""


def message_items(native: Native | None) -> MessageItems:
    """How items are made: with the native part, if there is one, all of those that are plain at once."""
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
