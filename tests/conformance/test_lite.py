"""Points 57 to 60 of docs/formats/protocol.md, and problems that RocketMQ's users met with lite topics."""

from __future__ import annotations

import asyncio

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.store.metadata import Group, TopicType
from quarry_mq.store.metadata.lite import LiteSubscriptionTable
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, consumer_settings, read_all
from tests.conformance.conftest import WithBroker
from tests.conformance.lite import GROUP, PARENT, LiteClient, found, send


def with_topics(broker: RunningBroker, group: str = GROUP, **attributes: str) -> None:
    """The parent topic and its group; attributes by the end of their names."""
    broker.topic(PARENT, TopicType.LITE)
    bound(broker, group, **attributes)


def bound(broker: RunningBroker, group: str, **attributes: str) -> None:
    names = {f"lite.sub.{name.replace('_', '.')}": value for name, value in attributes.items()}
    broker.store.groups.create(Group(group, attributes={"lite.bind.topic": PARENT, **names}))


def test_point_52_nothing_new_of_a_lite_topic_comes_before_what_is_missing_is_done(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            await client.add("a", "b")
            await send(client, "a", b"1", b"2", b"3", b"4")
            received = await client.got(count=3, invisible_s=60)
            assert found(received) == [("a", b"1"), ("a", b"2"), ("a", b"3")]
            for each in received.messages[1:]:
                await client.acknowledge(each)
            for _ in range(3):
                await client.give_back(received.messages[0], 0)
                received = await client.got(count=3, invisible_s=60, polling_s=20, deadline_s=60)
                assert found(received) == [("a", b"1")]
            await send(client, "b", b"5")
            assert found(await client.got(count=3)) == [("b", b"5")]
            await client.done(received)
            assert found(await client.got(count=3)) == [("a", b"4")]

    with_broker(test)


def test_point_57_the_four_actions(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            await client.add("a")
            await send(client, "a", b"1")
            received = await client.got()
            assert found(received) == [("a", b"1")]
            assert received.messages[0].system_properties.message_type == definition.LITE
            assert received.messages[0].topic.name == PARENT
            await client.done(received)

            await client.remove("a")
            await send(client, "a", b"2")
            assert (await client.got()).code == definition.MESSAGE_NOT_FOUND

            await client.replace("b")
            await send(client, "b", b"3")
            await send(client, "a", b"4")
            received = await client.got()
            assert found(received) == [("b", b"3")]
            await client.done(received)

            assert await client.sync(definition.COMPLETE_REMOVE) == definition.OK
            await send(client, "b", b"5")
            assert (await client.got()).code == definition.MESSAGE_NOT_FOUND

            await client.add("a", "b")  # where the group stands is kept
            assert sorted(found(await client.got())) == [("a", b"2"), ("a", b"4"), ("b", b"5")]

    with_broker(test)


def test_point_58_what_is_refused(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker, client_quota="10")
        broker.topic("other", TopicType.LITE)
        broker.topic("plain")
        broker.group("unbound")
        add = definition.PARTIAL_ADD
        async with LiteClient(broker.endpoint) as client:
            answer = await client.declare(consumer_settings(GROUP, PARENT, kind=definition.LITE_PUSH_CONSUMER))
            assert answer.settings.subscription.lite_subscription_quota == 10
            assert answer.settings.subscription.max_lite_topic_size == 64
            assert answer.settings.subscription.fifo
            for illegal in ("x" * 65, "a b", "ä", ""):
                assert await client.sync(add, "good", illegal) == definition.ILLEGAL_LITE_TOPIC
            assert await client.sync(add, "a", topic="other") == definition.ILLEGAL_TOPIC
            assert await client.sync(add, "a", topic="plain") == definition.ILLEGAL_TOPIC
            assert await client.sync(add, "a", topic="nowhere") == definition.TOPIC_NOT_FOUND
            client.group = "unbound"
            assert await client.sync(add, "a") == definition.ILLEGAL_CONSUMER_GROUP
            client.group = GROUP
            assert await client.sync(add, "x" * 64, "o", "o", "r", "d") == definition.OK
            assert await client.sync(add, "a", tail_n=-1) == definition.BAD_REQUEST

    with_broker(test)


def test_point_59_an_exclusive_group_gives_a_lite_topic_to_one_client(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker, model="Exclusive")
        async with LiteClient(broker.endpoint) as one, LiteClient(broker.endpoint) as two:
            await one.start()
            await two.start()
            await one.add("a", "b")
            await two.add("a")
            assert (await one.told()).notify_unsubscribe_lite_command.lite_topic == "a"
            await send(one, "a", b"1")
            assert (await one.got()).code == definition.MESSAGE_NOT_FOUND
            received = await two.got()
            assert found(received) == [("a", b"1")]
            await two.done(received)

            await one.replace("a", "b")  # it has not reacted: it is told again, and does not get it back
            assert (await one.told()).notify_unsubscribe_lite_command.lite_topic == "a"
            await send(one, "a", b"2")
            assert (await one.got()).code == definition.MESSAGE_NOT_FOUND

            await one.add("a")
            assert (await two.told()).notify_unsubscribe_lite_command.lite_topic == "a"
            assert found(await one.got()) == [("a", b"2")]
            assert (await two.got()).code == definition.MESSAGE_NOT_FOUND

    with_broker(test)


def test_a_client_that_gives_up_what_was_taken_away_may_have_it_again_later(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker, model="Exclusive", reset_offset_exclusive="true")
        async with LiteClient(broker.endpoint) as one, LiteClient(broker.endpoint) as two:
            await one.start()
            await two.start()
            await one.add("a")
            await send(one, "a", b"1")
            await one.done(await one.got())
            await two.add("a")
            assert found(await two.got()) == [("a", b"1")]  # a takeover begins anew in this group
            await one.told()
            await one.replace("b")
            await one.replace("a", "b")
            assert (await two.told()).notify_unsubscribe_lite_command.lite_topic == "a"

    with_broker(test)


def test_point_60_where_a_client_begins(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            await send(client, "a", b"1", b"2", b"3", b"4")

            async def begins(**option: int) -> list[bytes]:
                await client.remove("a")
                await client.add("a", **option)
                received = await client.got()
                await client.done(received)
                return [each.body for each in received.messages]

            assert await begins() == [b"1", b"2", b"3", b"4"]
            assert await begins() == []
            assert await begins(policy=definition.OffsetOption.LAST) == []
            assert await begins(policy=definition.OffsetOption.MIN) == [b"1", b"2", b"3", b"4"]
            assert await begins(tail_n=2) == [b"3", b"4"]
            assert await begins(offset=1) == [b"2", b"3", b"4"]
            assert await begins(offset=0) == [b"1", b"2", b"3", b"4"]  # rmq#10549: 0 is an offset
            assert await begins(tail_n=100) == [b"1", b"2", b"3", b"4"]
            assert await begins(offset=100) == []
            assert await begins(timestamp=0) == [b"1", b"2", b"3", b"4"]
            assert await begins(timestamp=broker.clock.wall_ms() + 1000) == []
            assert await begins(policy=definition.OffsetOption.MAX) == []
            await send(client, "a", b"5")
            assert found(await client.got()) == [("a", b"5")]

    with_broker(test)


def test_who_waits_gets_at_once_what_another_client_moved_the_group_back_to(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker, reset_offset_unsubscribe="true")
        async with LiteClient(broker.endpoint) as one, LiteClient(broker.endpoint) as two:
            await one.start()
            await two.start()
            await one.add("a", "b")
            await two.add("a", "b")
            for name in ("a", "b"):
                await send(one, name, b"1")
                await one.done(await one.got())

            for move in (
                one.remove("a"),
                one.sync(definition.COMPLETE_REMOVE),
                one.add("b", policy=definition.OffsetOption.MIN),
            ):
                waiting = asyncio.ensure_future(two.got(polling_s=8))
                await asyncio.sleep(0.1)
                await move
                received = await asyncio.wait_for(waiting, 60)
                assert [body for _, body in found(received)] == [b"1"]
                await two.done(received)

    with_broker(test)


def test_rmq_10549_a_reset_leaves_nothing_blocked(with_broker: WithBroker) -> None:
    """Messages in flight do not stop those that the reset brings back."""

    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            await client.add("a")
            await send(client, "a", b"1", b"2")
            stale = await client.got()
            assert len(stale.messages) == 2
            await client.remove("a")
            await client.add("a", policy=definition.OffsetOption.MIN)
            received = await client.got()
            assert found(received) == [("a", b"1"), ("a", b"2")]
            assert (await client.acknowledge(stale.messages[0])).status.code == definition.INVALID_RECEIPT_HANDLE
            await client.done(received)
            assert broker.delivery.inflight_count == 0

    with_broker(test)


def test_rmq_11163_a_lite_topic_works_that_is_born_after_its_subscription(with_broker: WithBroker) -> None:
    """A receive that waits already gets the first message of a new lite topic."""

    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        async with LiteClient(broker.endpoint) as client, Client(broker.endpoint) as producer:
            await client.start()
            await client.add("unborn")
            waiting = asyncio.ensure_future(read_all(client.start_receive(GROUP, PARENT, polling_s=60, deadline_s=90)))
            await until(lambda: broker.delivery.waiting_polls == 1, "the receive waits")
            await send(producer, "unborn", b"1")
            assert found(await waiting) == [("unborn", b"1")]

    with_broker(test)


def test_rmq_11191_a_lite_topic_goes_on_after_each_acknowledgement(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            await client.add("a")
            await send(client, "a", *(b"%d" % number for number in range(5)))
            for number in range(5):
                received = await client.got(count=1, polling_s=2.0)
                assert found(received) == [("a", b"%d" % number)]
                assert (await client.got(count=1)).code == definition.MESSAGE_NOT_FOUND  # in order
                waiting = asyncio.ensure_future(read_all(client.start_receive(GROUP, PARENT, polling_s=0.3, count=1)))
                await until(lambda: broker.delivery.waiting_polls == 1, "a receive waits")
                await client.done(received)
                following = await waiting
                if number < 4:
                    assert found(following) == [("a", b"%d" % (number + 1))]
                    await client.give_back(following.messages[0], 0, suspend=True)
            assert broker.delivery.inflight_count == 0

    with_broker(test)


def test_what_was_not_acknowledged_comes_again_and_a_suspended_delivery_does_not_count(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            await client.add("a")
            await send(client, "a", b"1")
            attempts = []
            for suspend in (True, True, False, False):
                received = await client.got(polling_s=3.0)
                (only,) = received.messages
                attempts.append(only.system_properties.delivery_attempt)
                assert (await client.give_back(only, 0.1, suspend=suspend)).status.code == definition.OK
            assert attempts == [1, 1, 1, 2]

    with_broker(test)


def test_a_handle_names_its_lite_topic_for_clients_that_do_not(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            await client.add("a", "b")
            await send(client, "a", b"1")
            await send(client, "b", b"2")
            one, two = (await client.got()).messages
            assert (await client.acknowledge(one, says_lite_topic=False)).status.code == definition.OK
            two.system_properties.lite_topic = one.system_properties.lite_topic
            assert (await client.acknowledge(two)).status.code == definition.INVALID_RECEIPT_HANDLE
            assert (await client.acknowledge(two, says_lite_topic=False)).status.code == definition.OK

    with_broker(test)


def test_each_of_the_ready_lite_topics_gets_its_share(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            await client.add("busy", "calm")
            await send(client, "busy", *(b"%d" % number for number in range(40)))
            await send(client, "calm", b"1")
            received = await client.got(count=8)
            names = [name for name, _ in found(received)]
            assert names.count("busy") == 4
            assert names.count("calm") == 1

    with_broker(test)


def test_clients_of_one_group_share_and_other_groups_get_all(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        bound(broker, "audit")
        endpoint = broker.endpoint
        async with LiteClient(endpoint) as one, LiteClient(endpoint) as two, LiteClient(endpoint) as auditor:
            for client, group in ((one, GROUP), (two, GROUP), (auditor, "audit")):
                await client.start(group)
                await client.add("a")
            bodies = []
            for number in range(10):
                await send(one, "a", b"%d" % number)
                for client in (one, two):
                    received = await client.got()
                    bodies += [body for _, body in found(received)]
                    await client.done(received)
            assert bodies == [b"%d" % number for number in range(10)]
            assert len((await auditor.got()).messages) == 10

    with_broker(test)


def test_a_new_group_is_bound_by_its_first_client(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic(PARENT, TopicType.LITE)
        async with LiteClient(broker.endpoint) as client, Client(broker.endpoint) as other:
            await client.start("fresh")
            await client.add("a")
            group = broker.store.groups.get("fresh")
            assert group is not None
            assert group.attributes["lite.bind.topic"] == PARENT
            await other.declare(consumer_settings("fresh", PARENT))
            assert (await other.receive("fresh", PARENT)).code == definition.ILLEGAL_CONSUMER_GROUP

    with_broker(test)


def test_a_client_that_has_not_sent_its_settings_again_after_a_restart_goes_on(with_broker: WithBroker) -> None:
    """Python's and C#'s open their telemetry stream again only with their next settings, up to 5 minutes later."""

    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        async with LiteClient(broker.endpoint) as client:
            await client.add("a")
            await send(client, "a", b"1")
            received = await client.got()
            assert found(received) == [("a", b"1")]
            await client.done(received)
            assert (await client.got()).code == definition.MESSAGE_NOT_FOUND

    with_broker(test)


def test_a_deleted_group_begins_again(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker)
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            await client.add("a")
            await send(client, "a", b"1")
            await client.got()
            broker.delivery.delete_group(GROUP)
            broker.store.groups.delete(GROUP)
            assert not list(LiteSubscriptionTable(broker.store.state_engine).all_rows())
            assert not len(broker.delivery.lite._clients)
            await client.add("a")
            assert found(await client.got()) == [("a", b"1")]

    with_broker(test)


@pytest.mark.parametrize(("wildcard", "expected"), [("true", ["a-1", "a-2", "b-1"]), ("a-*", ["a-1", "a-2"])])
def test_pain_35_a_group_may_get_all_lite_topics_or_those_that_begin_alike(
    with_broker: WithBroker, wildcard: str, expected: list[str]
) -> None:
    async def test(broker: RunningBroker) -> None:
        with_topics(broker, wildcard=wildcard)
        async with LiteClient(broker.endpoint) as client, Client(broker.endpoint) as producer:
            await send(producer, "a-1", b"before")
            await send(producer, "b-1", b"before")
            await client.start()
            assert await client.sync(definition.PARTIAL_ADD, "a-1") == definition.BAD_REQUEST
            await client.replace()
            received = await client.got()
            await client.done(received)
            names = [name for name, _ in found(received)]
            waiting = asyncio.ensure_future(read_all(client.start_receive(GROUP, PARENT, polling_s=5.0)))
            await until(lambda: broker.delivery.waiting_polls == 1, "the receive waits")
            await send(producer, "c-2", b"another")
            await send(producer, "a-2", b"born later")
            names += [name for name, _ in found(await waiting)]
            if wildcard == "true":
                assert names[-1] == "c-2"
                names[-1] = "a-2"
            assert sorted(names) == expected

    with_broker(test)
