"""One message, asked of a running broker: by its id, its offset id, or its place in a queue."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import query_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.query_pb2_grpc import QueryServiceStub
from quarry_mq.protocol.signature import signed_admin_headers
from quarry_mq.server.admin_port.messages import queries
from quarry_mq.server.wire.messages import host_from_text
from quarry_mq.store.message import Host, Message, PhysicalOffset, QueueOffset
from quarry_mq.store.metadata import TopicType
from quarry_mq.store.record import StoredMessage, decode_record, encode_record, offset_message_id
from quarry_mq.store.record.layout import HEAD_SIZE
from quarry_mq.store.record.replacement import encode_replacement
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker
from tests.conformance.secured import SECRET, SECURED, add_user, client_of
from tests.conformance.test_queries import INDEX

_calls = count()


async def get(broker: RunningBroker, user: str | None = None, **fields: Any) -> pb.GetMessageResponse:
    headers: Any = ()
    if user is not None:
        method, nonce = "/quarry.admin.v1.QueryService/GetMessage", f"{user:-<10}{next(_calls):010}"
        headers = signed_admin_headers(user, SECRET, method, now_ms=broker.clock.wall_ms(), nonce=nonce)
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        stub = QueryServiceStub(channel)
        answer: pb.GetMessageResponse = await stub.GetMessage(pb.GetMessageRequest(**fields), metadata=headers)
        return answer


async def refused(broker: RunningBroker, user: str | None = None, **fields: Any) -> str:
    """Code and words."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await get(broker, user, **fields)
    return f"{caught.value.code().name} {caught.value.details()}"


def record_of(answer: pb.GetMessageResponse) -> StoredMessage:
    found = answer.message
    record = decode_record(memoryview(found.record), 0, PhysicalOffset(found.physical_offset), check_crc=True)
    assert isinstance(record, StoredMessage)
    return record


def place(queue: int, offset: int) -> pb.QueuePlace:
    return pb.QueuePlace(queue=queue, offset=offset)


def offset_id(broker: RunningBroker, at: int) -> str:
    return offset_message_id(host_from_text(broker.endpoint), PhysicalOffset(at))


def test_a_message_is_found_in_each_way_with_what_has_become_of_it(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            for body in (b"1", b"2", b"2 again", b"3"):
                await client.sent(message("orders", body, message_id=f"M{body.decode()[0]}", keys=["M1"]))
            await client.receive("billing", "orders", count=1)
        first = await get(broker, topic="orders", place=place(0, 0))
        record = record_of(first)
        assert (record.body.tobytes(), record.queue_offset, record.topic) == (b"1", 0, "orders")
        [queue] = first.message.queues
        [group] = queue.groups
        assert (queue.is_there, group.group, group.state) == (True, "billing", pb.MESSAGE_STATE_IN_FLIGHT)
        its_id = offset_message_id(record.store_host, record.physical_offset)
        for fields in (
            {"id": its_id},
            {"id": its_id.lower(), "topic": "orders"},
            {"id": "M1", "topic": "orders"},  # also a key of all the others
        ):
            assert await get(broker, **fields) == pb.GetMessageResponse(message=first.message, same_id=1)
        twice = await get(broker, id="M2", topic="orders")
        assert (record_of(twice).body.tobytes(), twice.same_id) == (b"2 again", 2)

    with_broker(test, index=INDEX)


def test_what_is_not_there_and_what_cannot_be_meant_is_said_by_field(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        broker.topic("bills", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"1", message_id="M1"))
        record = record_of(await get(broker, topic="orders", place=place(0, 0)))
        end = record.physical_offset + record.size
        elsewhere = offset_message_id(Host(bytes([192, 0, 2, 1]), 10911), record.physical_offset)
        mine = offset_id(broker, record.physical_offset)
        for fields, words in (
            ({"topic": "orders", "id": "M9"}, "NOT_FOUND id: topic orders has no message with this id"),
            ({"topic": "bills", "id": "M1"}, "NOT_FOUND id"),
            ({"topic": "bills", "id": mine}, "NOT_FOUND id"),
            ({"id": elsewhere}, "NOT_FOUND id"),
            ({"id": offset_id(broker, record.physical_offset + 1)}, "NOT_FOUND id: there is no message with this id"),
            ({"id": offset_id(broker, end)}, "NOT_FOUND id"),
            ({"id": offset_id(broker, 2**62)}, "NOT_FOUND id"),
            (
                {"topic": "orders", "place": place(0, 1)},
                "NOT_FOUND offset: queue 0 of topic orders has offsets 0 to 0",
            ),
            ({"topic": "orders", "place": place(7, 0)}, "NOT_FOUND offset: queue 7 of topic orders has no messages"),
            ({"topic": "ghosts", "place": place(0, 0)}, "NOT_FOUND topic: no topic ghosts"),
            ({"topic": "%LMQ%orders", "place": place(0, 0)}, "NOT_FOUND topic"),
            ({}, "INVALID_ARGUMENT id, place"),
            ({"topic": "orders", "id": ""}, "INVALID_ARGUMENT id, place"),
            ({"id": "M1"}, "INVALID_ARGUMENT topic: must be given"),
            ({"id": mine[:-1] + "x"}, "INVALID_ARGUMENT topic: must be given"),
            ({"place": place(0, 0)}, "INVALID_ARGUMENT topic"),
            ({"topic": "orders", "place": place(-1, 0)}, "INVALID_ARGUMENT queue: -1"),
            ({"topic": "orders", "place": place(0, -1)}, "INVALID_ARGUMENT offset: -1"),
        ):
            assert (await refused(broker, **fields)).startswith(words), fields

    with_broker(test, index=INDEX)


def test_without_an_index_ids_of_senders_alone_are_not_found(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"1", message_id="M1"))
        assert record_of(await get(broker, id=offset_id(broker, 0))).body.tobytes() == b"1"
        assert (await refused(broker, topic="orders", id="M1")).startswith("FAILED_PRECONDITION this broker has no")
        # it is the record that is missing, not the index
        assert (await refused(broker, topic="orders", id=offset_id(broker, 1))).startswith("NOT_FOUND id")

    with_broker(test)


