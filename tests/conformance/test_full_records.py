"""Messages that fill their records are delivered, tried again and set aside like others, and hold nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import pytest

from quarry_mq.protocol.messages.property_names import UNIQUE_KEY
from quarry_mq.protocol.names import DEAD_LETTER_PREFIX
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import dead_letters_pb2 as pb
from quarry_mq.server.admin_port.messages.dead_letters import MessageResender
from quarry_mq.store.message import Host, Message, MessageCopy, QueueId, QueueOffset
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.record import StoredMessage, encode_properties
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client
from tests.conformance.conftest import WithBroker, both_ways
from tests.conformance.test_dead_letters import stub_of
from tests.conformance.test_order import dead_letter
from tests.server.largest import GROUP, TOPIC, largest

EARLIEST = {"new_group_start": "earliest"}
HOST = Host(bytes(4), 1)
FULL = 32_767 - 20 - 1


def value(broker: RunningBroker, name: str) -> float:
    found = broker.registry.get_sample_value(name)
    assert found is not None
    return found


def records(broker: RunningBroker, topic: str) -> list[StoredMessage]:
    messages, queue = broker.store.messages, QueueId(topic, 0)
    return [messages.read(entry) for entry in messages.entries(queue, QueueOffset(0), 100)]


def own_properties(message: definition.Message) -> dict[str, str]:
    """Those with a value: others do not come back."""
    return {name: text for name, text in message.user_properties.items() if text}


@both_ways
@pytest.mark.parametrize("kind", ["normal", "fifo", "delay"])
def test_the_largest_message_goes_all_ways_that_a_message_can_go(with_broker: WithBroker, kind: str) -> None:
    """Sent, delivered, buried, given to its group again, buried again, and sent once more by a job."""

    async def test(broker: RunningBroker) -> None:
        topic = broker.store.topics
        topic.create(Topic(TOPIC, TopicType.MIXED, 1, 1))
        broker.group(GROUP, fifo=kind == "fifo")
        sent = largest(kind, broker.clock.wall_ms() + 60_000)
        async with Client(broker.endpoint) as client:
            await client.sent(sent)
            broker.clock.push(70)
            for turn in range(2):
                received = await client.receive(GROUP, TOPIC, polling_s=30)
                [message] = received.messages
                assert own_properties(message) == own_properties(sent)
                answer = await dead_letter(client, GROUP, TOPIC, received.handles[0])
                assert answer.status.code == definition.OK
                [*_, letter] = records(broker, DEAD_LETTER_PREFIX + GROUP)
                assert letter.properties["DLQ_ORIGIN_MESSAGE_ID"] == sent.system_properties.message_id
                if turn == 0:
                    stub = await stub_of(broker)
                    resent = await stub.ResendDeadLetters(pb.ResendDeadLettersRequest(group=GROUP))
                    assert (resent.resent, list(resent.refused)) == (1, [])
            resender = MessageResender(
                broker.messaging.operators_resend, partial(asyncio.sleep, 0), lambda: HOST, broker.clock
            )
            outcomes = resender.send([letter], Topic(TOPIC, TopicType.MIXED, 1, 1), 1)
            assert await outcomes() == [None]
            assert value(broker, "quarry_properties_left_out_total") == 0
            assert broker.health.look().is_ready

    with_broker(test, delivery=EARLIEST)


def full_message(topic: str, body: bytes, free: int = 0, **properties: str) -> Message:
    """As another broker stored it: there is no room for more properties, or for so many bytes of them."""
    given = {UNIQUE_KEY: "i" * 100, "TAGS": "red", **properties}
    rest = FULL - free - len(encode_properties(given)) - len("first\x01\x02second\x01\x02")
    given |= {"first": "f" * (rest // 3), "second": "s" * (rest - rest // 3)}
    return Message(topic, 0, body, given, 1, HOST, HOST)


async def deliver_to_the_end(client: Client, broker: RunningBroker, group: str, topic: str) -> list[bytes]:
    """All that the group gets until there is nothing more, each message acknowledged but those that say bad."""
    bodies: list[bytes] = []
    messages = broker.store.messages
    for _ in range(12):
        received = await client.receive(group, topic, invisible_s=1)
        bodies += [each.body for each in received.messages]
        good = [handle for handle, each in zip(received.handles, received.messages, strict=True) if each.body != b"bad"]
        if good:
            await client.ack(group, topic, *good)
        # a dead letter that is not stored within its time is sent again
        await until(lambda: messages.dispatched_up_to == messages.appended_up_to, "dead letters are stored")
        await asyncio.sleep(0)
        broker.clock.push(70)
    return bodies


@pytest.mark.parametrize("fifo", [True, False], ids=["in order", "plain"])
@pytest.mark.parametrize(
    ("properties", "free", "left_out"),
    [
        ({"UNIQ_KEY": "i" * 16_400}, 30, {"DLQ_ORIGIN_MESSAGE_ID"}),
        ({}, 0, {"DLQ_ORIGIN_MESSAGE_ID", "second"}),
    ],
    ids=["long id", "long properties"],
)
def test_a_message_that_does_not_fit_as_a_dead_letter_holds_nobody_up(
    with_broker: WithBroker, properties: Mapping[str, str], free: int, left_out: set[str], fifo: bool
) -> None:
    """It used to block an ordered queue for good, and to stay in flight for ever in a plain group."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.FIFO if fifo else TopicType.NORMAL, queues=1)
        broker.group("billing", fifo=fifo, max_attempts=2)
        bad = full_message("orders", b"bad", free, **properties)
        await store(broker, [bad, bad._replace(body=b"good", properties={UNIQUE_KEY: "good"})])
        async with Client(broker.endpoint) as client:
            bodies = await deliver_to_the_end(client, broker, "billing", "orders")
        assert (bodies.count(b"bad"), bodies.count(b"good")) == (2, 1)
        assert broker.delivery.inflight_count == 0
        [letter] = records(broker, DEAD_LETTER_PREFIX + "billing")
        found, expected = letter.properties, dict(bad.properties)
        expected |= {"DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": expected[UNIQUE_KEY]}
        missing = expected.keys() - found.keys()
        assert missing == left_out
        assert all(found[name] == expected[name] for name in expected.keys() - missing)
        assert value(broker, "quarry_properties_left_out_total") == len(missing)
        assert value(broker, "quarry_dead_letters_total") == 1

    with_broker(test, delivery=EARLIEST)


