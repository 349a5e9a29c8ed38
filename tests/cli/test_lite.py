"""`quarry lite`, against a broker in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.online import lite
from store.clock import SystemClock
from store.disk import PosixDisk
from store.metadata import Topic, TopicType
from store.metadata.lite import light_queue_name
from store.opening import open_store
from store.settings import StoreSettings
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


def run(broker: Broker, *words: object, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["lite", *map(str, words), "--admin", broker.admin])
    assert result.exit_code == status, result.output
    return result.stdout if status == 0 else result.stderr


def rows(broker: Broker, *words: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(broker, *words, "--json").splitlines()]


def test_lite_topics_are_listed_shown_counted_and_deleted(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite, "PAGE_ROWS", 2)
    listed = rows(broker, "list", "P")
    assert [each["name"] for each in listed] == NAMES
    assert (listed[0]["minOffset"], listed[0]["maxOffset"], listed[0]["subscribers"]) == (0, 2, 0)
    assert rows(broker, "list", "P", "--limit", 3) == listed[:3]
    assert rows(broker, "list", "P", "--prefix", "session-4") == listed[4:]
    assert rows(broker, "show", "P", NAMES[0]) == listed[:1]
    assert "session-4" in run(broker, "list", "P")
    assert listed[0]["lastStoredAt"] in run(broker, "show", "P", NAMES[0])

    statistics = {"topic": "P", "liteTopics": 5, "liteTopicsMax": 1_000_000, "ttlMinutes": 60}
    until(lambda: rows(broker, "stats", "P") == [statistics], "the count")
    assert rows(broker, "delete", "P", NAMES[1]) == [{"deleted": NAMES[1], "topic": "P"}]
    assert rows(broker, "list", "P") == [listed[0], *listed[2:]]
    assert rows(broker, "stats", "P") == [{**statistics, "liteTopics": 4}]


def test_refusals_are_one_line(broker: Broker) -> None:
    assert run(broker, "show", "P", "nobody", status=2).strip() == "topic P has no lite topic nobody"
    assert run(broker, "delete", "P", "nobody", status=2).strip() == "topic P has no lite topic nobody"
    assert run(broker, "list", "Q", status=2).strip() == "no topic Q"
