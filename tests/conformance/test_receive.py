"""Points 34 to 41: what a receive says, when it ends, and what it brings."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import zlib

import grpc
import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.store.metadata import Topic, TopicType
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, consumer_settings, message, read_all
from tests.conformance.conftest import WithBroker, both_ways

pytestmark = both_ways

LATEST = {"new_group_start": "latest"}


@pytest.mark.parametrize("start", ["auto", "latest"])
def test_point_34_a_new_group_gets_what_is_sent_after_its_settings(with_broker: WithBroker, start: str) -> None:
    """Even where a new group starts behind the last message: its start is fixed by its settings."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            if start == "latest":
                await client.sent(message("orders"))
            await client.declare(consumer_settings("billing", "orders"))
            sent = [(await client.sent(message("orders")))[0] for _ in range(5)]
            received = await client.receive("billing", "orders")
            assert sorted(received.ids) == sorted(sent)

    with_broker(test, delivery={"new_group_start": start})


def test_point_35_the_stream_has_status_messages_and_delivery_time_in_this_order(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            for number in range(3):
                await client.sent(message("orders", b"%d" % number))
            received = await client.receive("billing", "orders")
            assert received.kinds == ["status", "message", "message", "message", "delivery_timestamp"]
            assert received.code == definition.OK
            empty = await client.receive("billing", "orders")
            assert empty.kinds == ["status", "delivery_timestamp"]
            assert empty.code == definition.MESSAGE_NOT_FOUND

    with_broker(test)


def test_point_35_a_message_comes_back_as_it_was_sent_with_all_that_belongs_to_its_delivery(
    with_broker: WithBroker,
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        original = message("orders", b"\x00\xffbody", tag="A", keys=["k1", "k2"], message_id="the-id")
        original.user_properties.update({"region": "x", "naïve": "é😀", "with space": " v "})
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"first"))
            await client.sent(original)
            received = await client.receive("billing", "orders")
        delivered = received.messages[1]
        system = delivered.system_properties
        assert delivered.topic.name == "orders"
        assert delivered.body == original.body
        assert dict(delivered.user_properties) == dict(original.user_properties)
        assert (system.tag, list(system.keys), system.message_id) == ("A", ["k1", "k2"], "the-id")
        assert system.body_digest.type == definition.MD5
        assert system.body_digest.checksum == hashlib.md5(original.body).hexdigest().upper()
        assert system.body_encoding == definition.IDENTITY
        assert system.message_type == definition.NORMAL
        born_ms = original.system_properties.born_timestamp.ToMilliseconds()
        assert system.born_timestamp.ToMilliseconds() == born_ms
        assert abs(system.store_timestamp.ToMilliseconds() - born_ms) < 60_000
        assert system.born_host.startswith("127.0.0.1:")
        assert ":" in system.store_host
        assert system.HasField("queue_offset")
        assert system.queue_offset == 1
        assert (system.queue_id, system.delivery_attempt) == (0, 1)
        assert system.receipt_handle

    with_broker(test)


@pytest.mark.parametrize("language", ["JAVA", "GOLANG", "CPP", "DOT_NET", "HTTP", "RUST", None])
def test_point_35_only_java_clients_get_a_crc32_as_digest(with_broker: WithBroker, language: str | None) -> None:
    """The Java client expects no leading zeros, and the checksum of one of these bodies would have some."""
    short = next(body for number in range(1_000) if zlib.crc32(body := b"%d" % number) < 1 << 24)
    bodies = [b"body", short, gzip.compress(short)]

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            client.metadata = [header for header in client.metadata if header[0] != "x-mq-language"]
            client.metadata += [] if language is None else [("x-mq-language", language)]
            for body in bodies:
                encoding = definition.GZIP if body == bodies[-1] else definition.IDENTITY
                await client.sent(message("orders", body, body_encoding=encoding))
            messages = (await client.receive("billing", "orders")).messages
        digests = [each.system_properties.body_digest for each in messages]
        if language == "JAVA":
            assert {each.type for each in digests} == {definition.CRC32}
            assert [each.checksum for each in digests] == [format(zlib.crc32(body), "X") for body in bodies]
        else:
            assert {each.type for each in digests} == {definition.MD5}
            assert [each.checksum for each in digests] == [hashlib.md5(body).hexdigest().upper() for body in bodies]

    with_broker(test)


