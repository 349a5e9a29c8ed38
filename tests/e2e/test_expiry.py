"""Old messages leave a running broker: `quarry expire`, and by themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.broker import Broker, environment_of, quarry, until
from tests.hostile.caller import Client

SETTINGS = {
    "store.segment_size": "1MiB",
    "store.durability": "async",
    "limits.body_size": "256KiB",
    "topics.default_queues": 1,
    "delivery.new_group_start": "earliest",
    "delivery.polling_min_ms": 0,
    "delivery.polling_max_ms": 100,
    "network.stop_grace_ms": 500,
    "expiry.retention_hours": 0.00001,  # 36 ms
    "expiry.interval_ms": 100,
    "expiry.pause_ms": 0,
}
TOPIC = "orders"
COUNT = 40
SIZE = 200_000
"""Five of these fill a segment."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[list[Broker]]:
    brokers: list[Broker] = []
    yield brokers
    for broker in brokers:
        broker.close()


def broker_with(tmp_path: Path, started: list[Broker], **expiry: object) -> Broker:
    settings = {**SETTINGS, **{f"expiry.{name}": value for name, value in expiry.items()}}
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment_of(settings))
    started.append(broker)
    return broker.start()


def segments(broker: Broker) -> list[str]:
    return sorted(path.name for path in (broker.store / "commitlog").iterdir() if path.is_file())


def expire(broker: Broker, *options: str) -> list[dict[str, object]]:
    done = quarry("expire", "--yes", "--admin", broker.admin, "--json", *options)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def fill(client: Client) -> None:
    for number in range(COUNT):
        client.send(TOPIC, f"m{number:03d}", SIZE)


def harvest(client: Client, group: str) -> list[str]:
    got: list[str] = []
    while received := client.receive(group, TOPIC, polling_s=0.1):
        got += received
    return got


@pytest.mark.slow
def test_an_operator_expires_and_sees_before_what_goes_and_who_loses_by_it(tmp_path: Path, start: list[Broker]) -> None:
    """rmq#4549: it must be told when messages go that a group has not read."""
    broker = broker_with(tmp_path, start, start_delay_ms=3_600_000)
    with Client(broker.endpoint) as client:
        client.subscribe("slow", TOPIC)
        fill(client)
        got = client.receive("slow", TOPIC)
        before = segments(broker)
        told = expire(broker, "--dry-run")
        assert segments(broker) == before
        named = [row["segment"] for row in told if "segment" in row]
        assert len(named) >= 6
        assert named == before[: len(named)]
        (unread,) = [row for row in told if "group" in row]
        assert unread["group"] == "slow"
        assert unread["unreadMessages"] == 5 * len(named) - len(got)
        assert expire(broker) == told
        until(lambda: segments(broker)[0] == before[len(named)], "the files are removed")
        until(lambda: not list((broker.store / "commitlog" / "expired").iterdir()), "nothing is left of them")
        rest = harvest(client, "slow")
        assert rest == [f"m{number:03d}" for number in range(5 * len(named), COUNT)]
        until(lambda: broker.stat("quarry_queue_cleaning_behind_bytes") == 0, "the queues follow")
        assert broker.stat("quarry_queue_entries_removed_total") == 5 * len(named)
        rewrites = broker.stat("quarry_queue_table_rewrite_seconds_count")
        assert expire(broker, "--rewrite-queues") == []
        until(lambda: broker.stat("quarry_queue_table_rewrite_seconds_count") > rewrites, "the tables are rewritten")
    broker.restart()
    with Client(broker.endpoint) as client:
        assert harvest(client, "new") == rest
    assert "missing at the log's beginning" not in broker.words()
    broker.stop()


def test_the_broker_expires_by_itself_and_serves_on(tmp_path: Path, start: list[Broker]) -> None:
    broker = broker_with(tmp_path, start, start_delay_ms=0, delete_when="[]")
    with Client(broker.endpoint) as client:
        client.subscribe("group", TOPIC)
        fill(client)
        until(lambda: len(segments(broker)) <= 2, "all that is full has expired")
        client.send(TOPIC, "last", 100)
        assert harvest(client, "group")[-1] == "last"
        stats = broker.get("/metrics")[1]
        assert 'quarry_expired_segments_total{cause="age"}' in stats
        assert "quarry_expired_unread_messages_total" in stats
    broker.kill()
    broker.start()
    with Client(broker.endpoint) as client:
        client.send(TOPIC, "after", 100)
        assert harvest(client, "group") == ["after"]
    broker.stop()
