"""Topics and groups that are changed or deleted under the calls of clients."""

from __future__ import annotations

import asyncio

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, consumer_settings, message
from tests.conformance.conftest import WithBroker


def test_deleting_a_topic_ends_its_waiting_receives_and_the_next_ones_are_told(with_broker: WithBroker) -> None:
    """rmq#9792: asking for it again does not bring it back."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            await client.declare(consumer_settings("billing", "orders"))
            waiting = asyncio.ensure_future(client.receive("billing", "orders", polling_s=60, deadline_s=90))
            await until(lambda: broker.broker._delivery.waiting_polls == 1, "the receive waits")
            broker.broker._administration.delete_topic("orders")
            ended = await waiting
            assert ended.code == definition.MESSAGE_NOT_FOUND
            assert (await client.receive("billing", "orders", polling_s=6)).code == definition.TOPIC_NOT_FOUND
            assert broker.store.topics.get("orders") is None

    with_broker(test)


def test_a_topic_made_again_shows_nothing_of_the_old_one_and_all_of_its_own(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            for _ in range(5):
                await client.sent(message("orders"))
            old = await client.receive("billing", "orders", count=3, invisible_s=60)
            broker.broker._administration.delete_topic("orders")
            broker.topic("orders", queues=1)
            [sent] = await client.sent(message("orders"))
            assert (await client.receive("billing", "orders")).ids == [sent]
            answer = await client.ack("billing", "orders", *old.handles)
            assert answer.status.code == definition.INVALID_RECEIPT_HANDLE
            broker.clock.push(61)
            assert (await client.receive("billing", "orders")).ids == [sent], "that of the new topic alone"

    with_broker(test)


def test_a_group_deleted_with_messages_in_flight_begins_again(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            sent = [(await client.sent(message("orders")))[0] for _ in range(4)]
            first = await client.receive("billing", "orders", invisible_s=None)
            broker.broker._administration.delete_group("billing")
            assert broker.broker._delivery.inflight_count == 0
            again = await client.receive("billing", "orders")
            assert sorted(again.ids) == sorted(sent)
            assert {each.system_properties.delivery_attempt for each in again.messages} == {1}
            answer = await client.ack("billing", "orders", *first.handles)
            assert answer.status.code == definition.INVALID_RECEIPT_HANDLE

    with_broker(test)


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_sends_that_were_accepted_are_answered_before_the_broker_stops(
    with_broker: WithBroker, durability: str
) -> None:
    sent: list[str] = []

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        client = Client(broker.endpoint)
        await client.sent(message("orders"))
        sending = [asyncio.ensure_future(client.send(message("orders"))) for _ in range(50)]
        await until(lambda: broker.store.messages.appended_up_to > 1_000, "the broker takes some")
        await broker.broker._stop_front(5)
        await broker.broker._commit.drain()
        for answer in await asyncio.gather(*sending, return_exceptions=True):
            if not isinstance(answer, BaseException):
                assert answer.status.code == definition.OK
                sent.extend(entry.message_id for entry in answer.entries)
        await client.vanish()

    async def all_there(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            received: list[str] = []
            while ids := (await client.receive("billing", "orders")).ids:
                received += ids
            assert set(sent) <= set(received)

    with_broker(test, store={"durability": durability})
    assert sent
    with_broker(all_there)
