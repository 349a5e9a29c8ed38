"""An operator in a cluster asks all members before it deletes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from quarry_mq.cli.operator.resources import CONSUMER_GROUP, TOPIC
from tests.e2e.members import ClusterOfBrokers, rows
from tests.operator.bench import consume, run, send
from tests.operator.conftest import OpenBench

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfBrokers]:
    made = ClusterOfBrokers(tmp_path)
    try:
        made.add()
        made.add()
        made.agree(lambda each: sum(row["reachable"] for row in rows(each, "cluster", "members")), 2)
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("open_bench", ["fake"], indirect=True)
def test_messages_on_any_member_keep_a_topic(open_bench: OpenBench, cluster: ClusterOfBrokers, name: str) -> None:
    async def scenario() -> None:
        asked, other = cluster.brokers
        async with open_bench(asked.admin) as bench, bench.operating():
            await bench.declare(TOPIC, name, {"queues": 1, "deletionPolicy": "Delete"})
            await bench.declare(CONSUMER_GROUP, name, {"deletionPolicy": "Delete"})
            await bench.ready(TOPIC, name)
            await bench.ready(CONSUMER_GROUP, name)
            await asyncio.to_thread(
                cluster.agree,
                lambda each: [row["name"] for row in rows(each, "topic", "list", "--prefix", name)],
                [name],
            )
            await send(other.endpoint, name)
            await bench.delete(TOPIC, name)
            assert "no group has read its 1 messages" in await bench.not_ready(TOPIC, name, "MessagesNotConsumed")
            other.stop()
            assert "quarry-1" in await bench.not_ready(TOPIC, name, "BrokerUnavailable")
            await bench.delete(CONSUMER_GROUP, name)
            assert "quarry-1" in await bench.not_ready(CONSUMER_GROUP, name, "BrokerUnavailable")
            await asyncio.to_thread(cluster.start, other)
            await bench.gone(CONSUMER_GROUP, name)
            await bench.not_ready(TOPIC, name, "MessagesNotConsumed")
            await bench.admin.create_group(f"{name}-later")
            await consume(other.endpoint, name, f"{name}-later")
            await bench.gone(TOPIC, name)

    run(scenario())
