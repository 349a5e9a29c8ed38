"""Points 21 to 31: sends that are refused, and the ones next to them that are not.

Order and figures of all rules: tests/wire/test_send_limits.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.metadata.topics import Permission
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker, both_ways

pytestmark = both_ways

Messages = list[definition.Message]
OK: Final = definition.OK
CONTROL: Final = "a\x07b"


def with_properties(properties: dict[str, str], **system: Any) -> Messages:
    made = message("orders", **system)
    made.user_properties.update(properties)
    return [made]


def fifo(group: str) -> Messages:
    return [message("fifo", message_group=group)]


def of_id(message_id: str) -> Messages:
    return [message("orders", message_id=message_id)]


def tagged(tag: str) -> Messages:
    return [message("orders", tag=tag)]


def keyed(key: str) -> Messages:
    return [message("orders", keys=[key])]


def later(topic: str, **system: Any) -> Messages:
    due = Timestamp()
    due.GetCurrentTime()
    due.seconds += 3_600
    return [message(topic, delivery_timestamp=due, **system)]


def half(recovery_s: int) -> Messages:
    return [
        message(
            "transactions",
            message_type=definition.TRANSACTION,
            orphaned_transaction_recovery_duration=Duration(seconds=recovery_s),
        )
    ]


SENDS: Final[dict[str, list[tuple[Callable[[], Messages], definition.Code]]]] = {
    "point_21_no_message": [(list, definition.MESSAGE_CORRUPTED)],
    "point_21_two_topics": [(lambda: [message("orders"), message("fifo")], definition.MESSAGE_CORRUPTED)],
    "point_22_an_empty_body": [(lambda: [message("orders", b"")], definition.MESSAGE_BODY_EMPTY)],
    "point_23_many_properties": [
        (lambda: with_properties({f"p{n}": "v" for n in range(128)}), OK),
        (lambda: with_properties({f"p{n}": "v" for n in range(129)}), definition.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
    "point_23_large_properties": [
        (lambda: with_properties({"p": "v" * 16_000}), OK),
        (lambda: with_properties({"p": "v" * 16_384}), definition.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
    "point_24_reserved_names": [
        (lambda: with_properties({"TRACE_ON": "v"}), definition.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (lambda: with_properties({"UNIQ_KEY": "v"}), definition.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ],
    "point_24_zero_bytes": [
        (lambda: with_properties({"a\0": "v"}), definition.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (lambda: with_properties({"a": "v\0"}), definition.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ],
    "point_25_tags": [
        (lambda: tagged(""), OK),
        (lambda: tagged("paid"), OK),
        (lambda: tagged(" "), definition.ILLEGAL_MESSAGE_TAG),
        (lambda: tagged("a|b"), definition.ILLEGAL_MESSAGE_TAG),
        (lambda: tagged(CONTROL), definition.ILLEGAL_MESSAGE_TAG),
    ],
    "point_25_keys": [
        (lambda: keyed("order-1"), OK),
        (lambda: keyed(" "), definition.ILLEGAL_MESSAGE_KEY),
        (lambda: keyed(CONTROL), definition.ILLEGAL_MESSAGE_KEY),
    ],
    "point_26_ids": [
        (lambda: of_id(""), definition.ILLEGAL_MESSAGE_ID),
        (lambda: of_id(" "), definition.ILLEGAL_MESSAGE_ID),
    ],
    "point_27_message_groups": [
        (lambda: fifo("g" * 63), OK),
        (lambda: fifo("g" * 64), definition.ILLEGAL_MESSAGE_GROUP),
        (lambda: fifo(" "), definition.ILLEGAL_MESSAGE_GROUP),
        (lambda: fifo(CONTROL), definition.ILLEGAL_MESSAGE_GROUP),
    ],
    "point_29_how_long_a_producer_is_left_alone": [
        (lambda: half(3_600), OK),
        (lambda: half(3_601), definition.BAD_REQUEST),
    ],
    "point_30_types_that_the_topic_does_not_take": [
        (lambda: later("orders"), definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (lambda: [message("orders", message_group="g")], definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (lambda: [message("fifo")], definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (lambda: later("delays", message_type=definition.NORMAL), OK),
    ],
    "point_31_topics_that_take_nothing": [
        (lambda: [message("unknown")], definition.TOPIC_NOT_FOUND),
        (lambda: [message("closed")], definition.FORBIDDEN),
    ],
}


@pytest.mark.parametrize("sends", SENDS.values(), ids=SENDS)
def test_points_21_to_31(with_broker: WithBroker, sends: list[tuple[Callable[[], Messages], definition.Code]]) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.topic("fifo", TopicType.FIFO)
        broker.topic("delays", TopicType.DELAY)
        broker.topic("transactions", TopicType.TRANSACTION)
        broker.store.topics.create(Topic("closed", TopicType.NORMAL, 2, 2, Permission.READ))
        stored = broker.store.messages.appended_up_to
        async with Client(broker.endpoint) as client:
            for number, (make, code) in enumerate(sends):
                answer = await client.send(*make())
                assert answer.status.code == code, (number, answer.status)
                if code != OK:
                    assert not any(entry.message_id for entry in answer.entries)
                    assert broker.store.messages.appended_up_to == stored
                stored = broker.store.messages.appended_up_to

    with_broker(test, topics={"auto_create": False})
