"""Point 37: who waits gets nothing that a new receive would be refused by the time when a message comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.store.metadata import Group, Permission, Topic, TopicType
from quarry_mq.store.security.model import Resource
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, Received, message
from tests.conformance.conftest import WithBroker, both_ways
from tests.conformance.lite import GROUP, PARENT, LiteClient, send
from tests.conformance.secured import SECURED, add_user, client_of, disable
from tests.conformance.test_pull import Pull, pull

pytestmark = both_ways

Change = Callable[[RunningBroker], None]


def group_of(broker: RunningBroker, name: str) -> Group:
    found = broker.store.groups.get(name)
    assert found is not None
    return found


def topic_of(broker: RunningBroker, name: str) -> Topic:
    found = broker.store.topics.get(name)
    assert found is not None
    return found


def group_disabled(broker: RunningBroker) -> None:
    broker.store.groups.update(replace(group_of(broker, "billing"), enabled=False))


def group_bound_to_lite_topics(broker: RunningBroker) -> None:
    group = group_of(broker, "billing")
    broker.store.groups.update(replace(group, attributes={"lite.bind.topic": "elsewhere"}))


def topic_not_readable(broker: RunningBroker) -> None:
    broker.store.topics.update(replace(topic_of(broker, "orders"), permission=Permission.WRITE))


def undo(broker: RunningBroker) -> None:
    topic, group = topic_of(broker, "orders"), group_of(broker, "billing")
    broker.store.topics.update(replace(topic, read_queues=1, permission=Permission.READ | Permission.WRITE))
    broker.store.groups.update(replace(group, enabled=True, attributes={}))


def waiting(client: Client, group: str = "billing", **terms: object) -> asyncio.Future[Received]:
    return asyncio.ensure_future(client.receive(group, "orders", polling_s=60, deadline_s=90, **terms))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (group_disabled, definition.FORBIDDEN),
        (group_bound_to_lite_topics, definition.ILLEGAL_TOPIC),
        (topic_not_readable, definition.FORBIDDEN),
    ],
)
def test_point_37_who_waits_is_refused_what_a_new_receive_is(
    with_broker: WithBroker, change: Change, code: int
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        broker.group("billing")
        async with Client(broker.endpoint) as consumer, Client(broker.endpoint) as producer:
            one, other = waiting(consumer), waiting(consumer)
            await until(lambda: broker.delivery.waiting_polls == 2, "the receives wait")
            change(broker)
            [sent] = await producer.sent(message("orders"))
            refused = await consumer.receive("billing", "orders")
            assert refused.code == code
            for each in (one, other):
                assert ((await each).status, (await each).ids) == (refused.status, [])
            assert broker.delivery.inflight_count == 0, "nobody was given anything"
            undo(broker)
            received = await consumer.receive("billing", "orders")
            assert received.ids == [sent]
            assert received.messages[0].system_properties.delivery_attempt == 1

    with_broker(test)


def test_point_37_a_refusal_of_one_group_keeps_nothing_from_another(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        broker.group("billing")
        async with Client(broker.endpoint) as consumer, Client(broker.endpoint) as producer:
            refused, served = waiting(consumer), waiting(consumer, "archive")
            await until(lambda: broker.delivery.waiting_polls == 2, "the receives wait")
            group_disabled(broker)
            sent = await producer.sent(message("orders"))
            assert (await refused).code == definition.FORBIDDEN
            assert (await served).ids == sent

    with_broker(test)


def test_point_37_who_waits_is_served_as_its_group_is_by_then(with_broker: WithBroker) -> None:
    """In order, and with as many attempts as are allowed by now."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.FIFO, queues=1)
        broker.group("billing")
        async with Client(broker.endpoint) as consumer, Client(broker.endpoint) as producer:
            receives = {waiting(consumer, count=1), waiting(consumer, count=1)}
            await until(lambda: broker.delivery.waiting_polls == 2, "the receives wait")
            broker.store.groups.update(replace(group_of(broker, "billing"), fifo=True, max_attempts=1))
            await producer.sent(message("orders", b"1", message_group="g"))
            await producer.sent(message("orders", b"2", message_group="g"))
            [first], [second] = await asyncio.wait(receives, return_when=asyncio.FIRST_COMPLETED)
            got = await first
            assert [each.body for each in got.messages] == [b"1"]
            assert broker.delivery.waiting_polls == 1, "the queue is blocked"
            answer = await consumer.change("billing", "orders", got.handles[0], 0)
            assert answer.status.code == definition.OK
            assert [each.body for each in (await second).messages] == [b"2"], "the first is a dead letter"

    with_broker(test)


