"""Sends that come in during one pass: each is answered as if it had come alone."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from quarry_mq.kv import KvError
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.store import message_store
from quarry_mq.store.message import Appended, EncodedMessage, Message, QueueId, QueueOffset
from quarry_mq.store.metadata import Permission, Topic, TopicType
from quarry_mq.store.record import encode_record
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import message
from tests.conformance.conftest import WithBroker, both_ways
from tests.rpc.fake_call import FakeCall

pytestmark = both_ways

PATH = "/apache.rocketmq.v2.MessagingService/SendMessage"


async def sent_in_one_pass(
    broker: RunningBroker, *bodies: bytes, client_ids: Sequence[str | None] = ()
) -> list[service.SendMessageResponse]:
    """The answers to calls with these bodies."""
    handler = broker.messaging.methods()[PATH].handler
    calls = [FakeCall(client_id=client_id) for client_id in client_ids] or [FakeCall() for _ in bodies]
    for call, body in zip(calls, bodies, strict=True):
        handler(call, body)
    await until(lambda: all(call.closed for call in calls), "all are answered")
    return [call.answer(service.SendMessageResponse) for call in calls]


def request(*messages: definition.Message) -> bytes:
    return service.SendMessageRequest(messages=messages).SerializeToString()


def stored_count(broker: RunningBroker, topic: str, queues: int = 4) -> int:
    return sum(broker.store.messages.bounds(QueueId(topic, number)).maximum for number in range(queues))


def codes(answers: Sequence[service.SendMessageResponse]) -> list[definition.Code]:
    return [answer.status.code for answer in answers]


def test_each_is_answered_by_what_it_is(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        broker.topic("fifo", TopicType.FIFO)
        later = Timestamp(seconds=broker.clock.wall_ms() // 1000 + 3600)
        bodies = [
            request(message("orders", b"1", message_id="one")),
            request(message("orders", b"2", message_id=" ")),
            b"\xff\xff",
            request(message("orders", b"3", delivery_timestamp=later)),
            request(message("fifo", b"4", message_group="g")),
            request(message("fifo", b"5")),
            request(message("no such topic!", b"6")),
            request(message("orders", b"7", message_id="seven"), message("orders", b"8", message_id="eight")),
            request(message("orders", b"9", message_id="nine")),
            request(),
        ]
        answers = await sent_in_one_pass(broker, *bodies)
        assert codes(answers) == [
            definition.OK,
            definition.ILLEGAL_MESSAGE_ID,
            definition.BAD_REQUEST,
            definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            definition.OK,
            definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            definition.ILLEGAL_TOPIC,
            definition.OK,
            definition.OK,
            definition.MESSAGE_CORRUPTED,
        ]
        ids = [[entry.message_id for entry in answers[number].entries] for number in (0, 7, 8)]
        assert ids == [["one"], ["seven", "eight"], ["nine"]]
        assert stored_count(broker, "orders") == 4

    with_broker(test)


def test_plain_and_other_sends_take_turns_in_the_queues(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        plain = request(message("orders", b"plain"))
        other = request(message("orders", b"traced", trace_context="00-abc"))
        await sent_in_one_pass(broker, *[plain, other] * 20)
        counts = [broker.store.messages.bounds(QueueId("orders", number)).maximum for number in range(4)]
        assert counts == [10, 10, 10, 10]

    with_broker(test)


def test_batches_and_single_messages_get_the_places_that_their_answers_tell(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        numbers = iter(range(1_000))
        batches = [[f"id-{next(numbers)}" for _ in range(size)] for size in (2, 1, 32, 1, 1, 3, 5, 1, 2)]
        bodies = [
            request(*[message("orders", each.encode(), message_id=each, tag="t") for each in ids]) for ids in batches
        ]
        answers = await sent_in_one_pass(broker, *bodies)
        found = {
            bytes(broker.store.messages.read(entry).body).decode(): (number, entry.queue_offset)
            for number in range(4)
            for entry in broker.store.messages.entries(QueueId("orders", number), QueueOffset(0), 100)
        }
        assert len(found) == sum(map(len, batches))
        for ids, answer in zip(batches, answers, strict=True):
            assert [entry.message_id for entry in answer.entries] == ids
            assert [entry.offset for entry in answer.entries] == [found[each][1] for each in ids]
            first_queue, first_offset = found[ids[0]]
            assert [found[each] for each in ids] == [(first_queue, first_offset + n) for n in range(len(ids))]

    with_broker(test)


def test_who_names_no_client_harms_nobody(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        body = request(message("orders"))
        answers = await sent_in_one_pass(broker, body, body, body, client_ids=["a", None, "b"])
        assert codes(answers) == [definition.OK, definition.CLIENT_ID_REQUIRED, definition.OK]

    with_broker(test)


def test_a_topic_is_made_by_the_first_of_them(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        answers = await sent_in_one_pass(broker, *[request(message("new"))] * 5)
        assert codes(answers) == [definition.OK] * 5
        assert broker.store.topics.get("new") is not None
        broker.store.topics.create(Topic("closed", TopicType.NORMAL, 4, 4, Permission.READ))
        [answer] = await sent_in_one_pass(broker, request(message("closed")))
        assert answer.status.code == definition.FORBIDDEN

    with_broker(test, topics={"auto_create": True})


def test_what_waits_is_bounded_for_each_client(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        body = request(message("orders", bytes(600)))
        answers = await sent_in_one_pass(broker, *[body] * 4, client_ids=["a", "a", "b", "a"])
        assert codes(answers) == [
            definition.OK,
            definition.TOO_MANY_REQUESTS,
            definition.OK,
            definition.TOO_MANY_REQUESTS,
        ]
        assert codes(await sent_in_one_pass(broker, body)) == [definition.OK]
        assert broker.messaging.components.sends.waiting_sizes.total == 0

    with_broker(test, limits={"waiting_sends_per_client": 1_000})


def test_a_full_disk_is_told_to_each_and_nothing_is_pending(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        commit = broker.messaging.components.sends.commit
        commit.refuse_sends("the disk is full")
        body = request(message("orders"))
        answers = await sent_in_one_pass(broker, *[body] * 3)
        assert codes(answers) == [definition.TOO_MANY_REQUESTS] * 3
        assert all("the disk is full" in answer.status.message for answer in answers)
        commit.refuse_sends("")
        assert codes(await sent_in_one_pass(broker, *[body] * 3)) == [definition.OK] * 3
        assert stored_count(broker, "orders") == 3
        assert broker.messaging.components.sends.waiting_sizes.total == 0

    with_broker(test)


def test_sends_that_are_refused_together_are_tried_one_by_one(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        refused = 0

        def append_encoded(_messages: list[EncodedMessage]) -> list[Appended]:
            nonlocal refused
            refused += 1
            raise KvError("where one of the queues ends cannot be read")

        monkeypatch.setattr(broker.store.messages, "append_encoded", append_encoded)
        answers = await sent_in_one_pass(broker, *[request(message("orders", b"%d" % n)) for n in range(3)])
        assert codes(answers) == [definition.OK] * 3
        assert stored_count(broker, "orders") == 3
        assert refused <= 1
        assert broker.messaging.components.sends.waiting_sizes.total == 0

    with_broker(test)


def test_stats_count_each_of_them(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        bodies = [request(message("orders", bytes(size))) for size in (10, 3000, 10)]
        bodies.append(request(message("orders", bytes(10)), message("orders", bytes(10))))
        await sent_in_one_pass(broker, *bodies)
        await asyncio.sleep(0)
        sample = broker.registry.get_sample_value
        assert sample("quarry_sends_total", {"outcome": "stored"}) == 4
        assert sample("quarry_messages_stored_total") == 5
        assert sample("quarry_send_duration_seconds_count") == 4
        traffic = broker.messaging.components.sends.metrics.traffic
        [(key, row)] = traffic.sent_by_topic.rows()
        assert (key.topic, key.message_type, row.messages) == ("orders", "normal", 5)
        assert row.bytes == traffic.bytes_sent == broker.store.messages.appended_up_to
        assert row.sizes.counts()[:2] == (4, 1)

    with_broker(test)


def with_properties(body: bytes, properties: Mapping[str, str], **system: object) -> definition.Message:
    made = message("orders", body, **system)
    made.user_properties.update(properties)
    return made


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(with_properties(b"x", {}, message_id="i" * 33_000), id="message id"),
        pytest.param(with_properties(b"x", {}, message_id="i" * 16_400), id="half a message id"),
        pytest.param(
            with_properties(b"x", {"p": "v" * 16_300}, message_id="i" * 16_400), id="properties beside a message id"
        ),
        pytest.param(with_properties(b"x", {}, born_host="h" * 33_000), id="born host"),
        pytest.param(
            with_properties(b"x", {"p": "v" * 16_300}, born_host="h" * 16_400), id="properties beside a born host"
        ),
        pytest.param(with_properties(b"x", {}, trace_context="t" * 33_000), id="trace context"),
        pytest.param(with_properties(b"x", {}, keys=[f"{number}" for number in range(16_000)]), id="keys"),
        pytest.param(with_properties(b"x", {"INNER_MULTI_DISPATCH": "%LMQ%" + "x" * 16_000}), id="light queue name"),
        pytest.param(
            with_properties(b"x", {"INNER_MULTI_DISPATCH": ",".join(f"%LMQ%{number}" for number in range(1_500))}),
            id="light queue names",
        ),
    ],
)
def test_what_a_record_cannot_hold_is_its_senders_fault_alone(with_broker: WithBroker, bad: definition.Message) -> None:
    """The properties of a record have 32,767 bytes. With the native part one such send poisoned the store."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        good = [request(message("orders", b"%d" % number)) for number in range(3)]
        answers = await sent_in_one_pass(broker, good[0], request(bad), good[1], request(message("orders"), bad))
        assert [answers[0].status.code, answers[2].status.code] == [definition.OK, definition.OK]
        for each in (answers[1], answers[3]):
            assert definition.BAD_REQUEST <= each.status.code < definition.INTERNAL_ERROR
        assert broker.health.look().is_ready
        assert codes(await sent_in_one_pass(broker, good[2])) == [definition.OK]
        assert stored_count(broker, "orders") == 3

    with_broker(test)


def test_what_an_encoder_refuses_is_its_senders_fault_alone(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever gets past all bounds: neither the messages beside it nor the store suffer."""

    def refuse(taken: Message, *arguments: Any, **options: Any) -> bytes:
        if bytes(taken.body) == b"bad":
            raise struct.error("int too large to convert")
        return encode_record(taken, *arguments, **options)

    monkeypatch.setattr(message_store, "encode_record", refuse)

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        encode_batch = broker.store.messages._encode_batch

        def refuse_batch(messages: list[EncodedMessage], *arguments: Any) -> Any:
            if any(each.body == b"bad" for each in messages):
                raise OverflowError("out of range integral type conversion attempted")
            return encode_batch(messages, *arguments)

        broker.store.messages._encode_batch = refuse_batch
        bodies = [request(message("orders", body)) for body in (b"1", b"bad", b"2")]
        answers = await sent_in_one_pass(broker, *bodies)
        assert codes(answers) == [definition.OK, definition.INTERNAL_SERVER_ERROR, definition.OK]
        assert broker.health.look().is_ready
        assert codes(await sent_in_one_pass(broker, bodies[0])) == [definition.OK]
        assert stored_count(broker, "orders") == 3

    with_broker(test)
