"""The official admin service tells how far a group is behind: right, or not at all (rmq#8764, dashboard#4516)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from quarry_mq.kv import EngineFull
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import Topic, TopicType
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, consumer_settings, message, resource
from tests.conformance.conftest import WithBroker
from tests.conformance.lite import GROUP, PARENT, LiteClient, send
from tests.conformance.official import hand_out, official
from tests.conformance.test_lite import with_topics

DescribeRequest = pb.DescribeGroupAccumulationRequest
ANSWER = pb.DescribeGroupAccumulationResponse


async def accumulation(broker: RunningBroker, request: DescribeRequest) -> pb.DescribeGroupAccumulationResponse:
    async with official(broker) as admin:
        answer = await admin.DescribeGroupAccumulation(request)
    assert isinstance(answer, ANSWER)
    return answer


def numbers(counted: pb.DescribeGroupAccumulationResponse.GroupAccumulation) -> tuple[int, int, int]:
    return counted.inflight_messages, counted.ready_messages, counted.accumulation


async def consumer_of(broker: RunningBroker, group: str, *topics: str) -> Client:
    client = Client(broker.endpoint)
    await client.declare(consumer_settings(group, *topics))
    return client


def test_the_lag_of_a_group_is_what_is_in_flight_and_what_is_ready(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        topic, other = broker.topic("orders", queues=2), broker.topic("payments")
        broker.group("billing")
        async with await consumer_of(broker, "billing", topic, other) as client:
            for _ in range(5):
                await client.sent(message(topic))
            await client.sent(message(other))
            handles = await hand_out(client, "billing", topic, count=3)
            await client.ack("billing", topic, handles[0])
            broker.clock.push(7)
            answer = await accumulation(broker, DescribeRequest(group=resource("billing")))
        assert answer.status.code == definition.OK
        assert {name: numbers(each) for name, each in answer.topic_accumulation.items()} == {
            "orders": (2, 2, 4),
            "payments": (0, 1, 1),
        }
        assert numbers(answer.accumulation) == (2, 3, 5)
        assert 7 <= answer.topic_accumulation["orders"].deliver_delay_time.ToTimedelta().total_seconds() < 17
        assert answer.topic_accumulation["orders"].last_consume_timestamp > broker.clock.wall_ms() - 20_000
        assert answer.topic_accumulation["payments"].last_consume_timestamp == 0
        only = await accumulation(broker, DescribeRequest(group=resource("billing"), topics=[resource(other)]))
        assert (list(only.topic_accumulation), numbers(only.accumulation)) == (["payments"], (0, 1, 1))

    with_broker(test)


def test_who_has_got_everything_has_no_lag(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        topic = broker.topic("orders")
        broker.group("billing")
        async with await consumer_of(broker, "billing", topic) as client:
            await client.sent(message(topic))
            handles = await hand_out(client, "billing", topic, count=1)
            await client.ack("billing", topic, *handles)
            answer = await accumulation(broker, DescribeRequest(group=resource("billing")))
        counted = answer.topic_accumulation["orders"]
        assert numbers(counted) == (0, 0, 0)
        assert counted.HasField("deliver_delay_time")
        assert counted.deliver_delay_time.ToMilliseconds() == 0

    with_broker(test)


def test_an_offset_below_the_first_message_that_is_left_makes_no_lag_of_zero(with_broker: WithBroker) -> None:
    """rmq#10953: a range that is not brought back into the queue read as 0."""

    async def test(broker: RunningBroker) -> None:
        topic = broker.topic("orders", queues=1)
        broker.group("billing")
        async with Client(broker.endpoint) as client:
            for _ in range(3):
                await client.sent(message(topic))
        batch = broker.store.state_engine.batch()
        broker.store.offsets.stage(batch, "billing", QueueId(topic, 0), QueueOffset(-5))
        broker.store.state_engine.write(batch)
        answer = await accumulation(broker, DescribeRequest(group=resource("billing")))
        assert numbers(answer.accumulation) == (0, 3, 3)

    with_broker(test)


