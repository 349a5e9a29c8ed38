"""Points 12 to 17: where the queues of a topic are, and who is to read them."""

from __future__ import annotations

from typing import Any, Final

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.store.metadata import READ_WRITE, Topic, TopicType
from quarry_mq.store.metadata.topics import Permission
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, producer_settings, resource
from tests.conformance.conftest import WithBroker

ACCEPTED: Final = {
    TopicType.NORMAL: [definition.NORMAL],
    TopicType.FIFO: [definition.FIFO],
    TopicType.DELAY: [definition.DELAY],
    TopicType.TRANSACTION: [definition.TRANSACTION],
    TopicType.PRIORITY: [definition.PRIORITY],
    TopicType.LITE: [definition.LITE],
    TopicType.MIXED: [definition.NORMAL, definition.FIFO, definition.DELAY, definition.TRANSACTION],
}
NOTHING: Final = Permission(0)
NOT_MADE: Final = {"auto_create": False}


async def route(client: Client, topic: str) -> Any:
    return await client.call("QueryRoute", service.QueryRouteRequest(topic=resource(topic)))


async def assignments(client: Client, topic: str, group: str) -> Any:
    request = service.QueryAssignmentRequest(topic=resource(topic), group=resource(group))
    return await client.call("QueryAssignment", request)


def test_point_12_a_route_names_every_queue(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=3)
        async with Client(broker.endpoint) as client:
            answer = await route(client, "orders")
        assert answer.status.code == definition.OK
        assert [queue.id for queue in answer.message_queues] == [0, 1, 2]
        for queue in answer.message_queues:
            assert queue.topic.name == "orders"
            assert queue.permission == definition.READ_WRITE
            assert queue.broker.id == 0
            assert queue.broker.name
            assert queue.broker.endpoints.addresses
            assert list(queue.accept_message_types) == [definition.NORMAL]

    with_broker(test)


@pytest.mark.parametrize("kind", list(TopicType))
def test_point_13_a_route_says_which_messages_the_topic_takes(with_broker: WithBroker, kind: TopicType) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", kind)
        async with Client(broker.endpoint) as client:
            answer = await route(client, "orders")
        for queue in answer.message_queues:
            assert list(queue.accept_message_types) == ACCEPTED[kind]

    with_broker(test)


def test_point_14_topics_that_are_not_there_or_cannot_be(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            assert (await route(client, "unknown")).status.code == definition.TOPIC_NOT_FOUND
            assert (await route(client, "a" * 127)).status.code == definition.TOPIC_NOT_FOUND
            for name in ("", "a b", "rmq_sys_x", "TBW102", "a" * 128):
                assert (await route(client, name)).status.code == definition.ILLEGAL_TOPIC, name

    with_broker(test, topics=NOT_MADE)


@pytest.mark.parametrize(
    ("read", "write", "permission", "expected"),
    [
        (4, 8, READ_WRITE, [definition.WRITE] * 4 + [definition.READ_WRITE] * 4),
        (8, 0, READ_WRITE, [definition.READ] * 8),
        (2, 2, NOTHING, [definition.NONE] * 2),
    ],
    ids=["more to write", "only to read", "neither"],
)
def test_point_15_queues_say_what_may_be_done_with_them(
    with_broker: WithBroker, read: int, write: int, permission: Permission, expected: list[definition.Permission]
) -> None:
    async def test(broker: RunningBroker) -> None:
        # as RocketMQ may have made it: here nobody makes a topic with no queue to write to
        broker.store.topics.add_missing([Topic("orders", TopicType.NORMAL, read, write, permission)])
        async with Client(broker.endpoint) as client:
            answer = await route(client, "orders")
        assert [queue.permission for queue in answer.message_queues] == expected
        assert [queue.id for queue in answer.message_queues] == list(range(len(expected)))

    with_broker(test)


@pytest.mark.parametrize(("fifo", "queues"), [(False, [-1]), (True, [0, 1, 2])], ids=["normal", "fifo"])
def test_point_16_a_group_is_assigned_the_broker_or_every_queue(
    with_broker: WithBroker, *, fifo: bool, queues: list[int]
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.FIFO, queues=3)
        broker.group("billing", fifo=fifo)
        async with Client(broker.endpoint) as client:
            answer = await assignments(client, "orders", "billing")
        assert answer.status.code == definition.OK
        assert [each.message_queue.id for each in answer.assignments] == queues
        assert all(each.message_queue.broker.endpoints.addresses for each in answer.assignments)

    with_broker(test)


def test_point_17_what_nobody_may_read_is_assigned_to_nobody(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.store.topics.create(Topic("orders", TopicType.NORMAL, 2, 2, Permission.WRITE))
        broker.topic("bills")
        async with Client(broker.endpoint) as client:
            await client.declare(producer_settings())
            assert (await assignments(client, "orders", "billing")).status.code == definition.FORBIDDEN
            for group in ("", "a b", "g" * 121):
                code = (await assignments(client, "bills", group)).status.code
                assert code == definition.ILLEGAL_CONSUMER_GROUP, group

    with_broker(test)