@pytest.mark.parametrize("right", ["user", "group", "topic"])
def test_point_37_whose_right_is_gone_gets_nothing_though_it_waited_before(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch, right: str
) -> None:
    async def test(broker: RunningBroker) -> None:
        # it ends all that wait, a moment later: who is served meanwhile is the question
        monkeypatch.setattr(broker.messaging, "_revocation", None)
        broker.topic("orders", queues=1)
        add_user(broker, "reader", "group:billing sub", "topic:orders sub")
        add_user(broker, "writer", "topic:orders pub")
        async with client_of(broker, "reader") as consumer, client_of(broker, "writer") as producer:
            refused = waiting(consumer)
            pulled = asyncio.ensure_future(pull(consumer, "orders", 0, group="billing", polling_s=60))
            await until(lambda: broker.delivery.waiting_polls == 1, "the receive waits")
            await until(lambda: len(broker.messaging.components.pulls) == 1, "the pull waits")
            if right == "user":
                disable(broker, "reader")
            else:
                name = {"group": "billing", "topic": "orders"}[right]
                broker.store.policies.remove_rule("reader", Resource.parse(f"{right}:{name}"), None)
            await producer.sent(message("orders"))
            assert ((await refused).code, (await refused).ids) == (definition.UNAUTHORIZED, [])
            assert ((await pulled).code, (await pulled).bodies) == (definition.UNAUTHORIZED, [])
            assert broker.delivery.inflight_count == 0

    with_broker(test, security=SECURED, delivery={"new_group_start": "earliest"})


@pytest.mark.parametrize("change", [group_disabled, topic_not_readable])
def test_a_pull_that_waits_is_refused_what_a_new_one_is(with_broker: WithBroker, change: Change) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        broker.group("billing")
        async with Client(broker.endpoint) as consumer, Client(broker.endpoint) as producer:
            pulled = await _waiting_pull(broker, consumer)
            change(broker)
            await producer.sent(message("orders"))
            assert ((await pulled).code, (await pulled).bodies) == (definition.FORBIDDEN, [])

    with_broker(test)


def test_a_pull_that_waits_gets_nothing_of_a_topic_that_was_made_again(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as consumer, Client(broker.endpoint) as producer:
            for _ in range(3):
                await producer.sent(message("orders"))
            pulled = await _waiting_pull(broker, consumer, 3)
            broker.broker._administration.delete_topic("orders")
            broker.topic("orders", queues=1)
            await producer.sent(message("orders"))
            assert ((await pulled).code, (await pulled).bodies) == (definition.ILLEGAL_OFFSET, [])

    with_broker(test)


async def _waiting_pull(broker: RunningBroker, client: Client, offset: int = 0) -> asyncio.Future[Pull]:
    pulled = asyncio.ensure_future(pull(client, "orders", offset, group="billing", polling_s=60))
    await until(lambda: len(broker.messaging.components.pulls) == 1, "the pull waits")
    return pulled


@pytest.mark.parametrize("changed", ["group", "parent"])
def test_point_57_who_waits_for_lite_topics_is_refused_what_a_new_receive_is(
    with_broker: WithBroker, changed: str
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic(PARENT, TopicType.LITE)
        async with LiteClient(broker.endpoint) as client, Client(broker.endpoint) as producer:
            await client.start()
            await client.add("a")
            received = asyncio.ensure_future(client.got(polling_s=60, deadline_s=90))
            await until(lambda: broker.delivery.waiting_polls == 1, "the receive waits")
            groups, topics = broker.store.groups, broker.store.topics
            if changed == "group":
                groups.update(replace(group_of(broker, GROUP), enabled=False))
            else:
                topics.update(replace(topic_of(broker, PARENT), permission=Permission.WRITE))
            await send(producer, "a", b"1")
            assert ((await received).code, (await received).ids) == (definition.FORBIDDEN, [])
            assert broker.delivery.inflight_count == 0

    with_broker(test)