@pytest.mark.parametrize(
    ("looks_like_one", "alone"),
    [
        ("7F0000010000DE18000000AA25123456", "NOT_FOUND id"),
        ("7F0000010BDE18B4AAC2251234560000", "INVALID_ARGUMENT topic"),
    ],
)
def test_an_id_of_a_sender_that_looks_like_an_offset_id_is_found(
    with_broker: WithBroker, looks_like_one: str, alone: str
) -> None:
    """As clients of RocketMQ 4 make them."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"1", message_id=looks_like_one))
        assert record_of(await get(broker, topic="orders", id=looks_like_one)).body.tobytes() == b"1"
        assert (await refused(broker, id=looks_like_one)).startswith(alone)

    with_broker(test, index=INDEX)


def test_a_body_that_looks_like_a_message_is_none(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        host = host_from_text(broker.endpoint)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"first"))
            at = PhysicalOffset(broker.store.messages.dispatched_up_to + HEAD_SIZE)  # where the next body begins
            fake = Message("orders", 0, b"forged", {}, 0, host, host)
            await client.sent(message("orders", encode_record(fake, QueueOffset(0), at, 0, b"")))
        record = broker.store.messages.reader.decode(at, check_crc=True)
        assert isinstance(record, StoredMessage)
        assert (await refused(broker, id=offset_id(broker, at))).startswith("NOT_FOUND id")

    with_broker(test)


def test_messages_that_wait_are_found_by_their_offset_id(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", TopicType.MIXED, queues=1)
        async with Client(broker.endpoint) as client:
            delayed = message("orders", b"delayed")
            delayed.system_properties.delivery_timestamp.FromMilliseconds(broker.clock.wall_ms() + 60_000)
            await client.sent(delayed)
            half_at = broker.store.messages.dispatched_up_to
            await client.sent(message("orders", b"half", message_type=definition.TRANSACTION))
        assert record_of(await get(broker, id=offset_id(broker, 0))).body.tobytes() == b"delayed"
        assert record_of(await get(broker, id=offset_id(broker, half_at))).body.tobytes() == b"half"

    with_broker(test)


def test_a_message_of_a_topic_that_was_deleted_is_not_found_by_its_offset_id(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"old"))
            broker.broker._administration.delete_topic("orders")
            old = offset_id(broker, 0)
            deleted = "the record at offset 0 was deleted together with its topic orders"
            assert deleted in await refused(broker, id=old)
            broker.topic("orders", queues=1)
            assert deleted in await refused(broker, id=old)
            new = offset_id(broker, broker.store.messages.appended_up_to)
            await client.sent(message("orders", b"new"))
        assert (await refused(broker, id=old)).startswith("NOT_FOUND")
        assert record_of(await get(broker, id=new)).body.tobytes() == b"new"

    with_broker(test)


def test_a_message_whose_queue_is_gone_is_found_by_its_offset_id(with_broker: WithBroker, tmp_path: Path) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"its body"))
        broker.store.queues.store.delete_topic("orders")
        found = await get(broker, id=offset_id(broker, 0))
        assert record_of(found).body.tobytes() == b"its body"
        assert not found.message.queues[0].is_there
        [segment] = (tmp_path / "store" / "commitlog").iterdir()
        with segment.open("r+b") as file:
            file.seek(file.read(4096).index(b"its body"))
            file.write(b"I")
        words = await refused(broker, id=offset_id(broker, 0))
        assert words.startswith("NOT_FOUND id: there is no message with this id, or its record is damaged")
        assert "CRC" in words

    with_broker(test)


def test_a_damaged_record_is_told(with_broker: WithBroker, tmp_path: Path) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"whole and good", keys=["k"]))
        [segment] = (tmp_path / "store" / "commitlog").iterdir()
        with segment.open("r+b") as file:
            file.seek(file.read(4096).index(b"good"))
            file.write(b"Good")
        for fields in ({"id": offset_id(broker, 0)}, {"topic": "orders", "place": place(0, 0)}):
            words = await refused(broker, **fields)
            assert words.startswith(f"DATA_LOSS commitlog/{segment.name}: "), words
            assert "CRC" in words
        async with grpc.aio.insecure_channel(broker.admin) as channel:
            stub = QueryServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match=segment.name) as caught:
                await stub.QueryMessages(pb.QueryMessagesRequest(topic="orders", key="k"))
        assert caught.value.code() is grpc.StatusCode.DATA_LOSS

    with_broker(test, index=INDEX)


def test_a_record_that_was_given_up_is_told(with_broker: WithBroker, tmp_path: Path) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"1"))
        size = record_of(await get(broker, topic="orders", place=place(0, 0))).size
        [segment] = (tmp_path / "store" / "commitlog").iterdir()
        with segment.open("r+b") as file:
            for at, replacement in encode_replacement(PhysicalOffset(0), size, 0, closes_segment=False):
                file.seek(at)
                file.write(replacement)
        by_id = await refused(broker, id=offset_id(broker, 0))
        by_place = await refused(broker, topic="orders", place=place(0, 0))
        assert by_id.startswith("NOT_FOUND id")
        assert by_place.startswith(f"DATA_LOSS commitlog/{segment.name}: ")
        assert "given up" in by_id
        assert "given up" in by_place

    with_broker(test)


def test_it_needs_the_right_to_get_the_topic_or_all_topics(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        broker.topic("bills", queues=1)
        add_user(broker, "shop", "topic:* pub", "topic:orders get")
        add_user(broker, "ops", "topic:* get")
        async with client_of(broker, "shop") as client:
            await client.sent(message("orders", b"1"))
            await client.sent(message("bills", b"2"))
        bill = offset_id(broker, record_of(await get(broker, "ops", topic="bills", place=place(0, 0))).physical_offset)
        order = offset_id(broker, 0)
        assert record_of(await get(broker, "shop", topic="orders", place=place(0, 0))).body.tobytes() == b"1"
        assert record_of(await get(broker, "shop", topic="orders", id=order)).body.tobytes() == b"1"
        assert record_of(await get(broker, "ops", id=bill)).body.tobytes() == b"2"
        assert (await refused(broker, "shop", topic="orders", id=bill)).startswith("NOT_FOUND id: there is no message")
        for fields in ({"id": order}, {"topic": "bills", "id": bill}, {"topic": "bills", "place": place(0, 0)}):
            assert (await refused(broker, "shop", **fields)).startswith("PERMISSION_DENIED")
        assert (await refused(broker, topic="orders", id=order)).startswith("UNAUTHENTICATED")

    with_broker(test, security=SECURED)


@pytest.mark.parametrize("method", ["QueryMessages", "TraceMessages"])
def test_large_messages_of_a_key_come_in_several_answers(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(queries, "ANSWER_SIZE_MAX", 2_500)

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            for number in range(5):
                await client.sent(message("orders", b"%d" % number * (4_000 if number == 3 else 1_000), keys=["k"]))

        async def ask(**fields: Any) -> tuple[list[int], bool]:
            async with grpc.aio.insecure_channel(broker.admin) as channel:
                call = getattr(QueryServiceStub(channel), method)
                answer = await call(pb.QueryMessagesRequest(topic="orders", key="k", **fields))
            found = [
                decode_record(memoryview(each.record), 0, PhysicalOffset(each.physical_offset))
                for each in answer.messages
            ]
            return [each.queue_offset for each in found if isinstance(each, StoredMessage)], answer.has_more

        assert await ask() == ([4], True)
        assert await ask(skip=1) == ([3], True)  # alone: it is larger than an answer
        assert await ask(skip=2) == ([2, 1], True)
        assert await ask(skip=2, limit=2) == ([2, 1], False)
        assert await ask(skip=4) == ([0], False)
        assert await ask(skip=5) == ([], False)
        for fields in ({"skip": -1}, {"skip": 990, "limit": 11}, {"skip": 969}):
            with pytest.raises(grpc.aio.AioRpcError, match=f"skip {fields['skip']}") as caught:
                await ask(**fields)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    with_broker(test, index=INDEX)
