"""Traces of messages, from a running broker."""

from __future__ import annotations

import grpc.aio
import pytest

from quarry_mq.protocol.proto.quarry.admin.v1 import query_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.query_pb2_grpc import QueryServiceStub
from quarry_mq.store.metadata import Group, TopicType
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker
from tests.conformance.lite import PARENT, LiteClient, send
from tests.conformance.test_queries import INDEX, command

Traced = list[tuple[str, str, int, str | None]]


async def trace(broker: RunningBroker, topic: str, key: str) -> list[Traced]:
    """Of each message, the newest first: queue, group, attempts and state."""
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        stub = QueryServiceStub(channel)
        answer = await stub.TraceMessages(pb.QueryMessagesRequest(topic=topic, key=key))
    found: list[Traced] = []
    for each in answer.messages:
        assert all(queue.is_there for queue in each.queues)
        found.append(
            [
                (queue.topic, group.group, group.attempts, pb.MessageState.Name(group.state)[14:])
                for queue in each.queues
                for group in queue.groups
            ]
        )
    return found


def test_what_has_become_of_a_message_for_each_group(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            for body in (b"1", b"2", b"3"):
                await client.sent(message("orders", body, message_id=f"M{body.decode()}"))
            assert await trace(broker, "orders", "M1") == [[]]  # nobody has read the queue
            first = await client.receive("billing", "orders", count=1)
            assert await trace(broker, "orders", "M1") == [[("orders", "billing", 1, "IN_FLIGHT")]]
            assert await trace(broker, "orders", "M2") == [[("orders", "billing", 0, "WAITING")]]
            await client.ack("billing", "orders", *first.handles)
            second = await client.receive("billing", "orders", count=1)
            await client.change("billing", "orders", second.handles[0], 0.1)
            broker.clock.push(1)
            await client.receive("audit", "orders", count=1)
            assert await trace(broker, "orders", "M1") == [
                [("orders", "audit", 1, "IN_FLIGHT"), ("orders", "billing", 0, "DONE")]
            ]
            assert await trace(broker, "orders", "M2") == [
                [("orders", "audit", 0, "WAITING"), ("orders", "billing", 1, "RETRYING")]
            ]
            assert await trace(broker, "orders", "M9") == []

    with_broker(test, index=INDEX)


def test_a_message_of_a_lite_topic_is_followed_into_its_queue(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic(PARENT, TopicType.LITE, queues=1)
        broker.store.groups.create(Group("devices", attributes={"lite.bind.topic": PARENT}))
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            await client.add("a")
            await send(client, "a", b"1")
            [received] = (await client.got()).messages
            assert await trace(broker, PARENT, received.system_properties.message_id) == [
                [("%LMQ%$events$a", "devices", 1, "IN_FLIGHT")]
            ]

    with_broker(test, index=INDEX)


def test_what_is_refused(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            stub = QueryServiceStub(channel)
            for fields in ({"topic": "orders"}, {"key": "k"}, {"topic": "orders", "key": "k", "limit": 101}):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.TraceMessages(pb.QueryMessagesRequest(**fields))
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    with_broker(test, index=INDEX)


def test_the_command_shows_a_row_for_each_group(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"1", message_id="M1"))
            where = ("trace", "--topic", "orders", "--admin", broker.admin, "--key")
            status, [row], _ = await command(*where, "M1", of="message")
            assert (status, row["group"]) == (0, None)
            await client.receive("billing", "orders")
            status, [row], _ = await command(*where, "M1", of="message")
            assert (status, row["messageId"], row["group"], row["state"]) == (0, "M1", "billing", "in flight")
            status, rows, _ = await command(*where, "M9", of="message")
            assert (status, rows) == (1, [])

    with_broker(test, index=INDEX)
