"""BrowseMessages and TailMessages of a running broker."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import browsing_pb2 as pb
from quarry_mq.protocol.signature import signed_admin_headers
from quarry_mq.server.admin import browsing as browsing_module
from quarry_mq.server.admin_port.messages import browsing
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.message import ConsumeQueueEntry, PhysicalOffset
from quarry_mq.store.metadata import TopicType
from quarry_mq.store.record import StoredMessage, decode_record, encode_replacement
from tests.browsing.served import Served, served
from tests.conformance.broker import until
from tests.conformance.client import message
from tests.conformance.lite import send as send_lite
from tests.conformance.secured import SECRET, SECURED, add_user, disable


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("browsing")) as made:
        yield made


def record_of(each: pb.BrowsedMessage) -> StoredMessage:
    found = decode_record(memoryview(each.message.record), 0, PhysicalOffset(each.message.physical_offset))
    assert isinstance(found, StoredMessage)
    return found


def bodies(answer: pb.BrowseMessagesResponse | pb.TailMessagesResponse) -> list[bytes]:
    return [bytes(record_of(each).body) for each in answer.messages]


def test_pages_go_both_ways_and_records_are_whole(broker: Served) -> None:
    topic = broker.topic()
    broker.send(topic, *(b"%d" % number for number in range(7)))
    newest = broker.browse(topic, limit=4)
    assert (bodies(newest), newest.looked_at) == ([b"6", b"5", b"4", b"3"], 4)
    assert newest.looked_up_to_ms == record_of(newest.messages[-1]).store_timestamp_ms
    broker.send(topic, b"meanwhile")
    rest = broker.browse(topic, limit=4, cursor=newest.next)
    assert (bodies(rest), rest.HasField("next")) == ([b"2", b"1", b"0"], False)
    for each in (*newest.messages, *rest.messages):
        record = record_of(each)
        assert (each.topic, each.queue, each.offset) == (topic, record.queue_number, record.queue_offset)
        assert not each.HasField("lite_offset")
    oldest = broker.browse(topic, limit=5, is_ascending=True)
    assert bodies(oldest) == [b"0", b"1", b"2", b"3", b"4"]
    assert bodies(broker.browse(topic, is_ascending=True, cursor=oldest.next)) == [b"5", b"6", b"meanwhile"]


def test_a_page_begins_at_a_time_or_at_an_offset(broker: Served) -> None:
    topic = broker.topic(queues=1)
    for number in range(5):
        broker.send(topic, b"%d" % number)
        broker.run(asyncio.sleep(0.002))
    times = [record_of(each).store_timestamp_ms for each in broker.browse(topic, is_ascending=True).messages]
    assert bodies(broker.browse(topic, stored_ms=times[2])) == [b"2", b"1", b"0"]
    assert bodies(broker.browse(topic, stored_ms=times[2], is_ascending=True)) == [b"2", b"3", b"4"]
    assert bodies(broker.browse(topic, stored_ms=times[0] - 1)) == []
    assert bodies(broker.browse(topic, stored_ms=times[4] + 1, is_ascending=True)) == []
    assert bodies(broker.browse(topic, queue=0, offset=3)) == [b"3", b"2", b"1", b"0"]
    assert bodies(broker.browse(topic, queue=0, offset=3, is_ascending=True)) == [b"3", b"4"]
    assert bodies(broker.browse(topic, queue=0, offset=2**63 - 1)) == [b"4", b"3", b"2", b"1", b"0"]
    assert bodies(broker.browse(topic, queue=0, offset=2**63 - 1, is_ascending=True)) == []


def test_the_broker_filters_by_tags_properties_and_body(broker: Served) -> None:
    topic = broker.topic()
    broker.send(topic, b"red one", tag="red")
    broker.send(topic, b"blue one", tag="blue")
    broker.send(topic, gzip.compress(b"blue two, compressed"), tag="blue", body_encoding=definition.GZIP)

    def found(**chosen: Any) -> list[bytes]:
        return bodies(broker.browse(topic, filter=pb.MessageFilter(**chosen)))

    assert found(expression="red || green") == [b"red one"]
    assert found(expression="TAGS = 'blue'", is_sql=True)[1] == b"blue one"
    assert found(body_contains=b"one") == [b"blue one", b"red one"]
    assert [gzip.decompress(each) for each in found(body_contains=b"compressed")] == [b"blue two, compressed"]
    assert found(expression="blue", body_contains=b"one") == [b"blue one"]
    assert found(expression="*", is_sql=False) == found(is_sql=True) == bodies(broker.browse(topic))
    nothing = broker.browse(topic, filter=pb.MessageFilter(expression="green"))
    assert (nothing.looked_at, nothing.HasField("next"), nothing.HasField("looked_up_to_ms")) == (3, False, True)


def test_a_page_ends_when_enough_was_looked_at(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.topic(queues=1)
    broker.send(topic, *(b"%d" % number for number in range(9)))
    monkeypatch.setattr(browsing, "LOOKED_AT_MAX", 4)
    wanted = pb.MessageFilter(body_contains=b"1")
    first = broker.browse(topic, filter=wanted)
    assert (bodies(first), first.looked_at) == ([], 4)
    second = broker.browse(topic, filter=wanted, cursor=first.next)
    assert (bodies(second), second.looked_at, second.HasField("next")) == ([b"1"], 4, True)
    monkeypatch.setattr(browsing, "READ_MAX", 1)
    assert broker.browse(topic, filter=wanted).looked_at == 1
    monkeypatch.setattr(browsing, "ANSWER_SIZE_MAX", 1)
    assert bodies(broker.browse(topic)) == [b"8"]


def test_large_messages_make_small_pages(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "ANSWER_SIZE_MAX", 30_000)
    topic = broker.topic(queues=1)
    broker.send(topic, *(bytes([number]) * 13_000 for number in range(4)))
    first = broker.browse(topic)
    assert [body[:1] for body in bodies(first)] == [b"\x03", b"\x02"]
    assert [body[:1] for body in bodies(broker.browse(topic, cursor=first.next))] == [b"\x01", b"\x00"]


def test_a_cursor_is_of_one_reading_alone(broker: Served) -> None:
    topic, other = broker.topic(), broker.topic()
    broker.send(topic, b"1", b"2")
    cursor = broker.browse(topic, limit=1).next

    def refused(**fields: Any) -> str:
        return broker.refused(broker.browsing.BrowseMessages, pb.BrowseMessagesRequest(**fields))

    assert refused(topic=topic, cursor=cursor, is_ascending=True).startswith(
        "INVALID_ARGUMENT cursor: it was made for the"
    )
    for fields in ({"topic": other}, {"topic": topic, "queue": 0}):
        assert refused(cursor=cursor, **fields).startswith("INVALID_ARGUMENT cursor: it was made for other messages")
    assert refused(topic=topic, cursor=b"\x02" + cursor[1:]).startswith("INVALID_ARGUMENT cursor: not a cursor")
    assert refused(topic=topic, cursor=cursor[:1] + b"\x07" + cursor[2:]).startswith("INVALID_ARGUMENT cursor: ")
    assert refused(topic=topic, cursor=cursor[:-1]) == (
        "INVALID_ARGUMENT cursor: it has 13 bytes, not 14: pass `next` of an answer unchanged"
    )


def test_a_lite_topic_is_browsed_and_followed_by_its_own_offsets(broker: Served) -> None:
    broker.broker.topic("events", TopicType.LITE, 2)
    broker.run(send_lite(broker.client, "alice", b"1", b"2"))
    broker.run(send_lite(broker.client, "bob", b"3"))

    async def follow() -> list[Any]:
        call = broker.browsing.TailMessages(pb.TailMessagesRequest(topic="events", lite_topic="bob", ends_after_ms=400))
        first = await call.read()
        await send_lite(broker.client, "alice", b"4")
        await send_lite(broker.client, "bob", b"5")
        return [first, await call.read(), await call.read()]

    found = broker.browse("events", lite_topic="alice")
    assert (bodies(found), [each.lite_offset for each in found.messages]) == ([b"2", b"1"], [1, 0])
    assert bodies(broker.browse("events", lite_topic="alice", offset=0)) == [b"1"]
    assert bodies(broker.browse("events", lite_topic="nobody")) == []
    assert bodies(broker.browse("events")) == [b"3", b"2", b"1"]
    first, followed, end = broker.run(follow())
    assert (first.messages, end) == ([], grpc.aio.EOF)
    assert (bodies(followed), followed.messages[0].lite_offset) == ([b"5"], 1)


def test_damaged_records_and_those_that_were_given_up_are_passed_over_and_the_damaged_told(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        topic = broker.topic(queues=1)
        broker.send(topic, b"0", b"to be damaged", b"2")
        damaged = broker.browse(topic).messages[1]
        place = PhysicalOffset(damaged.message.physical_offset)
        size = record_of(damaged).size
        [segment] = (tmp_path / "store" / "commitlog").iterdir()
        with segment.open("r+b") as file:
            file.seek(place + damaged.message.record.index(b"damaged"))
            file.write(b"DAMAGED")
        for is_ascending in (False, True):
            found = broker.browse(topic, is_ascending=is_ascending)
            assert sorted(bodies(found)) == [b"0", b"2"]
            [told] = found.damaged
            assert (told.queue, told.offset) == (0, 1)
            assert told.reason.startswith(f"commitlog/{segment.name}: the record at offset {place}, ")
            assert told.command == f"quarry group reset-offset GROUP --topic {topic} --queue 0 --to 2"
        assert not broker.browse(topic, limit=1).damaged
        second = broker.browse(topic, limit=1, cursor=broker.browse(topic, limit=1).next)
        assert (bodies(second), [each.offset for each in second.damaged]) == ([], [1])
        assert bodies(broker.browse(topic, limit=1, cursor=second.next)) == [b"0"]
        with segment.open("r+b") as file:
            for at, replacement in encode_replacement(place, size, 0, closes_segment=False):
                file.seek(at)
                file.write(replacement)
        found = broker.browse(topic)
        assert (bodies(found), found.looked_at, len(found.damaged)) == ([b"2", b"0"], 3, 0)


# -- messages as they come


async def begun(broker: Served, **fields: Any) -> Any:
    """A call that looks on already."""
    call = broker.browsing.TailMessages(pb.TailMessagesRequest(**fields))
    assert not (await call.read()).messages
    return call


async def read(call: Any, count: int) -> tuple[list[bytes], int]:
    """So many bodies, and how many messages were left out before the last of them."""
    found: list[bytes] = []
    left_out = 0
    while len(found) < count:
        answer = await call.read()
        assert answer is not grpc.aio.EOF, (found, await call.code(), await call.details())
        found += bodies(answer)
        left_out += answer.left_out
    return found, left_out


def test_messages_are_followed_as_they_come_with_a_filter(broker: Served) -> None:
    topic = broker.topic()
    broker.send(topic, b"before")

    async def follow() -> None:
        everything = await begun(broker, topic=topic)
        ones = await begun(broker, topic=topic, filter=pb.MessageFilter(expression="t", body_contains=b"one"))
        queue = await begun(broker, topic=topic, queue=1)
        for number in range(8):
            await broker.client.sent(message(topic, b"%d" % number))
        await broker.client.sent(message(topic, b"one", tag="t"), message(topic, b"two", tag="t"))
        assert await read(everything, 10) == ([*(b"%d" % number for number in range(8)), b"one", b"two"], 0)
        assert await read(ones, 1) == ([b"one"], 0)
        seen = await queue.read()
        assert {each.queue for each in seen.messages} == {1}
        for call in (everything, ones, queue):
            call.cancel()
        await until(lambda: not broker.broker.broker._tails._count, "the callers are gone")

    broker.run(follow())
    assert broker.broker.broker._tails._by_topic == {}


def test_damaged_records_are_told_and_what_follows_them_comes(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.topic(queues=1)
    store = broker.broker.broker._tails._store
    whole = store.read

    def damaged(entry: ConsumeQueueEntry) -> StoredMessage:
        if entry.queue_offset == 1:
            raise StoreDamaged(Path("/store/commitlog/0"), "the record is damaged", record_at=entry.physical_offset)
        return whole(entry)

    async def follow() -> list[pb.DamagedMessage]:
        call = await begun(broker, topic=topic)
        monkeypatch.setattr(store, "read", damaged)
        await broker.client.sent(*(message(topic, b"%d" % number) for number in range(3)))
        found: list[bytes] = []
        told: list[pb.DamagedMessage] = []
        while len(found) < 2:
            answer = await call.read()
            found += bodies(answer)
            told += answer.damaged
        assert found == [b"0", b"2"]
        call.cancel()
        return told

    [told] = broker.run(follow())
    assert (told.queue, told.offset) == (0, 1)
    assert told.command == f"quarry group reset-offset GROUP --topic {topic} --queue 0 --to 2"
    assert [each.record_at for each in broker.broker.broker._error_reporter.damage()]


def test_no_more_come_than_the_caller_wants_and_the_others_are_counted(broker: Served) -> None:
    topic = broker.topic(queues=1)

    async def follow() -> None:
        call = await begun(broker, topic=topic, messages_per_second_max=2, ends_after_ms=1_500)
        filtered = await begun(
            broker, topic=topic, messages_per_second_max=1, ends_after_ms=1_500, filter=pb.MessageFilter(expression="t")
        )
        await broker.client.sent(*(message(topic, b"%d" % number, tag="tu"[number % 2]) for number in range(10)))
        assert await read(call, 2) == ([b"0", b"1"], 8)
        assert await read(filtered, 1) == ([b"0"], 4)

    broker.run(follow())


def test_what_comes_too_fast_to_be_looked_at_is_counted(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing_module, "WAITING_MAX", 3)
    topic = broker.topic(queues=1)

    async def follow() -> None:
        call = await begun(broker, topic=topic)
        await broker.client.sent(*(message(topic, b"%d" % number) for number in range(9)))
        assert await read(call, 3) == ([b"0", b"1", b"2"], 6)
        call.cancel()

    broker.run(follow())


def test_so_many_may_look_on_at_once(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing_module, "TAILS_MAX", 2)
    topic = broker.topic()

    async def follow() -> None:
        await until(lambda: not broker.broker.broker._tails._count, "the callers before are gone")
        calls = [await begun(broker, topic=topic) for _ in range(2)]
        refused = broker.browsing.TailMessages(pb.TailMessagesRequest(topic=topic))
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        calls[0].cancel()
        await until(lambda: broker.broker.broker._tails._count == 1, "there is room")
        (await begun(broker, topic=topic)).cancel()
        calls[1].cancel()

    broker.run(follow())


def test_a_topic_that_is_deleted_ends_who_follows_it(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "CHECK_INTERVAL_S", 0.02)
    topic = broker.topic()

    async def follow() -> None:
        call = await begun(broker, topic=topic)
        broker.broker.store.topics.delete(topic)
        with pytest.raises(grpc.aio.AioRpcError, match=f"topic: topic {topic} does not exist any more") as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    broker.run(follow())


def test_who_may_get_the_topic_no_longer_follows_it_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "CHECK_INTERVAL_S", 0.02)
    with served(tmp_path, security=SECURED) as broker:
        topic = broker.topic()
        user = add_user(broker.broker, "reader", f"topic:{topic} get")

        async def follow() -> None:
            request = pb.TailMessagesRequest(topic=topic)
            path = "/quarry.admin.v1.BrowsingService/TailMessages"
            now_ms = broker.broker.clock.wall_ms()
            headers = signed_admin_headers(user, SECRET, path, now_ms=now_ms, nonce="a" * 20)
            call = broker.browsing.TailMessages(request, metadata=headers)
            assert not (await call.read()).messages
            disable(broker.broker, user)
            with pytest.raises(grpc.aio.AioRpcError, match=f"user reader may not get on topic {topic}") as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED

        broker.run(follow())


def test_a_stop_ends_who_follows_in_good_order(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        topic = broker.topic()
        call = broker.run(begun(broker, topic=topic))
        ending = broker._runner.get_loop().create_task(_ending(call))
        broker.run(asyncio.sleep(0))
        broker.broker.broker._tails.end_all()
        assert broker.run(ending_of(ending)) is grpc.StatusCode.OK


async def _ending(call: Any) -> grpc.StatusCode:
    while await call.read() is not grpc.aio.EOF:
        pass
    code: grpc.StatusCode = await call.code()
    return code


async def ending_of(task: asyncio.Task[grpc.StatusCode]) -> grpc.StatusCode:
    return await task
