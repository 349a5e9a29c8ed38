"""Points 32, 46, 47 and 50 to 52: order, and messages that were delivered often enough."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.store.metadata import TopicType
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, consumer_settings, message, resource
from tests.conformance.conftest import WithBroker


async def dead_letter(client: Client, group: str, topic: str, handle: str) -> Any:
    return await client.call(
        "ForwardMessageToDeadLetterQueue",
        service.ForwardMessageToDeadLetterQueueRequest(
            group=resource(group), topic=resource(topic), receipt_handle=handle, message_id="any"
        ),
    )


@pytest.mark.parametrize("kind", [TopicType.FIFO, TopicType.MIXED])
def test_point_32_a_message_group_has_one_queue(with_broker: WithBroker, kind: TopicType) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", kind, queues=8)
        async with Client(broker.endpoint) as client:
            for group in ("a", "b", "c", "d"):
                answers = [await client.send(message("orders", message_group=group)) for _ in range(5)]
                offsets = [answer.entries[0].offset for answer in answers]
                assert offsets == list(range(offsets[0], offsets[0] + 5))
            received = await client.receive("billing", "orders")
            queues: dict[str, set[int]] = {}
            for each in received.messages:
                system = each.system_properties
                assert system.message_type == definition.FIFO
                queues.setdefault(system.message_group, set()).add(system.queue_id)
            assert {group: len(numbers) for group, numbers in queues.items()} == dict.fromkeys("abcd", 1)

    with_broker(test)


def test_point_50_a_group_in_order_gets_one_after_the_other(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.FIFO)
        broker.group("billing", fifo=True)
        async with Client(broker.endpoint) as client, Client(broker.endpoint) as other:
            answer = await client.declare(consumer_settings("billing", "orders", kind=definition.PUSH_CONSUMER))
            assert answer.settings.subscription.fifo
            for body in (b"1", b"2", b"3"):
                await client.sent(message("orders", body, message_group="g"))
            bodies = []
            for number in range(3):
                received = await client.receive("billing", "orders", count=1, attempt_id=f"a{number}")
                blocked = await other.receive("billing", "orders", count=1, attempt_id=f"b{number}")
                assert blocked.code == definition.MESSAGE_NOT_FOUND
                bodies += [each.body for each in received.messages]
                await client.ack("billing", "orders", *received.handles)
            assert bodies == [b"1", b"2", b"3"]

    with_broker(test)


def test_point_50_who_waits_gets_the_next_one_at_the_acknowledgement(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.FIFO)
        broker.group("billing", fifo=True)
        async with Client(broker.endpoint) as client, Client(broker.endpoint) as other:
            for body in (b"1", b"2"):
                await client.sent(message("orders", body, message_group="g"))
            received = await client.receive("billing", "orders", count=1)
            waiting = asyncio.ensure_future(other.receive("billing", "orders", polling_s=60, deadline_s=90))
            await until(lambda: broker.broker._delivery.waiting_polls == 1, "the other waits")
            await client.ack("billing", "orders", *received.handles)
            assert [each.body for each in (await waiting).messages] == [b"2"]

    with_broker(test)


def test_point_51_the_same_attempt_gets_the_same_messages(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.FIFO)
        broker.group("billing", fifo=True)
        async with Client(broker.endpoint) as client:
            for body in (b"1", b"2"):
                await client.sent(message("orders", body, message_group="g"))
            for _ in range(3):
                received = await client.receive("billing", "orders", attempt_id="a")
                assert [each.body for each in received.messages] == [b"1", b"2"]
                assert {each.system_properties.delivery_attempt for each in received.messages} == {1}
            answer = await client.ack("billing", "orders", *received.handles)
            assert answer.status.code == definition.OK

    with_broker(test)


def test_point_52_what_is_missing_of_a_batch_comes_before_all_that_follows(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.FIFO)
        broker.group("billing", fifo=True)
        async with Client(broker.endpoint) as client:
            for body in (b"1", b"2", b"3", b"4"):
                await client.sent(message("orders", body, message_group="g"))
            batch = await client.receive("billing", "orders", count=3, invisible_s=600)
            await client.ack("billing", "orders", batch.handles[0], batch.handles[2])
            broker.clock.push(601)
            again = await client.receive("billing", "orders")
            found = [(each.body, each.system_properties.delivery_attempt) for each in again.messages]
            assert found == [(b"2", 2)]
            waiting = asyncio.ensure_future(client.receive("billing", "orders", polling_s=60, deadline_s=90))
            await until(lambda: broker.delivery.waiting_polls == 1, "nothing new comes before")
            await client.ack("billing", "orders", *again.handles)
            assert [each.body for each in (await waiting).messages] == [b"4"]

    with_broker(test)


def test_point_46_a_message_that_nobody_acknowledges_becomes_a_dead_letter(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        broker.group("billing", max_attempts=2)
        async with Client(broker.endpoint) as client:
            sent = message("orders", b"bad", tag="t", keys=["k"], message_id="the-id")
            sent.user_properties["region"] = "x"
            await client.sent(sent)
            for attempt in (1, 2):
                received = await client.receive("billing", "orders", invisible_s=60)
                broker.clock.push(61)
                assert [each.system_properties.delivery_attempt for each in received.messages] == [attempt]
            assert not (await client.receive("billing", "orders")).ids
            letters = await client.receive("operators", "%DLQ%billing", polling_s=30)
            [letter] = letters.messages
            system = letter.system_properties
            assert (letter.body, system.tag, list(system.keys), system.message_id) == (b"bad", "t", ["k"], "the-id")
            assert dict(letter.user_properties) == {"region": "x"}
            assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("orders", "the-id")
            assert system.delivery_attempt == 1
            assert system.message_type == definition.NORMAL

    with_broker(test, delivery={"new_group_start": "earliest"})


def test_point_47_a_client_may_bury_a_message(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"bad"))
            received = await client.receive("billing", "orders", invisible_s=600)
            answer = await dead_letter(client, "billing", "orders", received.handles[0])
            assert answer.status.code == definition.OK
            broker.clock.push(601)
            assert not (await client.receive("billing", "orders")).ids
            letters = await client.receive("operators", "%DLQ%billing")
            assert [each.body for each in letters.messages] == [b"bad"]
            for handle in ("garbage", "", received.handles[0]):
                answer = await dead_letter(client, "billing", "orders", handle)
                assert answer.status.code == definition.INVALID_RECEIPT_HANDLE

    with_broker(test, delivery={"new_group_start": "earliest"})


def test_messages_of_higher_priority_come_first(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.PRIORITY, queues=4)
        async with Client(broker.endpoint) as client:
            for priority in (1, 0, 3, 2, 9):
                await client.sent(message("orders", str(priority).encode(), priority=priority))
            received = await client.receive("billing", "orders")
            assert [each.body for each in received.messages] == [b"3", b"9", b"2", b"1", b"0"]
            first = received.messages[0].system_properties
            assert (first.message_type, first.priority) == (definition.PRIORITY, 3)

    with_broker(test)
