"""A broker has topics and ends of queues at hand soon after its start, without being asked for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from quarry_mq.kv import EngineCorrupt
from quarry_mq.store.metadata import Topic, TopicTable, TopicType
from quarry_mq.store.migration.open_queues import OpenQueues
from tests.conformance.broker import RunningBroker, run, running_broker, until


def test_topics_are_at_hand_soon_after_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"topic-{number:04d}" for number in range(1_000)]

    def cached(broker: RunningBroker) -> set[str]:
        return set(broker.store.topics._rows._cached)

    async def make() -> None:
        async with running_broker(tmp_path, monkeypatch) as broker:
            broker.store.topics.add_missing(Topic(name, TopicType.NORMAL, 1, 1) for name in names)

    async def look() -> None:
        async with running_broker(tmp_path, monkeypatch) as broker:
            await until(lambda: cached(broker) >= set(names), "all are at hand")
            await asyncio.sleep(0.1)  # and nothing has ended

    run(make())
    run(look())


def test_a_page_that_cannot_be_read_is_reported_and_ends_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def damaged(_tables: object, after: str | bytes) -> None:
        asked.append(type(after).__name__)
        raise EngineCorrupt(f"Corruption: block checksum mismatch in 00{len(asked)}.sst")

    monkeypatch.setattr(TopicTable, "warm", damaged)
    monkeypatch.setattr(OpenQueues, "warm", damaged)

    async def look() -> None:
        async with running_broker(tmp_path, monkeypatch) as broker:
            await until(lambda: len(asked) == 2, "both are tried")
            await asyncio.sleep(0.1)
            broker.store.topics.add_missing([Topic("orders", TopicType.NORMAL, 1, 1)])
            assert broker.store.topics.get("orders") is not None

    with capture_logs() as lines:
        run(look())
    assert asked == ["str", "bytes"]
    told = [line["error"] for line in lines if line["event"] == "damaged data"]
    assert told == [f"Corruption: block checksum mismatch in 00{number}.sst" for number in (1, 2)]
    assert not [line for line in lines if line["event"] == "background task ended"]


def test_ends_of_queues_are_at_hand_soon_after_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[bytes | None] = []
    warm = OpenQueues.warm

    def noted(queues: OpenQueues, after: bytes) -> bytes | None:
        pages.append(warm(queues, after))
        return pages[-1]

    monkeypatch.setattr(OpenQueues, "warm", noted)

    async def look() -> None:
        async with running_broker(tmp_path, monkeypatch):
            await until(lambda: pages[-1:] == [None], "all are at hand")
            await asyncio.sleep(0.1)  # and nothing has ended
            assert pages == [None]

    run(look())
