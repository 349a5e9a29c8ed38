"""PullMessage, UpdateOffset, GetOffset: a client that keeps its own place in each queue. No official one does."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, message, resource
from tests.conformance.conftest import WithBroker


def queue_of(topic: str, number: int = 0) -> definition.MessageQueue:
    return definition.MessageQueue(topic=resource(topic), id=number)


class Pull:
    """One pull: what it brought, and where to go on."""

    def __init__(self, code: int, bodies: list[bytes], next_offset: int) -> None:
        self.code, self.bodies, self.next_offset = code, bodies, next_offset


async def pull(client: Client, topic: str, offset: int, **terms: Any) -> Pull:
    request = service.PullMessageRequest(
        group=resource(terms.get("group", "archive")),
        message_queue=queue_of(topic),
        offset=offset,
        batch_size=terms.get("count", 32),
        filter_expression=definition.FilterExpression(
            type=terms.get("kind", definition.TAG), expression=terms.get("filter", "*")
        ),
    )
    request.long_polling_timeout.FromMilliseconds(int(terms.get("polling_s", 0) * 1000))
    call = client.stub.PullMessage(request, metadata=client.metadata, timeout=90)
    items = [item async for item in call]
    assert await call.code() is grpc.StatusCode.OK
    kinds = [item.WhichOneof("content") for item in items]
    assert kinds[0] == "status"
    found = [item.message.body for item in items if item.WhichOneof("content") == "message"]
    return Pull(items[0].status.code, found, items[-1].next_offset if kinds[-1] == "next_offset" else -1)


async def offset_of(client: Client, group: str, topic: str) -> Any:
    return await client.call(
        "GetOffset", service.GetOffsetRequest(group=resource(group), message_queue=queue_of(topic))
    )


async def commit(client: Client, group: str, topic: str, offset: int) -> int:
    answer = await client.call(
        "UpdateOffset",
        service.UpdateOffsetRequest(group=resource(group), message_queue=queue_of(topic), offset=offset),
    )
    code: int = answer.status.code
    return code


def test_every_client_reads_every_message(with_broker: WithBroker) -> None:
    """Broadcasting: nothing of one client's reading is another's."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as one, Client(broker.endpoint) as other:
            for number in range(5):
                await one.sent(message("orders", b"%d" % number))
            for client in (one, other, one):
                first = await pull(client, "orders", 0, count=3)
                assert (first.code, first.bodies, first.next_offset) == (definition.OK, [b"0", b"1", b"2"], 3)
                rest = await pull(client, "orders", first.next_offset)
                assert (rest.bodies, rest.next_offset) == ([b"3", b"4"], 5)
            assert broker.broker._delivery.inflight_count == 0

    with_broker(test)


def test_a_pull_makes_no_group_and_a_place_that_is_kept_does(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders"))
            assert (await pull(client, "orders", 0)).code == definition.OK
            assert broker.store.groups.get("archive") is None
            assert await commit(client, "archive", "orders", 1) == definition.OK
            assert broker.store.groups.get("archive") is not None

    with_broker(test)


def test_a_group_that_may_not_be_made_is_refused(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders"))
            assert (await pull(client, "orders", 0)).code == definition.CONSUMER_GROUP_NOT_FOUND
            broker.group("archive")
            assert (await pull(client, "orders", 0)).bodies == [b"body"]

    with_broker(test, groups={"auto_create": False})


def test_a_pull_at_the_end_waits_for_what_comes(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            nothing = await pull(client, "orders", 0, polling_s=0.3)
            assert (nothing.code, nothing.next_offset) == (definition.MESSAGE_NOT_FOUND, 0)
            waiting = asyncio.ensure_future(pull(client, "orders", 0, filter="B", polling_s=60))
            await until(lambda: len(broker.broker._pulls) == 1, "the pull waits")
            await client.sent(message("orders", b"not wanted", tag="A"))
            await client.sent(message("orders", b"wanted", tag="B"))
            found = await waiting
            assert (found.bodies, found.next_offset) == ([b"wanted"], 2)

    with_broker(test)


def test_what_a_filter_passes_over_is_not_looked_at_again(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            for tag in "ABAB":
                await client.sent(message("orders", tag.encode(), tag=tag))
            found = await pull(client, "orders", 0, filter="B")
            assert (found.bodies, found.next_offset) == ([b"B", b"B"], 4)
            sql = await pull(client, "orders", 0, kind=definition.SQL, filter="TAGS = 'A'")
            assert (sql.bodies, sql.next_offset) == ([b"A", b"A"], 4)

    with_broker(test)


@pytest.mark.parametrize(("offset", "following"), [(-1, 0), (7, 3), (2**62, 3)])
def test_an_offset_that_the_queue_does_not_have(with_broker: WithBroker, offset: int, following: int) -> None:
    """The answer says where to go on."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            for _ in range(3):
                await client.sent(message("orders"))
            found = await pull(client, "orders", offset)
            assert (found.code, found.next_offset) == (definition.ILLEGAL_OFFSET, following)
            assert await commit(client, "archive", "orders", offset) == definition.ILLEGAL_OFFSET

    with_broker(test)


def test_a_group_may_keep_its_place_with_the_broker(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            for number in range(3):
                await client.sent(message("orders", b"%d" % number))
            assert (await offset_of(client, "archive", "orders")).status.code == definition.OFFSET_NOT_FOUND
            assert await commit(client, "archive", "orders", 2) == definition.OK
            assert (await offset_of(client, "archive", "orders")).offset == 2
            received = await client.receive("archive", "orders")
            assert [each.body for each in received.messages] == [b"2"]
            for topic, code in (("unknown", definition.TOPIC_NOT_FOUND), ("a b", definition.ILLEGAL_TOPIC)):
                assert (await pull(client, topic, 0)).code == code
                assert await commit(client, "archive", topic, 0) == code

    with_broker(test)
