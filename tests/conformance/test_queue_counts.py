"""The number of queues of a topic changes only where nothing that is read in order is unread."""

from __future__ import annotations

import grpc.aio
import pytest

from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.server.append.group_commit import queue_of_group
from quarry_mq.store.metadata import TopicType
from tests.conformance.broker import PATIENCE_S, RunningBroker
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker

MOVING = next(name for name in (f"g{number}" for number in range(100)) if queue_of_group(name, 8) > 1)
"""A message group that goes on in another queue when a topic gets eight in place of two."""


async def update(broker: RunningBroker, queues: int, *, break_order: bool = False, read_only: bool = False) -> str:
    """The refusal; the empty text for none."""
    request = pb.UpdateTopicRequest(name="orders", read_queues=queues, write_queues=queues, break_order=break_order)
    if read_only:
        request.permission = pb.PERMISSION_READ
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        stub = AdminServiceStub(channel)
        try:
            await stub.UpdateTopic(request, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}".removeprefix("FAILED_PRECONDITION: ")
    return ""


def queues_of(broker: RunningBroker) -> tuple[int, int]:
    topic = broker.store.topics.get("orders")
    assert topic is not None
    return topic.read_queues, topic.write_queues


async def send(client: Client, *bodies: bytes) -> None:
    for body in bodies:
        await client.sent(message("orders", body, message_group=MOVING))


async def read(client: Client, group: str, count: int, *, acknowledge: bool = True) -> list[bytes]:
    """As many messages, in the order in which they come."""
    bodies: list[bytes] = []
    while len(bodies) < count:
        received = await client.receive(group, "orders", count=1, polling_s=5)
        assert received.messages
        bodies += [each.body for each in received.messages]
        if acknowledge:
            await client.ack(group, "orders", *received.handles)
    return bodies


async def read_nothing(client: Client, group: str) -> None:
    """Let the group begin before anything is there."""
    assert not (await client.receive(group, "orders", count=1)).messages


@pytest.mark.parametrize("kind", [TopicType.FIFO, TopicType.MIXED])
def test_more_queues_and_fewer_break_no_order(with_broker: WithBroker, kind: TopicType) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", kind, queues=2)
        broker.group("billing", fifo=True)
        async with Client(broker.endpoint) as client:
            await send(client, b"0")
            assert await read(client, "billing", 1) == [b"0"]
            await send(client, b"1", b"2", b"3")
            why = "topic orders: messages would lose their order: 3 that group billing has not read"
            assert await update(broker, 8) == why
            assert await update(broker, 1) == why
            assert queues_of(broker) == (2, 2)
            assert await read(client, "billing", 2) == [b"1", b"2"]
            assert await read(client, "billing", 1, acknowledge=False) == [b"3"]
            assert "1 that group billing has not read" in await update(broker, 8)
            broker.clock.push(60)
            assert await read(client, "billing", 1) == [b"3"]
            assert await update(broker, 8) == ""
            await send(client, b"4")
            assert "1 that group billing" in await update(broker, 2)
            assert await update(broker, 8, read_only=True) == ""
            assert queues_of(broker) == (8, 8)

    with_broker(test, delivery={"new_group_start": "earliest"})


def test_who_says_so_breaks_it(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.FIFO, queues=2)
        broker.group("billing", fifo=True)
        async with Client(broker.endpoint) as client:
            await read_nothing(client, "billing")
            await send(client, b"0", b"1")
            assert await update(broker, 8) != ""
            assert await update(broker, 8, break_order=True) == ""
            assert queues_of(broker) == (8, 8)

    with_broker(test)


def test_what_no_group_has_read_is_unread(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.FIFO, queues=2)
        assert await update(broker, 3) == ""
        async with Client(broker.endpoint) as client:
            await send(client, b"0", b"1")
            assert "2 that no group has read so far" in await update(broker, 8)
            assert await read(client, "audit", 2, acknowledge=False) == [b"0", b"1"]
            assert await update(broker, 8) == "", "a group without order loses none"

    with_broker(test, delivery={"new_group_start": "earliest"})


def test_normal_topics_change_as_before(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=2)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders"))
        assert await update(broker, 8) == ""
        broker.store.topics.delete("orders")
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            stub = AdminServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
                await stub.UpdateTopic(pb.UpdateTopicRequest(name="orders", write_queues=4))

    with_broker(test)