def test_queues_that_came_later_and_those_that_went_count_too(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        topic = broker.topic("orders", queues=2)
        broker.group("billing")
        async with await consumer_of(broker, "billing", topic) as client:
            for queues in (2, 6, 1):
                broker.store.topics.update(Topic(topic, TopicType.NORMAL, queues, queues))
                for _ in range(6):
                    await client.sent(message(topic))
            answer = await accumulation(broker, DescribeRequest(group=resource("billing")))
            await hand_out(client, "billing", topic, count=18)
            later = await accumulation(broker, DescribeRequest(group=resource("billing")))
        assert numbers(answer.accumulation) == (0, 18, 18)
        assert numbers(later.accumulation) == (18, 0, 18)

    with_broker(test)


UNKNOWN: Final = (
    (DescribeRequest(group=resource("billing")), definition.OFFSET_NOT_FOUND, "group: billing has never read anything"),
    (
        DescribeRequest(group=resource("billing"), topics=[resource("orders")]),
        definition.OFFSET_NOT_FOUND,
        "topics: group billing has never read topic orders",
    ),
    (
        DescribeRequest(group=resource("billing"), topics=[resource("orders")], lite_topic="a"),
        definition.OFFSET_NOT_FOUND,
        "topics",
    ),
)


def test_what_cannot_be_known_has_a_status_and_no_numbers(with_broker: WithBroker) -> None:
    """dashboard#4516: lag that is not known was shown as a healthy 0."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.group("billing")
        for request, code, text in UNKNOWN:
            answer = await accumulation(broker, request)
            assert (answer.status.code, text in answer.status.message) == (code, True), answer.status
            assert not answer.HasField("accumulation")
            assert not answer.topic_accumulation

    with_broker(test)


def test_lite_topics_count_by_the_offsets_of_their_light_queues(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        topic = broker.topic("chats", TopicType.LITE)
        broker.topic("any")
        broker.group("bots")
        async with Client(broker.endpoint) as client:
            for name in ("a", "a", "b"):
                lite = message("any")
                lite.user_properties["INNER_MULTI_DISPATCH"] = f"%LMQ%$chats${name}"
                await client.sent(lite)
        batch = broker.store.state_engine.batch()
        for name, offset in (("a", 1), ("b", 0)):
            broker.store.offsets.stage(batch, "bots", QueueId(f"%LMQ%$chats${name}", 0), QueueOffset(offset))
        broker.store.state_engine.write(batch)
        of_a = DescribeRequest(group=resource("bots"), topics=[resource(topic)], lite_topic="a")
        answer = await accumulation(broker, of_a)
        assert {name: numbers(each) for name, each in answer.lite_topic_accumulation.items()} == {"a": (0, 1, 1)}
        assert numbers(answer.accumulation) == (0, 1, 1)
        for topics in ([], [resource(topic)]):
            whole = await accumulation(broker, DescribeRequest(group=resource("bots"), topics=topics))
            assert {name: numbers(each) for name, each in whole.topic_accumulation.items()} == {"chats": (0, 2, 2)}
        broker.group("strangers")
        never = await accumulation(broker, DescribeRequest(group=resource("strangers"), topics=[resource(topic)]))
        assert never.status.code == definition.OFFSET_NOT_FOUND
        async with official(broker) as admin:
            spans = await admin.QueryTimeSpan(pb.QueryTimeSpanRequest(group=resource("bots"), topics=[resource(topic)]))
        assert spans.status.code == definition.OFFSET_NOT_FOUND
        of_a.lite_topic = "c"
        assert (await accumulation(broker, of_a)).status.code == definition.OFFSET_NOT_FOUND

    with_broker(test)


@pytest.mark.parametrize(("attributes", "wanted"), [({}, {"a": 2}), ({"wildcard": "a*"}, {"a": 2, "aa": 1})])
def test_lite_topics_that_nobody_has_got_anything_of_count_if_a_client_wants_them(
    with_broker: WithBroker, attributes: dict[str, str], wanted: dict[str, int]
) -> None:
    """dashboard#4516: what waits for a client that has not asked yet is no healthy 0."""

    async def test(broker: RunningBroker) -> None:
        with_topics(broker, **attributes)
        async with LiteClient(broker.endpoint) as client:
            await client.start()
            for name in ("a", "a", "aa", "b"):
                await send(client, name, b"x")
            if attributes:
                await client.replace()
            else:
                await client.add("a")
            answer = await accumulation(broker, DescribeRequest(group=resource(GROUP)))
            assert answer.status.code == definition.OK
            whole = sum(wanted.values())
            assert {name: numbers(each) for name, each in answer.topic_accumulation.items()} == {
                PARENT: (0, whole, whole)
            }
            for name in ("a", "aa", "b"):
                of_one = DescribeRequest(group=resource(GROUP), topics=[resource(PARENT)], lite_topic=name)
                told = await accumulation(broker, of_one)
                assert (told.status.code, told.accumulation.ready_messages) == (
                    (definition.OK, wanted[name]) if name in wanted else (definition.OFFSET_NOT_FOUND, 0)
                )
            await client.done(await client.got(count=1))
            answer = await accumulation(broker, DescribeRequest(group=resource(GROUP)))
            assert numbers(answer.accumulation) == (0, whole - 1, whole - 1)

    with_broker(test)


def test_queues_that_a_topic_has_no_longer_have_a_time_span_while_they_hold_messages(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        topic = broker.topic("orders", queues=3)
        broker.group("billing")
        async with await consumer_of(broker, "billing", topic) as client:
            for _ in range(3):
                await client.sent(message(topic))
        broker.store.topics.update(Topic(topic, TopicType.NORMAL, 1, 1))
        broker.clock.push(5)
        async with official(broker) as admin:
            answer = await admin.QueryTimeSpan(pb.QueryTimeSpanRequest(group=resource("billing")))
        assert [each.message_queue.id for each in answer.queue_time_span_list] == [0, 1, 2]
        assert all(each.delay_time_ms >= 5_000 for each in answer.queue_time_span_list)

    with_broker(test)


def test_each_queue_has_its_time_span(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        topic = broker.topic("orders", queues=1)
        broker.group("billing")
        async with await consumer_of(broker, "billing", topic) as client:
            for _ in range(3):
                await client.sent(message(topic))
                broker.clock.push(10)
            await hand_out(client, "billing", topic, count=1)
            async with official(broker) as admin:
                answer = await admin.QueryTimeSpan(
                    pb.QueryTimeSpanRequest(group=resource("billing"), topics=[resource(topic)])
                )
                missing = await admin.QueryTimeSpan(pb.QueryTimeSpanRequest(group=resource("nobody")))
                malformed = await admin.QueryTimeSpan(pb.QueryTimeSpanRequest())
        assert answer.status.code == definition.OK
        (span,) = answer.queue_time_span_list
        assert (span.message_queue.topic.name, span.message_queue.id) == ("orders", 0)
        assert 20_000 <= span.max_timestamp - span.min_timestamp < 25_000
        assert span.consume_timestamp == span.min_timestamp
        assert 20_000 <= span.delay_time_ms < 25_000
        assert missing.status.code == definition.CONSUMER_GROUP_NOT_FOUND
        assert (malformed.status.code, "group" in malformed.status.message) == (
            definition.ILLEGAL_CONSUMER_GROUP,
            True,
        )

    with_broker(test)


def test_what_is_damaged_has_no_age_and_none_is_made_up(with_broker: WithBroker, tmp_path: Path) -> None:
    async def test(broker: RunningBroker) -> None:
        topic = broker.topic("orders", queues=1)
        broker.group("billing")
        async with await consumer_of(broker, "billing", topic) as client:
            await client.sent(message(topic, b"to-be-damaged"))
        (log,) = (tmp_path / "store" / "commitlog").glob("0*")
        at = log.read_bytes().index(b"to-be-damaged")
        with log.open("r+b") as file:
            file.seek(at)
            file.write(b"T")
        answer = await accumulation(broker, DescribeRequest(group=resource("billing")))
        assert numbers(answer.accumulation) == (0, 1, 1)
        assert not answer.accumulation.HasField("deliver_delay_time")
        async with official(broker) as admin:
            spans = await admin.QueryTimeSpan(pb.QueryTimeSpanRequest(group=resource("billing")))
            messages = await admin.QueryMessage(pb.ListMessageRequest(topic=resource(topic)))
        past = "quarry group reset-offset billing --topic orders --queue 0 --to 1"
        assert (spans.status.code, past in spans.status.message) == (definition.OK, True)
        assert [each.delay_time_ms for each in spans.queue_time_span_list] == [-1]
        assert (messages.status.code, len(messages.messages)) == (definition.OK, 0)
        assert log.name in messages.status.message
        assert "quarry group reset-offset GROUP --topic orders --queue 0 --to 1" in messages.status.message

    with_broker(test)


def test_while_deliveries_cannot_be_written_nobody_is_told_how_many_there_are(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk() -> None:
        raise EngineFull("no room")

    async def test(broker: RunningBroker) -> None:
        topic = broker.topic("orders")
        broker.group("billing")
        writer = broker.broker._delivery.writer
        async with await consumer_of(broker, "billing", topic):
            monkeypatch.setattr(writer, "_catch_up", full_disk)  # whatever the broker writes meanwhile
            writer._full_error = "no room"
            full = await accumulation(broker, DescribeRequest(group=resource("billing")))
            writer._full_error = None
            writer._failure = "delivery state cannot be written"
            poisoned = await accumulation(broker, DescribeRequest(group=resource("billing")))
            writer._failure = None
        assert (full.status.code, full.HasField("accumulation")) == (definition.TOO_MANY_REQUESTS, False)
        assert (poisoned.status.code, poisoned.HasField("accumulation")) == (definition.INTERNAL_SERVER_ERROR, False)

    with_broker(test)
