"""`quarry lite`, against a broker in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quarry_mq.cli.online.topics import lite
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.metadata.lite import light_queue_name
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.settings import StoreSettings
from tests.cli.online_runner import Quarry
from tests.e2e.broker import Broker, until
from tests.store.assembly import message

NAMES = [f"session-{number}" for number in range(5)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One whose topic `P` has five lite topics."""
    directory = tmp_path_factory.mktemp("lite")
    fill(directory / "store")
    broker = Broker(directory / "store", logs=directory / "logs")
    try:
        yield broker.start()
        broker.stop()
    finally:
        broker.close()


def fill(root: Path) -> None:
    settings = StoreSettings(root=root, segment_size=16 * 1024 * 1024)
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
    store.topics.create(Topic("P", TopicType.LITE, 1, 1, attributes={"lite.topic.expiration": "60"}))
    for name in (*NAMES, NAMES[0]):
        store.messages.append([message("P", INNER_MULTI_DISPATCH=light_queue_name("P", name))])
    store.messages.dispatch(store.messages.flush())
    store.close()


@pytest.fixture(scope="module")
def lite_topics(broker: Broker) -> Quarry:
    return Quarry(broker, "lite")


def test_lite_topics_are_listed_shown_counted_and_deleted(lite_topics: Quarry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite, "PAGE_ROWS", 2)
    listed = lite_topics.rows("list", "P")
    assert [each["name"] for each in listed] == NAMES
    assert (listed[0]["minOffset"], listed[0]["maxOffset"], listed[0]["subscribers"]) == (0, 2, 0)
    assert lite_topics.rows("list", "P", "--limit", 3) == listed[:3]
    assert lite_topics.rows("list", "P", "--prefix", "session-4") == listed[4:]
    assert lite_topics.rows("show", "P", NAMES[0]) == listed[:1]
    assert "session-4" in lite_topics.run("list", "P")
    assert listed[0]["lastStoredAt"] in lite_topics.run("show", "P", NAMES[0])

    statistics = {"topic": "P", "liteTopics": 5, "liteTopicsMax": 1_000_000, "ttlMinutes": 60}
    until(lambda: lite_topics.rows("stats", "P") == [statistics], "the count")
    assert lite_topics.rows("delete", "--yes", "P", NAMES[1]) == [{"deleted": NAMES[1], "topic": "P"}]
    assert lite_topics.rows("list", "P") == [listed[0], *listed[2:]]
    assert lite_topics.rows("stats", "P") == [{**statistics, "liteTopics": 4}]


def test_refusals_are_one_line(lite_topics: Quarry) -> None:
    assert lite_topics.run("show", "P", "nobody", status=2).strip() == "topic P has no lite topic nobody"
    assert lite_topics.run("delete", "--yes", "P", "nobody", status=2).strip() == "topic P has no lite topic nobody"
    assert lite_topics.run("list", "Q", status=2).strip() == "no topic Q"
