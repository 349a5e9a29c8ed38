"""Points 28, 55 and 56: messages that are delivered later, or recalled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from quarry_mq.protocol.clock import BelievedClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import TopicType
from quarry_mq.store.pending.rows import TIMER_TOPIC
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, message, resource
from tests.conformance.conftest import WithBroker

SEGMENT_SIZE = 16 * 1024 * 1024
LATE_MAX_S = 2.0
"""The protocol's tolerance."""


def at(broker: RunningBroker, seconds: float) -> Timestamp:
    """So many seconds from now on, by the broker's clock."""
    due = Timestamp()
    due.FromMilliseconds(broker.clock.wall_ms() + int(seconds * 1000))
    return due


async def recall(client: Client, topic: str, handle: str) -> Any:
    return await client.call("RecallMessage", service.RecallMessageRequest(topic=resource(topic), recall_handle=handle))


@pytest.mark.parametrize("message_type", [definition.DELAY, definition.NORMAL])
@pytest.mark.parametrize("kind", [TopicType.DELAY, TopicType.MIXED])
def test_point_55_a_delayed_message_comes_when_it_is_due(
    with_broker: WithBroker, kind: TopicType, message_type: definition.MessageType
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("later", kind)
        async with Client(broker.endpoint) as client:
            assert (await client.receive("billing", "later")).code == definition.MESSAGE_NOT_FOUND
            due = at(broker, 1.5)
            sent = message("later", b"late", tag="t", delivery_timestamp=due, message_type=message_type)
            sent.user_properties["region"] = "x"
            [sent_id] = await client.sent(sent)
            received = await client.receive("billing", "later", polling_s=6)
            late_s = broker.clock.wall_ms() / 1000 - due.ToMilliseconds() / 1000
            [delivered] = received.messages
            assert 0 <= late_s < LATE_MAX_S
            system = delivered.system_properties
            assert system.message_id == sent_id
            assert (delivered.body, system.tag, dict(delivered.user_properties)) == (b"late", "t", {"region": "x"})
            assert system.message_type == definition.DELAY
            assert system.delivery_timestamp.ToMilliseconds() == due.ToMilliseconds()
            assert system.delivery_attempt == 1
            assert delivered.topic.name == "later"

    with_broker(test)


def test_point_55_messages_come_in_the_order_of_their_times(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("later", TopicType.DELAY, queues=1)
        async with Client(broker.endpoint) as client:
            delays = [9, 3, 6, 5, 8]
            times = {delay_s: at(broker, 60 + delay_s) for delay_s in delays}
            for delay_s in delays:
                await client.sent(message("later", str(delay_s).encode(), delivery_timestamp=times[delay_s]))
            broker.clock.push(70)
            bodies: list[bytes] = []
            while len(bodies) < len(delays):
                received = await client.receive("billing", "later", polling_s=5)
                bodies += [each.body for each in received.messages]
            assert bodies == [str(delay_s).encode() for delay_s in sorted(delays)]

    with_broker(test)


def test_point_28_a_time_that_has_passed_needs_no_timer(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("later", TopicType.DELAY)
        async with Client(broker.endpoint) as client:
            answer = await client.send(message("later", delivery_timestamp=at(broker, -5)))
            assert not answer.entries[0].recall_handle
            received = await client.receive("billing", "later")
            assert received.ids == [answer.entries[0].message_id]
            assert received.messages[0].system_properties.message_type == definition.DELAY
            assert broker.store.messages.maximum(QueueId(TIMER_TOPIC, 0)) == 0

    with_broker(test)


def test_point_28_a_delay_has_its_limit(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("later", TopicType.DELAY)
        async with Client(broker.endpoint) as client:
            answer = await client.send(message("later", delivery_timestamp=at(broker, 24 * 3600 + 60)))
            assert answer.status.code == definition.ILLEGAL_DELIVERY_TIME
            assert (await client.send(message("later", delivery_timestamp=at(broker, 24 * 3600 - 60)))).entries

    with_broker(test)


@pytest.mark.parametrize("jump_s", [3_600.0, -3_600.0])
def test_a_clock_that_is_set_is_followed(with_broker: WithBroker, jump_s: float) -> None:
    """Set forward, what is due by then comes within a second or so; set back, it comes by the new time."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("later", TopicType.DELAY)
        async with Client(broker.endpoint) as client:
            await client.receive("billing", "later")
            [sent] = await client.sent(message("later", delivery_timestamp=at(broker, 1_800 if jump_s > 0 else 1)))
            broker.clock.jump(jump_s)
            if jump_s > 0:
                assert (await client.receive("billing", "later", polling_s=30)).ids == [sent]
                return
            assert not (await client.receive("billing", "later", polling_s=2)).ids
            broker.clock.jump(-jump_s)
            assert (await client.receive("billing", "later", polling_s=30)).ids == [sent]

    with_broker(test)


def test_point_56_a_recalled_message_is_never_delivered(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("later", TopicType.DELAY, queues=1)
        async with Client(broker.endpoint) as client:
            kept = (await client.send(message("later", delivery_timestamp=at(broker, 60)))).entries[0]
            entry = (await client.send(message("later", delivery_timestamp=at(broker, 60)))).entries[0]
            assert entry.recall_handle
            answer = await recall(client, "later", entry.recall_handle)
            assert (answer.status.code, answer.message_id) == (definition.OK, entry.message_id)
            again = await recall(client, "later", entry.recall_handle)
            assert again.status.code == definition.BAD_REQUEST
            await client.receive("billing", "later")
            broker.clock.push(61)
            assert (await client.receive("billing", "later", polling_s=30)).ids == [kept.message_id]
            assert not (await client.receive("billing", "later", polling_s=0.5)).ids
            late = await recall(client, "later", kept.recall_handle)
            assert late.status.code == definition.BAD_REQUEST, "it was delivered"

    with_broker(test)


def test_point_56_recalls_that_make_no_sense(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("later", TopicType.DELAY)
        broker.topic("other", TopicType.MIXED)
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            handle = (await client.send(message("later", delivery_timestamp=at(broker, 60)))).entries[0].recall_handle
            for topic, wrong, code in (
                ("orders", handle, definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
                ("unknown", handle, definition.TOPIC_NOT_FOUND),
                ("a b", handle, definition.ILLEGAL_TOPIC),
                ("other", handle, definition.BAD_REQUEST),
                ("later", "", definition.BAD_REQUEST),
                ("later", "garbage", definition.BAD_REQUEST),
                ("later", "é", definition.BAD_REQUEST),
                ("later", handle[:-4], definition.BAD_REQUEST),
                ("later", handle + handle, definition.BAD_REQUEST),
            ):
                assert (await recall(client, topic, wrong)).status.code == code, (topic, wrong)
            assert (await recall(client, "later", handle)).status.code == definition.OK

    with_broker(test)


async def with_an_old_segment(broker: RunningBroker, client: Client) -> None:
    """Let what was sent so far come to lie in a segment that is past its retention."""
    broker.topic("filler", queues=1)
    while broker.store.messages.appended_up_to < SEGMENT_SIZE:
        await client.sent(message("filler", bytes(3_000_000)))
    broker.clock.push(2 * 3_600)


def test_a_delayed_message_outlives_the_segment_it_was_sent_to(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("later", TopicType.DELAY)
        async with Client(broker.endpoint) as client:
            await client.receive("billing", "later")
            due = at(broker, 3 * 3_600)
            kept = (await client.send(message("later", b"kept", delivery_timestamp=due))).entries[0]
            recalled = (await client.send(message("later", b"recalled", delivery_timestamp=due))).entries[0]
            await with_an_old_segment(broker, client)
            report = await broker.broker._maintenance.expire_now(dry_run=False, rewrite_queues=False)
            assert len(report.segments) == 1
            assert broker.store.expiry.minimum == SEGMENT_SIZE
            # the handle is from before
            assert (await recall(client, "later", recalled.recall_handle)).status.code == definition.OK
            assert (await recall(client, "later", recalled.recall_handle)).status.code == definition.BAD_REQUEST
            assert (await client.receive("billing", "later")).code == definition.MESSAGE_NOT_FOUND
            broker.clock.push(3_601)
            received = await client.receive("billing", "later", polling_s=6)
            assert [(each.body, each.system_properties.message_id) for each in received.messages] == [
                (b"kept", kept.message_id)
            ]
            assert not received.messages[0].user_properties
            await client.ack("billing", "later", *received.handles)
            broker.clock.push(3_601)
            assert (await client.receive("billing", "later")).code == definition.MESSAGE_NOT_FOUND

    with_broker(test, expiry={"retention_hours": 1}, store={"segment_size": SEGMENT_SIZE})


def test_a_delayed_message_goes_with_its_topic(with_broker: WithBroker) -> None:
    """And does not bring the topic back."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("later", TopicType.DELAY)
        async with Client(broker.endpoint) as client:
            await client.sent(message("later", delivery_timestamp=at(broker, 1)))
            broker.store.topics.delete("later")
            broker.clock.push(2)
            pending = broker.store.messages.pending
            await until(lambda: pending.first_due() is None, "the message waits no longer")
            assert broker.store.topics.get("later") is None
            await asyncio.sleep(0)

    with_broker(test)


@pytest.mark.parametrize("years", [10, -10])
def test_a_clock_that_is_years_off_for_a_moment_delivers_nothing_early_and_changes_no_store_time(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch, years: int
) -> None:
    monkeypatch.setattr("tests.conformance.broker.USED_CLOCK", BelievedClock)

    async def test(broker: RunningBroker) -> None:
        broker.topic("later", TopicType.DELAY)
        broker.topic("plain", queues=1)
        async with Client(broker.endpoint) as client:
            in_a_day = message("later", b"x", delivery_timestamp=at(broker, 86_400), message_type=definition.DELAY)
            await client.sent(in_a_day)
            broker.clock.jump(years * 365 * 86_400)
            await asyncio.sleep(1.2)  # the clock is looked at each second
            await client.sent(message("plain", b"meanwhile"))
            broker.clock.jump(-years * 365 * 86_400)
            await client.sent(message("plain", b"afterwards"))
        messages = broker.store.messages
        entries = messages.entries(QueueId("plain", 0), QueueOffset(0), 2)
        times = [messages.read(entry).store_timestamp_ms for entry in entries]
        assert [abs(time_ms - broker.clock.wall_ms()) < 60_000 for time_ms in times] == [True, True]
        assert messages.queues_of("later") == []

    with_broker(test)
