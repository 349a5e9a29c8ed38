"""The source against several brokers that are one cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quarry_mq.pipeline.source import InvalidOption
from tests.e2e.broker import until
from tests.e2e.members import ClusterOfBrokers, names
from tests.pipeline.streams import Row, batch, latest, rows_between, send, stream

pytestmark = pytest.mark.slow


def places(rows: list[Row]) -> set[tuple[str, str]]:
    return {(bytes(row["body"]).decode(), row["broker"]) for row in rows}


def test_a_query_reads_all_members_and_those_that_join(tmp_path: Path) -> None:
    cluster = ClusterOfBrokers(tmp_path)
    try:
        first = cluster.add()
        first.administer("topic", "create", "orders", "--queues", "1")
        send(first, "a")
        reader = stream(first)
        start = reader.initialOffset()
        assert start == {"orders": {"quarry-0/0": 0}}
        before = latest(reader, start)
        second = cluster.add()
        cluster.agree(lambda broker: names(broker, "topic"), ["orders"])
        # a client sends to the member that it calls
        send(second, "b")
        until(lambda: "quarry-1/0" in latest(reader, before)["orders"], "the new member is in the route")
        end = latest(reader, before)
        rows = rows_between(reader, before, end) + rows_between(reader, start, before)
        assert places(rows) == {("a", "quarry-0"), ("b", "quarry-1")}
        reader.stop()

        for broker in (first, second):
            assert places(batch(broker)) == {("a", "quarry-0"), ("b", "quarry-1")}
        assert places(batch(first, None, assign='{"orders": ["quarry-1/0"]}')) == {("b", "quarry-1")}
        offsets = json.dumps({"orders": {"quarry-0/0": 1, "quarry-1/0": 0}})
        assert places(batch(second, startingOffsets=offsets)) == {("b", "quarry-1")}
        complaint = (
            "option 'assign': topic orders: '0' names no broker; the topic is at quarry-0, quarry-1: write quarry-0/0"
        )
        with pytest.raises(InvalidOption, match=complaint):
            batch(first, None, assign='{"orders": [0]}')
    finally:
        cluster.close()


def test_a_checkpoint_that_names_no_broker_goes_on(tmp_path: Path) -> None:
    cluster = ClusterOfBrokers(tmp_path)
    try:
        first = cluster.add()
        first.administer("topic", "create", "orders", "--queues", "1")
        send(first, "a", "b")
        reader = stream(first)
        kept = {"orders": {"0": 1}}
        end = latest(reader, kept)
        assert end == {"orders": {"quarry-0/0": 2}}
        assert places(rows_between(reader, kept, end)) == {("b", "quarry-0")}
        reader.stop()
    finally:
        cluster.close()
