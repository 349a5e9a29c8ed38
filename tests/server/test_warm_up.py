"""A broker has topics and ends of queues at hand soon after its start, without being asked for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from store.metadata import Topic, TopicType
from store.open_queues import OpenQueues
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


def test_ends_of_queues_are_at_hand_soon_after_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[bytes | None] = []
    warm = OpenQueues.warm

    def noted(queues: OpenQueues, behind: bytes) -> bytes | None:
        pages.append(warm(queues, behind))
        return pages[-1]

    monkeypatch.setattr(OpenQueues, "warm", noted)

    async def look() -> None:
        async with running_broker(tmp_path, monkeypatch):
            await until(lambda: pages[-1:] == [None], "all are at hand")
            await asyncio.sleep(0.1)  # and nothing has ended
            assert pages == [None]

    run(look())