async def store(broker: RunningBroker, messages: list[Message]) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stored(_appended: object, error: Exception | None) -> None:
        assert error is None
        done.set_result(None)

    broker.broker._commit.send([MessageCopy(*each) for each in messages], stored)
    await done


@pytest.mark.parametrize("fifo", [True, False], ids=["in order", "plain"])
def test_a_message_of_which_no_copy_can_be_is_told_of_and_passed_over(with_broker: WithBroker, fifo: bool) -> None:
    """It fills a segment. It stays in its topic; who wants it reads it there."""
    size = 16 * 1024 * 1024 - 250

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.FIFO if fifo else TopicType.NORMAL, queues=1)
        broker.group("billing", fifo=fifo, max_attempts=1)
        bad = Message("orders", 0, bytes(size), {UNIQUE_KEY: "bad", "a": "b" * 60}, 1, HOST, HOST)
        await store(broker, [bad])
        await store(broker, [bad._replace(body=b"good", properties={UNIQUE_KEY: "good"})])
        async with Client(broker.endpoint) as client:
            first = await client.receive("billing", "orders", invisible_s=1, count=1)
            assert first.ids == ["bad"]
            ids: list[str] = []
            for _ in range(4):
                broker.clock.push(70)
                received = await client.receive("billing", "orders", invisible_s=30)
                await asyncio.sleep(0)
                ids += received.ids
                if received.handles:
                    await client.ack("billing", "orders", *received.handles)
        assert ids == ["good"]
        assert broker.delivery.inflight_count == 0
        assert records(broker, DEAD_LETTER_PREFIX + "billing") == []
        assert value(broker, "quarry_dead_letters_refused_total") == 1
        assert [each.properties[UNIQUE_KEY] for each in records(broker, "orders")] == ["bad", "good"]

    with_broker(test, delivery=EARLIEST)


def test_larger_ones_than_are_taken_from_senders_are_set_aside_too(with_broker: WithBroker) -> None:
    """Of a broker with a larger limit, or from before this one got a smaller."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        broker.group("billing", max_attempts=1)
        await store(broker, [Message("orders", 0, bytes(300_000), {UNIQUE_KEY: "large"}, 1, HOST, HOST)])
        async with Client(broker.endpoint) as client:
            received = await client.receive("billing", "orders")
            assert (await dead_letter(client, "billing", "orders", received.handles[0])).status.code == definition.OK
        [letter] = records(broker, DEAD_LETTER_PREFIX + "billing")
        assert len(letter.body) == 300_000

    with_broker(test, delivery=EARLIEST, limits={"body_size": 1_000})


@pytest.mark.parametrize("how", ["when it is due", "when its segment goes", "when its topic is gone"])
def test_a_delayed_message_that_fills_its_record_is_no_trouble(with_broker: WithBroker, how: str) -> None:
    async def test(broker: RunningBroker) -> None:
        if how != "when its topic is gone":
            broker.topic("later", TopicType.DELAY, queues=1)
        due_ms = broker.clock.wall_ms() + 60_000
        waiting = full_message(
            "rmq_sys_wheel_timer",
            b"late",
            REAL_TOPIC="later",
            REAL_QID="0",
            TIMER_DELIVER_MS=str(due_ms),
            TIMER_OUT_MS=str(due_ms),
        )
        await store(broker, [waiting, waiting._replace(properties={**waiting.properties, UNIQUE_KEY: "j" * 100})])
        pending = broker.store.messages.pending
        assert len(pending.due(due_ms, 10, None)) == 2
        if how == "when its segment goes":
            await broker.broker._delays.carry_over(broker.store.messages.appended_up_to)
            assert len(pending.due(due_ms, 10, None)) == 2
        broker.clock.push(70)
        broker.broker._delays._look()
        await until(lambda: not pending.due(due_ms, 10, None), "none waits any more")
        expected = [] if how == "when its topic is gone" else ["i" * 100, "j" * 100]
        assert sorted(each.properties[UNIQUE_KEY] for each in records(broker, "later")) == expected
        assert value(broker, "quarry_delayed_messages_lost_total") == 0

    with_broker(test, delivery=EARLIEST)