def test_point_35_a_compressed_body_is_returned_byte_for_byte_and_said_to_be_compressed(
    with_broker: WithBroker,
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        for body in (gzip.compress(b"text" * 100, mtime=0), b"no gzip at all"):
            async with Client(broker.endpoint) as client:
                await client.sent(message("orders", body, body_encoding=definition.GZIP))
                [delivered] = (await client.receive("billing", "orders")).messages
                assert delivered.body == body
                assert delivered.system_properties.body_encoding == definition.GZIP
                digest = delivered.system_properties.body_digest.checksum
                assert digest == hashlib.md5(body).hexdigest().upper()

    with_broker(test)


def test_point_36_a_receive_in_vain_ends_in_good_order_when_its_polling_time_is_up(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            received = await client.receive("billing", "orders", polling_s=0.6, deadline_s=60)
            assert received.code == definition.MESSAGE_NOT_FOUND
            assert received.kinds == ["status", "delivery_timestamp"]
            assert received.seconds > 0.55

    with_broker(test)


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_point_37_a_waiting_receive_gets_a_message_at_once(with_broker: WithBroker, durability: str) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as consumer, Client(broker.endpoint) as producer:
            for _ in range(5):
                receive = consumer.receive("billing", "orders", polling_s=600, deadline_s=900)
                waiting = asyncio.ensure_future(receive)
                await until(lambda: broker.broker._delivery.waiting_polls == 1, "the receive waits")
                [sent] = await producer.sent(message("orders"))
                assert (await waiting).ids == [sent]

    with_broker(test, store={"durability": durability})


def test_point_37_a_message_wakes_the_receives_of_every_group(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as consumer, Client(broker.endpoint) as producer:
            terms = {"polling_s": 60, "deadline_s": 90}
            waiting = [asyncio.ensure_future(consumer.receive(f"group-{n}", "orders", **terms)) for n in range(3)]
            await until(lambda: broker.broker._delivery.waiting_polls == 3, "the receives wait")
            [sent] = await producer.sent(message("orders"))
            assert [(await each).ids for each in waiting] == [[sent]] * 3

    with_broker(test)


@pytest.mark.parametrize("version", ["5.1.2", "5.0.2"])
def test_point_38_a_deadline_before_the_polling_time_gets_its_answer_before_the_deadline(
    with_broker: WithBroker, version: str
) -> None:
    """The lenient rule, also with the users' shortest polling time: Go's simple consumer asks like this."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint, version=version) as client:
            receive = client.receive("billing", "orders", polling_s=120, deadline_s=60)
            received = asyncio.ensure_future(receive)
            await until(lambda: broker.delivery.waiting_polls == 1, "the receive waits")
            broker.pass_time(45)
            assert (await received).code == definition.MESSAGE_NOT_FOUND

    with_broker(test, delivery={"polling_min_ms": 5_000, "polling_reserve_ms": 30_000})


def test_point_38_without_a_polling_time_the_deadline_decides(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            settings = consumer_settings("billing", "orders")
            settings.request_timeout.FromMilliseconds(60_000)
            await client.declare(settings)
            received = asyncio.ensure_future(client.receive("billing", "orders", polling_s=None, deadline_s=60))
            await until(lambda: broker.delivery.waiting_polls == 1, "the receive waits")
            broker.pass_time(20)
            assert broker.delivery.waiting_polls == 1
            broker.pass_time(20)
            assert (await received).code == definition.MESSAGE_NOT_FOUND

    with_broker(test)


@pytest.mark.parametrize("invisible_s", [0, -1, 0.099, 12 * 3600 + 0.001])
def test_point_39_an_invisible_time_out_of_bounds_is_refused(with_broker: WithBroker, invisible_s: float) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            received = await client.receive("billing", "orders", invisible_s=invisible_s, polling_s=3)
            assert received.kinds == ["status", "delivery_timestamp"]
            assert received.code == definition.ILLEGAL_INVISIBLE_TIME

    with_broker(test)


def test_point_39_a_renewed_receive_needs_no_invisible_time(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            [sent] = await client.sent(message("orders"))
            assert (await client.receive("billing", "orders", invisible_s=None)).ids == [sent]

    with_broker(test)


@pytest.mark.parametrize("space", ["\u3000", "\u00a0", "\u2003"])
def test_point_40_white_space_of_other_rules_than_javas_belongs_to_a_tag(with_broker: WithBroker, space: str) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"plain", tag="a"))
            await client.sent(message("orders", b"spaced", tag=f"{space}a"))
            received = await client.receive("billing", "orders", tags=f" {space}a ")
            assert [each.body for each in received.messages] == [b"spaced"]
            assert received.messages[0].system_properties.tag == f"{space}a"

    with_broker(test)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (None, b"ABn"),
        ("", b"ABn"),
        ("*", b"ABn"),
        (" * ", b"ABn"),
        ("A", b"A"),
        ("A || B", b"AB"),
        ("A||B", b"AB"),
        ("a", b""),
        ("C", b""),
    ],
)
def test_point_40_a_tag_filter_brings_exactly_its_tags(
    with_broker: WithBroker, tags: str | None, expected: bytes
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"A", tag="A"))
            await client.sent(message("orders", b"B", tag="B"))
            await client.sent(message("orders", b"n"))
            received = await client.receive("billing", "orders", tags=tags)
            assert b"".join(each.body for each in received.messages) == expected
            again = await client.receive("billing", "orders", tags="*")
            assert again.code == definition.MESSAGE_NOT_FOUND, "what a filter passed over is done for the group"

    with_broker(test)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a > 5 AND region IN ('x')", b"2"),
        ("a > 1", b"12"),
        ("region IS NULL", b"1n"),
        ("TAGS = 'paid'", b"2"),
        ("NOT (a > 5)", b"1"),
        ("TRUE", b"123n"),
    ],
)
def test_point_40_an_sql_filter_goes_by_properties(with_broker: WithBroker, expression: str, expected: bytes) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            for body, properties in (
                (b"1", {"a": "5"}),
                (b"2", {"a": "6", "region": "x"}),
                (b"3", {"a": "not a number", "region": "x"}),
            ):
                sent = message("orders", body, tag="paid" if body == b"2" else "created")
                sent.user_properties.update(properties)
                await client.sent(sent)
            await client.sent(message("orders", b"n"))
            received = await client.receive("billing", "orders", tags=expression, filter_type=definition.SQL)
            assert b"".join(each.body for each in received.messages) == expected
            again = await client.receive("billing", "orders", tags="*")
            assert again.code == definition.MESSAGE_NOT_FOUND, "what a filter passed over is done for the group"

    with_broker(test)


@pytest.mark.parametrize("expression", ["", "a >", "'text'", "a > 5 AND"])
def test_point_40_sql_that_is_none_is_refused(with_broker: WithBroker, expression: str) -> None:
    """At the receive, and before it when the consumer declares what it wants."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            received = await client.receive(
                "billing", "orders", tags=expression, filter_type=definition.SQL, polling_s=3
            )
            assert received.code == definition.ILLEGAL_FILTER_EXPRESSION
            settings = consumer_settings("billing", "orders")
            settings.subscription.subscriptions[0].expression.type = definition.SQL
            settings.subscription.subscriptions[0].expression.expression = expression
            with pytest.raises(grpc.aio.AioRpcError, match=r"the filter expression|a condition is expected") as ended:
                await client.declare(settings)
            assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    with_broker(test)


def test_point_41_large_messages_come_in_several_answers(with_broker: WithBroker) -> None:
    """An answer lies in the broker's memory as a whole; 32 messages of 4 MiB once did."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            sent = [(await client.sent(message("orders", bytes(3 << 20))))[0] for _ in range(3)]
            received = [await client.receive("billing", "orders") for _ in range(2)]
            assert [each.ids for each in received] == [sent[:2], sent[2:]]

    with_broker(test)


@pytest.mark.parametrize(("asked", "expected"), [(100, 32), (5, 5), (0, 1), (-3, 1)])
def test_point_41_a_batch_is_bounded_on_both_sides(with_broker: WithBroker, asked: int, expected: int) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            for _ in range(4):
                await client.sent(*(message("orders") for _ in range(10)))
            received = await client.receive("billing", "orders", count=asked)
            assert len(received.messages) == expected

    with_broker(test)


def test_what_one_group_receives_is_there_for_every_other(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            sent = [(await client.sent(message("orders")))[0] for _ in range(6)]
            for group in ("billing", "shipping"):
                received = await client.receive(group, "orders")
                assert sorted(received.ids) == sorted(sent)
                await client.ack(group, "orders", *received.handles)

    with_broker(test)


def test_messages_of_a_topic_with_fewer_queues_than_before_are_all_delivered(with_broker: WithBroker) -> None:
    """An acknowledged message is not lost because the queue it lies in is no longer written to."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=8)
        async with Client(broker.endpoint) as client:
            sent = [(await client.sent(message("orders")))[0] for _ in range(16)]
            broker.store.topics.update(Topic("orders", TopicType.NORMAL, 2, 2))
            received = await client.receive("billing", "orders")
            assert sorted(received.ids) == sorted(sent)

    with_broker(test)


def test_a_queue_that_a_topic_grows_has_its_first_messages_delivered_to_groups_that_read_the_topic(
    with_broker: WithBroker,
) -> None:
    """Where new groups start at the end, an old group must not start at the end of a new queue."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.declare(consumer_settings("billing", "orders"))
            await client.receive("billing", "orders")
            broker.store.topics.update(Topic("orders", TopicType.NORMAL, 4, 4))
            sent = [(await client.sent(message("orders")))[0] for _ in range(8)]
            received = await client.receive("billing", "orders")
            assert sorted(received.ids) == sorted(sent)

    with_broker(test, delivery=LATEST)


def test_a_receive_of_an_unknown_topic_ends_at_once_and_makes_no_topic(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        async with Client(broker.endpoint) as client:
            received = await client.receive("billing", "nowhere", polling_s=600, deadline_s=900)
            assert received.code == definition.TOPIC_NOT_FOUND
            assert broker.store.topics.get("nowhere") is None

    with_broker(test)


def test_a_stop_answers_the_receives_that_wait(with_broker: WithBroker) -> None:
    waiting = []

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        client = Client(broker.endpoint)
        waiting.append(asyncio.ensure_future(read_all(client.start_receive("billing", "orders", polling_s=5))))
        await until(lambda: broker.broker._delivery.waiting_polls == 1, "the receive waits")
        stopping = asyncio.ensure_future(broker.broker._stop_front(1))
        assert (await waiting[0]).code == definition.MESSAGE_NOT_FOUND
        await stopping
        await client.vanish()

    with_broker(test)
