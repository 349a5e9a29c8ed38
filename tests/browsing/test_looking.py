"""GetStorage, ListQueueSpans, ListPending and ListLiteBacklog of a running broker."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from quarry_mq.protocol.lite_attributes import BIND_TOPIC
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2
from quarry_mq.protocol.proto.quarry.admin.v1 import lite_topics_pb2 as lite_pb
from quarry_mq.protocol.proto.quarry.admin.v1 import storage_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.server.admin import pending, storage
from quarry_mq.server.admin.storage import HOUR_MS, expires_at_ms
from quarry_mq.server.lag import consumer_lag as backlog
from quarry_mq.store.metadata import Group, TopicType
from quarry_mq.store.retention import ExpirySettings
from tests.browsing.served import Served, served
from tests.conformance.broker import until
from tests.conformance.client import message, producer_settings
from tests.conformance.lite import LiteClient
from tests.conformance.lite import send as send_lite

SEGMENT_SIZE = 64 * 1024
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    sections = {
        "store": {"segment_size": SEGMENT_SIZE},
        "limits": {"body_size": 20_000},
        "index": {"hash_files": True, "hash_slots": 7, "hash_items": 30},
        "metrics": {"lag_interval_ms": 100},
    }
    with served(tmp_path_factory.mktemp("looking"), **sections) as made:
        yield made


def storage_of(broker: Served) -> pb.Storage:
    answer = broker.call(broker.storage.GetStorage, pb.GetStorageRequest())
    assert isinstance(answer, pb.Storage)
    return answer


def test_the_files_of_the_log_have_their_times(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.topic(queues=1)
    broker.send(topic, *[bytes(19_000)] * 8, keys=["k"])
    found = storage_of(broker)
    names = [each.name for each in found.segments]
    assert len(names) == found.segment_count >= 3
    assert names == [f"{number * SEGMENT_SIZE:020d}" for number in range(len(names))]
    *closed, filling = found.segments
    assert [each.size for each in closed] == [SEGMENT_SIZE] * len(closed)
    assert filling.size == found.log_end - filling.begin
    for each, following in zip(found.segments, found.segments[1:], strict=False):
        assert each.first_stored_at_ms <= each.last_stored_at_ms == following.first_stored_at_ms
    assert found.newest_stored_at_ms == filling.last_stored_at_ms == broker.broker.store.messages.last_stored_ms
    assert found.oldest_stored_at_ms == found.segments[0].first_stored_at_ms
    monkeypatch.setattr(storage, "SHOWN_MAX", 2)
    few = storage_of(broker)
    assert ([each.name for each in few.segments], few.segment_count) == ([names[0], names[-1]], len(names))


def test_the_disk_the_rules_and_what_lies_beside_the_log(broker: Served) -> None:
    broker.send(broker.topic(), b"body", keys=["k"])

    async def indexed() -> None:
        indexes = broker.broker.store.messages.indexes
        await until(lambda: indexes.hash_files and indexes.hash_files.files, "there is a file")

    broker.run(indexed())
    found = storage_of(broker)
    assert 0 < found.disk_free < found.disk_total
    assert 0 < found.disk_used_percent < 100
    assert (found.force_percent, found.refuse_percent, found.retention_ms) == (85, 90, 72 * HOUR_MS)
    assert list(found.delete_hours) == [4]
    parts = {each.name: each.bytes for each in found.parts if each.HasField("bytes")}
    assert set(parts) == {"RocksDB", "key index"}
    assert parts["key index"] > 0
    families = {(each.database, each.family): dict(each.figures) for each in found.families}
    assert {database for database, _ in families} == {"queues", "state", "held"}
    assert "keys_estimate" in families["queues", "default"]
    assert "running_flushes" in families["state", ""], "figures of a whole database have no family"


def test_what_goes_next_goes_in_its_hour(broker: Served) -> None:
    found = storage_of(broker)
    oldest, following = found.segments[:2]
    assert found.expires_next == oldest.name
    expected = expires_at_ms(ExpirySettings(), following.first_stored_at_ms, broker.broker.clock.wall_ms())
    assert found.expires_next_at_ms == expected
    assert datetime.fromtimestamp(expected / 1000).hour == 4


def test_times_of_expiry() -> None:
    """In the hours of the local clock, whatever its zone."""
    newest_ms = 1_700_000_000_123
    any_hour = ExpirySettings(retention_ms=DAY_MS, delete_when=frozenset())
    assert expires_at_ms(any_hour, newest_ms, 0) == newest_ms + DAY_MS
    assert expires_at_ms(any_hour, newest_ms, newest_ms + 2 * DAY_MS) == newest_ms + 2 * DAY_MS, "it is past already"
    for hour in range(24):
        at_ms = expires_at_ms(ExpirySettings(retention_ms=DAY_MS, delete_when=frozenset({hour})), newest_ms, 0)
        local = datetime.fromtimestamp(at_ms / 1000)
        assert local.hour == hour
        assert newest_ms + DAY_MS <= at_ms < newest_ms + 2 * DAY_MS
        assert at_ms == newest_ms + DAY_MS or (local.minute, local.second, local.microsecond) == (0, 0, 0)


def test_spans_of_queues_come_in_pages(broker: Served) -> None:
    topic = broker.topic(queues=5)
    broker.send(topic, *[bytes(19_000)] * 4)
    pages: list[pb.ListQueueSpansResponse] = []
    while not pages or pages[-1].has_more:
        request = pb.ListQueueSpansRequest(topic=topic, limit=2)
        if pages:
            request.after = pages[-1].queues[-1].queue
        pages.append(broker.call(broker.storage.ListQueueSpans, request))
    spans = [each for page in pages for each in page.queues]
    assert [len(page.queues) for page in pages] == [2, 2, 1]
    assert [each.queue for each in spans] == list(range(5))
    with_messages = [each for each in spans if each.maximum_offset]
    assert len(with_messages) == 4
    for each in with_messages:
        assert (each.minimum_offset, each.maximum_offset) == (0, 1)
        assert each.first_stored_at_ms == each.last_stored_at_ms > 0
        assert each.expires_next == 0, "they lie further back"
    (empty,) = (each for each in spans if not each.maximum_offset)
    assert not empty.HasField("first_stored_at_ms")
    beyond = pb.ListQueueSpansRequest(topic=topic, after=2**31 - 1)
    assert not broker.call(broker.storage.ListQueueSpans, beyond).queues


def test_a_queue_tells_where_a_group_reads_next(broker: Served) -> None:
    topic = broker.topic(queues=1)
    broker.send(topic, b"first", b"second")
    broker.broker.store.groups.create(Group(name="readers"))

    def next_offset(group: str) -> int | None:
        request = pb.ListQueueSpansRequest(topic=topic, group=group)
        (found,) = broker.call(broker.storage.ListQueueSpans, request).queues
        return found.next_offset if found.HasField("next_offset") else None

    assert next_offset("readers") is None, "it has read nothing"
    admin: Any = AdminServiceStub(broker.channel)
    broker.call(admin.ResetOffset, admin_pb2.ResetOffsetRequest(group="readers", topic=topic, offset=1))
    assert next_offset("readers") == 1
    assert next_offset("") is None


def test_messages_in_the_file_that_goes_next_are_counted(tmp_path: Path) -> None:
    with served(tmp_path, store={"segment_size": SEGMENT_SIZE}) as broker:
        topic = broker.topic(queues=1)

        def span() -> pb.QueueSpan:
            (found,) = broker.call(broker.storage.ListQueueSpans, pb.ListQueueSpansRequest(topic=topic)).queues
            assert isinstance(found, pb.QueueSpan)
            return found

        broker.send(topic, b"first")
        assert not span().HasField("expires_next"), "there is no file but the one that is being filled"
        assert not storage_of(broker).HasField("expires_next")
        broker.send(topic, *[bytes(30_000)] * 3)
        assert (span().expires_next, span().maximum_offset) == (3, 4)


# -- what waits


def pending_of(broker: Served, limit: int = 0) -> pb.ListPendingResponse:
    answer = broker.call(broker.storage.ListPending, pb.ListPendingRequest(limit=limit))
    assert isinstance(answer, pb.ListPendingResponse)
    return answer


def test_what_waits_is_listed_with_when_it_is_due(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "ROWS_AT_ONCE", 2)
    delayed, halves = broker.topic(TopicType.DELAY), broker.topic(TopicType.TRANSACTION)
    now_ms = broker.broker.clock.wall_ms()

    async def fill() -> None:
        await broker.client.declare(producer_settings(halves))
        for hours in (20, 0.5, 2, 23):
            due = Timestamp()
            due.FromMilliseconds(now_ms + int(hours * HOUR_MS))
            kind = definition.DELAY
            await broker.client.sent(
                message(delayed, message_id=f"T{hours}", message_type=kind, delivery_timestamp=due)
            )
        for number in range(2):
            await broker.client.sent(message(halves, message_id=f"H{number}", message_type=definition.TRANSACTION))

    broker.run(fill())
    found = pending_of(broker)
    assert [(each.topic, each.message_id) for each in found.first_timers] == [
        (delayed, f"T{hours}") for hours in (0.5, 2, 20, 23)
    ]
    assert abs(found.first_timers[0].due_at_ms - now_ms - HOUR_MS // 2) <= 1_000
    dues = [(each.within_ms, each.timers) for each in found.due]
    assert dues == [(60_000, 0), (HOUR_MS, 1), (DAY_MS, 3), (7 * DAY_MS, 0)]
    assert (found.due_looked_at, found.late_ms) == (4, 0)
    assert [(each.topic, each.message_id, each.checks) for each in found.first_transactions] == [
        (halves, "H0", 0),
        (halves, "H1", 0),
    ]
    for each in found.first_transactions:
        assert now_ms <= each.stored_at_ms < each.next_check_at_ms
    assert [each.message_id for each in pending_of(broker, 1).first_timers] == ["T0.5"]

    async def counted() -> None:
        waiting = broker.broker.broker._background.waiting
        await until(lambda: (waiting.timers, waiting.halves) == (4, 2), "they are counted")

    broker.run(counted())
    assert (pending_of(broker).timers, pending_of(broker).transactions) == (4, 2)
    monkeypatch.setattr(pending, "WITHIN_MS", (HOUR_MS, 3 * HOUR_MS))
    found = pending_of(broker)
    assert ([each.timers for each in found.due], found.due_looked_at) == ([1, 1], 4), "the others are due later"
    monkeypatch.setattr(pending, "DUE_LOOKED_AT_MAX", 2)
    assert pending_of(broker).due_looked_at == 2


# -- lite topics


def test_the_backlog_of_lite_topics_is_that_of_the_group(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.broker.topic("events", TopicType.LITE, 1)
    broker.broker.store.groups.create(Group("devices", attributes={BIND_TOPIC: "events"}))

    def asked(limit: int = 0) -> lite_pb.ListLiteBacklogResponse:
        request = lite_pb.ListLiteBacklogRequest(topic="events", group="devices", limit=limit)
        answer = broker.call(broker.lite.ListLiteBacklog, request)
        assert isinstance(answer, lite_pb.ListLiteBacklogResponse)
        return answer

    async def fill() -> LiteClient:
        client = await LiteClient(broker.broker.endpoint).__aenter__()
        await client.start()
        await client.add("alice", "bob", "carol")
        await send_lite(broker.client, "alice", b"1", b"2", b"3")
        await send_lite(broker.client, "bob", b"4")
        await send_lite(broker.client, "nobodys", b"5")
        await client.done(await client.got(count=1))
        return client

    client = broker.run(fill())
    try:
        found = asked()
        ready = {each.lite_topic: each.ready for each in found.lite_topics}
        assert sum(ready.values()) == 3, "one was given to the client, and one is of nobody's lite topic"
        assert [each.ready for each in found.lite_topics] == sorted(ready.values(), reverse=True)
        assert set(ready) <= {"alice", "bob"}
        now_ms = broker.broker.clock.wall_ms()
        assert all(now_ms - 60_000 < each.oldest_stored_at_ms <= now_ms for each in found.lite_topics)
        (depth,) = found.clients
        assert (depth.client_id, depth.subscriptions, depth.wants_all) == (
            dict(client.metadata)["x-mq-client-id"],
            3,
            False,
        )
        assert depth.lite_topics_ready >= 1
        assert (found.is_complete, found.looked_at) == (True, 3)
        assert len(asked(limit=1).lite_topics) == 1
        monkeypatch.setattr(backlog, "LOOKED_AT_MAX", 2)
        few = asked()
        assert (few.is_complete, few.looked_at) == (False, 2)
    finally:
        broker.run(client.vanish())
