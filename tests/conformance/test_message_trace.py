"""Traces of messages, from a running broker."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.quarry.admin.v1 import query_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.query_pb2_grpc import QueryServiceStub
from quarry_mq.server.admin import message_lookup
from quarry_mq.store.metadata import Group, TopicType
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker
from tests.conformance.lite import PARENT, LiteClient, send
from tests.conformance.test_queries import INDEX, command

Traced = list[tuple[str, str, int | None, str | None]]


def attempts_of(group: pb.GroupTrace) -> int | None:
    return group.attempts if group.HasField("attempts") else None


async def trace(broker: RunningBroker, topic: str, key: str) -> list[Traced]:
    """Return queue, group, attempts and state of each message, the newest first."""
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        stub = QueryServiceStub(channel)
        answer = await stub.TraceMessages(pb.QueryMessagesRequest(topic=topic, key=key))
    found: list[Traced] = []
    for each in answer.messages:
        assert all(queue.is_there for queue in each.queues)
        found.append(
            [
                (queue.topic, group.group, attempts_of(group), pb.MessageState.Name(group.state)[14:])
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
                [("orders", "audit", 1, "IN_FLIGHT"), ("orders", "billing", None, "DONE")]
            ]
            assert await trace(broker, "orders", "M2") == [
                [("orders", "audit", 0, "WAITING"), ("orders", "billing", 1, "RETRYING")]
            ]
            assert await trace(broker, "orders", "M9") == []

    with_broker(test, index=INDEX)


def in_json(row: dict[str, Any]) -> list[dict[str, object]]:
    groups: list[dict[str, object]] = row["queues"][0]["groups"]
    return groups


async def dead_letter(client: Client, broker: RunningBroker, *, attempts: int) -> None:
    """Let a client receive a message of `orders` so many times, and give it up."""
    for _ in range(attempts):
        received = await client.receive("billing", "orders", count=1)
        await client.change("billing", "orders", received.handles[0], 0.1)
        broker.clock.push(1)
    received = await client.receive("billing", "orders", count=1)
    request = service.ForwardMessageToDeadLetterQueueRequest(
        group={"name": "billing"}, topic={"name": "orders"}, receipt_handle=received.handles[0], message_id="M"
    )
    answer = await client.call("ForwardMessageToDeadLetterQueue", request)
    assert answer.status.code == definition.OK


@pytest.mark.parametrize("index", [INDEX, {}], ids=["with an index", "without"])
def test_a_dead_letter_is_told_from_an_acknowledged_message(with_broker: WithBroker, index: dict[str, object]) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            for number in range(3):
                await client.sent(message("orders", b"%d" % number, message_id=f"M{number}"))
            first = await client.receive("billing", "orders", count=1)
            await client.ack("billing", "orders", *first.handles)
            await dead_letter(client, broker, attempts=2)
            await dead_letter(client, broker, attempts=0)
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            groups = []
            for offset in range(3):
                place = pb.GetMessageRequest(topic="orders", place=pb.QueuePlace(queue=0, offset=offset))
                [group] = (await QueryServiceStub(channel).GetMessage(place)).message.queues[0].groups
                groups.append(group)
        assert [(each.state, attempts_of(each)) for each in groups] == [
            (pb.MESSAGE_STATE_DONE, None),
            (pb.MESSAGE_STATE_DEAD_LETTERED, 3),
            (pb.MESSAGE_STATE_DEAD_LETTERED, 1),
        ]
        assert not groups[0].HasField("dead_letter_offset")
        assert [each.dead_letter_offset for each in groups[1:]] == [0, 1]
        where = ("show", "--topic", "orders", "--queue", "0", "--admin", broker.admin, "--offset")
        _, [row], _ = await command(*where, "1", of="message")
        assert in_json(row) == [
            {
                "group": "billing",
                "state": "dead-lettered",
                "attempts": 3,
                "visibleAt": None,
                "clientId": None,
                "deadLetterOffset": 0,
            }
        ]
        _, [row], _ = await command(*where, "0", of="message")
        assert [(each["state"], each["attempts"]) for each in in_json(row)] == [("done", None)]

    with_broker(test, index=index)


def test_with_more_dead_letters_than_are_searched_no_more_is_said_than_is_known(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_lookup, "DEAD_LETTERS_SEARCHED", 1)

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            for number in range(3):
                await client.sent(message("orders", b"%d" % number, message_id=f"M{number}"))
            for _ in range(2):
                await dead_letter(client, broker, attempts=0)
            last = await client.receive("billing", "orders", count=1)
            await client.ack("billing", "orders", *last.handles)
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            states = []
            for offset in range(3):
                place = pb.GetMessageRequest(topic="orders", place=pb.QueuePlace(queue=0, offset=offset))
                [group] = (await QueryServiceStub(channel).GetMessage(place)).message.queues[0].groups
                states.append(group.state)
        assert states == [
            pb.MESSAGE_STATE_DEAD_LETTERED,
            pb.MESSAGE_STATE_DONE_OR_DEAD_LETTERED,
            pb.MESSAGE_STATE_DONE_OR_DEAD_LETTERED,
        ]

    with_broker(test)


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
