"""Operators list lite topics on the admin port, and remove one."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest

from quarry_mq.protocol.proto.quarry.admin.v1 import lite_topics_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.lite_topics_pb2_grpc import LiteTopicServiceStub
from quarry_mq.server.admin_port.calls.access import admin_needs
from quarry_mq.server.lite import lite_topics as lite_topics_module
from quarry_mq.store.consumequeue import names
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import Group
from quarry_mq.store.metadata.lite import LiteSubscriptionTable, light_queue_name
from tests.conformance.broker import RunningBroker, until
from tests.lite_topics.broker import (
    WithBroker,
    let_messages_expire,
    lite_topics,
    make_parent,
    removed,
    store,
    there,
    to_lite,
)

METHODS = {
    "ListLiteTopics": (pb.ListLiteTopicsRequest(topic="P"), "GET"),
    "GetLiteTopic": (pb.GetLiteTopicRequest(topic="P", lite_topic="a"), "GET"),
    "DeleteLiteTopic": (pb.DeleteLiteTopicRequest(topic="P", lite_topic="a"), "DELETE"),
    "GetLiteTopicStatistics": (pb.GetLiteTopicStatisticsRequest(topic="P"), "GET"),
}


async def call(broker: RunningBroker, method: str, request: Any) -> Any:
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        return await getattr(LiteTopicServiceStub(channel), method)(request)


async def refused(broker: RunningBroker, method: str, request: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await call(broker, method, request)
    return f"{refusal.value.code().name}: {refusal.value.details()}"


async def all_names(broker: RunningBroker, **fields: Any) -> list[list[str]]:
    """The names, page by page."""
    pages: list[list[str]] = []
    request = pb.ListLiteTopicsRequest(topic="P", **fields)
    while True:
        page = await call(broker, "ListLiteTopics", request)
        pages.append([each.name for each in page.lite_topics])
        if not page.has_more:
            return pages
        request.after = pages[-1][-1]


def test_lite_topics_are_listed_in_pages(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "LIGHT_ROWS_PER_STEP", 2)

    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        make_parent(broker, "PP")
        assert await all_names(broker) == [[]]
        store(broker, "b", "a", "bb", "session-1", "session-2", "a-very-long-name")
        store(broker, "other", parent="PP")
        whole = ["a", "b", "bb", "session-1", "session-2", "a-very-long-name"]
        for limit in range(1, 8):
            pages = await all_names(broker, limit=limit)
            assert [name for page in pages for name in page] == whole
            assert all(len(page) == limit for page in pages[:-1])
        assert await all_names(broker, prefix="session-", limit=1) == [["session-1"], ["session-2"]]
        assert await all_names(broker, prefix="b") == [["b", "bb"]]
        assert await all_names(broker, after="zzz") == [whole[3:]], "a place, whether or not it is there"

    with_broker(test)


def test_no_page_is_longer_than_it_may_be(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite_topics_module, "PAGE_MAX", 3)

    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, *"abcdefg")
        assert await all_names(broker, limit=2_147_483_647) == [["a", "b", "c"], ["d", "e", "f"], ["g"]]

    with_broker(test)


def test_one_is_shown_with_its_messages(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, "a", "b")
        broker.clock.push(60)
        store(broker, "a", "a")
        a = await call(broker, "GetLiteTopic", pb.GetLiteTopicRequest(topic="P", lite_topic="a"))
        b = await call(broker, "GetLiteTopic", pb.GetLiteTopicRequest(topic="P", lite_topic="b"))
        assert (a.name, a.minimum_offset, a.maximum_offset) == ("a", 0, 3)
        assert 59_000 < a.last_stored_at_ms - b.last_stored_at_ms < 90_000
        assert a.subscribers == 0
        for group, parent in (("one", "P"), ("two", "P"), ("other", "Q")):
            broker.store.groups.create(Group(group, attributes={"lite.bind.topic": parent}))
            table, batch = LiteSubscriptionTable(broker.store.state_engine), broker.store.state_engine.batch()
            for client in ("x", "y") if group == "one" else ("x",):
                table.stage_added(batch, group, client, "a")
            broker.store.state_engine.write(batch)
        [shown] = (await call(broker, "ListLiteTopics", pb.ListLiteTopicsRequest(topic="P", prefix="a"))).lite_topics
        assert shown.subscribers == 3

    with_broker(test)


def test_one_without_messages_in_the_log_is_shown_without_a_time(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker, minutes=None)
        store(broker, "a", "a")
        await let_messages_expire(broker)
        await until(lambda: not broker.broker._maintenance.cleaning.lag_bytes, "the entries are gone")
        a = await call(broker, "GetLiteTopic", pb.GetLiteTopicRequest(topic="P", lite_topic="a"))
        assert (a.minimum_offset, a.maximum_offset, a.HasField("last_stored_at_ms")) == (2, 2, False)

    with_broker(test)


def test_one_is_deleted_with_all_that_is_known_of_it(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker, minutes=None)
        store(broker, "a", "a", "ab")
        queue = QueueId(light_queue_name("P", "a"), 0)
        batch = broker.store.state_engine.batch()
        broker.store.offsets.stage(batch, "readers", queue, QueueOffset(1))
        broker.store.state_engine.write(batch)
        request = pb.DeleteLiteTopicRequest(topic="P", lite_topic="a")
        await call(broker, "DeleteLiteTopic", request)
        assert there(broker) == {"ab"}
        assert broker.store.offsets.get("readers", queue) is None
        assert broker.store.messages.queues_durable_up_to == broker.store.messages.dispatched_up_to
        assert removed(broker, "lite_deleted") == 1
        assert await refused(broker, "DeleteLiteTopic", request) == "NOT_FOUND: topic P has no lite topic a"

    with_broker(test)


def test_one_that_gets_a_message_meanwhile_is_not_deleted(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, "a")
        broker.store.messages.append([to_lite("a")])  # not dispatched yet
        request = pb.DeleteLiteTopicRequest(topic="P", lite_topic="a")
        assert (await refused(broker, "DeleteLiteTopic", request)).startswith("UNAVAILABLE: lite topic a of topic P")
        broker.store.messages.dispatch(broker.store.messages.flush())
        assert broker.store.messages.bounds(QueueId(light_queue_name("P", "a"), 0)) == (0, 2)

    with_broker(test)


def test_the_statistics_are_count_limit_and_time(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker, minutes=1)
        make_parent(broker, "for-ever", minutes=None)
        counts = lite_topics(broker).counts
        await until(lambda: counts.count_of("P") == 0, "the count")
        counts.born("P", "a")
        request = pb.GetLiteTopicStatisticsRequest(topic="P")
        found = await call(broker, "GetLiteTopicStatistics", request)
        assert found == pb.LiteTopicStatistics(lite_topics=1, lite_topics_max=7, ttl_ms=15 * 60_000)
        counts.configure(0)
        found = await call(broker, "GetLiteTopicStatistics", pb.GetLiteTopicStatisticsRequest(topic="for-ever"))
        assert found == pb.LiteTopicStatistics(lite_topics=0)

    with_broker(test, limits={"lite_topics_per_topic": 7})


def test_only_topics_with_lite_topics_are_asked_for_them(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        for method, (request, _) in METHODS.items():
            assert await refused(broker, method, request) == "NOT_FOUND: no topic P"
        broker.topic("P")
        for method, (request, _) in METHODS.items():
            assert await refused(broker, method, request) == (
                "INVALID_ARGUMENT: topic P is of type normal, which has no lite topics"
            )

    with_broker(test)


def test_what_can_be_no_name_is_refused(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        for text in ("a b", "$", "a$b", "é", "\x00", "../x"):
            for field, request in (
                ("prefix", pb.ListLiteTopicsRequest(topic="P", prefix=text)),
                ("after", pb.ListLiteTopicsRequest(topic="P", after=text)),
            ):
                assert (await refused(broker, "ListLiteTopics", request)).startswith(
                    f"INVALID_ARGUMENT: {field} is too long"
                )
            wrong = await refused(broker, "GetLiteTopic", pb.GetLiteTopicRequest(topic="P", lite_topic=text))
            assert wrong.startswith("INVALID_ARGUMENT: lite_topic: ")

    with_broker(test)


def test_in_files_they_are_neither_listed_nor_removed(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, "a")
        for method in ("ListLiteTopics", "GetLiteTopic", "DeleteLiteTopic"):
            text = await refused(broker, method, METHODS[method][0])
            assert text.startswith("FAILED_PRECONDITION: consume queues are in files")

    with_broker(test, consume_queue={"mode": QueueMode.FILE, "units_per_file": 16})


@pytest.mark.parametrize("method", METHODS)
def test_each_call_needs_a_rule_for_the_topic(method: str) -> None:
    request, action = METHODS[method]
    [[need]] = admin_needs(f"/quarry.admin.v1.LiteTopicService/{method}", request, "cluster")
    assert (need.kind.name, need.name, need.action.name) == ("TOPIC", "P", action)
