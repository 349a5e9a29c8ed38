"""The lag that a whole broker reports to clients, operators and dashboards is what a scan of its log and a list of what
its consumers did come to (rmq#8764, rmq#10953, rocketmq-dashboard#4516).

`tests/lag` does the same with random workloads, on a broker without its network.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.delivery.model import Place
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import TopicType
from tests.conformance.broker import RunningBroker, run, running_broker
from tests.conformance.client import Client, consumer_settings, message, resource
from tests.conformance.official import official
from tests.conformance.test_dead_letters import run_command
from tests.conformance.test_order import dead_letter
from tests.conformance.test_pull import commit
from tests.conformance.test_stats import values
from tests.lag import rows
from tests.lag.count import Count
from tests.lag.readers import Place as MessagePlace
from tests.lag.readers import retry_names
from tests.lag.scan import Queues, scan

SETTINGS: Final[Mapping[str, Mapping[str, object]]] = {
    "delivery": {"new_group_start": "earliest"},
    "metrics": {"lag_interval_ms": 100},
}
Stat = Callable[[Count], int]
MESSAGES: Final[Mapping[str, Stat]] = {
    "rocketmq_consumer_ready_messages": lambda count: count.ready,
    "rocketmq_consumer_inflight_messages": lambda count: count.in_flight,
    "rocketmq_consumer_lag_messages": lambda count: count.ready + count.in_flight,
}
LATENCIES: Final[Mapping[str, Stat]] = {
    "rocketmq_consumer_lag_latency": lambda count: count.open_ms,
    "rocketmq_consumer_queueing_latency_milliseconds": lambda count: count.delay_ms,
}
LABELS: Final = ("consumer_group", "topic", "is_retry")
READ: Final = {
    "billing": ("bills", "orders"),
    "audit": ("orders",),
    "limited": ("orders",),
    "archive": ("bills",),
    "late": ("orders",),
}
"""By group, the topics that it reads."""


class Workload:
    """What consumers were given, by the ids of messages: `given` and not acknowledged."""

    def __init__(self) -> None:
        self.given: dict[tuple[str, str], dict[str, str]] = {}
        """By group and topic, handles by ids."""
        self.done: Counter[tuple[str, str]] = Counter()

    async def take(self, client: Client, group: str, topic: str, count: int, tags: str = "*") -> None:
        of_group = self.given.setdefault((group, topic), {})
        while count:
            received = await client.receive(group, topic, count=count, tags=tags, polling_s=1.0, invisible_s=600)
            assert received.messages, received.status
            of_group |= dict(zip(received.ids, received.handles, strict=True))
            count -= len(received.messages)

    async def acknowledge(self, client: Client, group: str, topic: str, count: int) -> None:
        of_group = self.given[group, topic]
        taken = [of_group.pop(each) for each in list(of_group)[:count]]
        answer = await client.ack(group, topic, *taken)
        assert answer.status.code == definition.OK
        self.done[group, topic] += count

    async def dead_letter(self, client: Client, group: str, topic: str, count: int) -> None:
        of_group = self.given[group, topic]
        for each in list(of_group)[:count]:
            await dead_letter(client, group, topic, of_group.pop(each))
            self.done[group, topic] += 1


async def some_traffic(broker: RunningBroker, work: Workload) -> None:
    broker.topic("orders", queues=2)
    broker.topic("bills", TopicType.MIXED, queues=3)
    for group in READ:
        broker.group(group)
    async with Client(broker.endpoint) as client:
        await client.declare(consumer_settings("billing", "orders", "bills"))
        for number in range(40):
            await client.sent(message("orders", tag=("blue", "red")[number % 2]))
        for _ in range(12):
            await client.sent(message("bills"))
        later = message("bills", message_type=definition.DELAY)
        later.system_properties.delivery_timestamp.FromMilliseconds(broker.clock.wall_ms() + 3_600_000)
        await client.sent(later)
        broker.clock.push(11)
        await client.sent(message("orders"))
        await work.take(client, "billing", "orders", 15)
        await work.acknowledge(client, "billing", "orders", 9)
        (handle, *_) = work.given["billing", "orders"].values()
        hidden = await client.change("billing", "orders", handle, 300)
        (first, *_) = work.given["billing", "orders"]
        work.given["billing", "orders"][first] = hidden.receipt_handle
        await work.take(client, "audit", "orders", 5, "blue")
        await work.acknowledge(client, "audit", "orders", 2)
        await work.take(client, "limited", "orders", 6)
        await work.acknowledge(client, "limited", "orders", 1)
        await work.dead_letter(client, "limited", "orders", 3)
        assert await commit(client, "archive", "bills", 3) == definition.OK
        await work.take(client, "late", "orders", 3)
        await work.acknowledge(client, "late", "orders", 1)
    await broker.broker._administration.reset_offset("late", "orders", Place.EARLIEST, TimeSlice(broker.clock))
    work.given["late", "orders"].clear()
    status, (sent,), _ = await run_command("resend", "limited", "--admin", broker.admin)
    assert (status, sent["resent"]) == (0, 3)


class Counts:
    """By group, topic, and whether it is of retry topics: counted without the broker."""

    def __init__(self, broker: RunningBroker, work: Workload, log: Path) -> None:
        self.queues: Queues = scan(PosixDisk(), log, {})
        self._positions = rows.positions(broker.store.state_engine)
        self._work = work
        self._now_ms = broker.clock.wall_ms()

    def of(self, group: str, *topics: str) -> Count:
        given = {
            MessagePlace(queue, each.offset)
            for queue, messages in self.queues.items()
            for each in messages
            for topic in topics
            if queue.topic == topic and each.key in self._work.given.get((group, topic), ())
        }
        return Count.of(self.queues, topics, self._positions[group], given, self._now_ms)

    def whole(self, group: str, topic: str) -> Count:
        return self.of(group, topic, *retry_names(group, topic))

    def pairs(self) -> dict[tuple[str, ...], Count]:
        found: dict[tuple[str, ...], Count] = {
            (group, topic, "false"): self.of(group, topic) for group, topics in READ.items() for topic in topics
        }
        return {**found, ("limited", "orders", "true"): self.of("limited", *retry_names("limited", "orders"))}


def check_by_what_was_done(counts: Counts, work: Workload) -> None:
    """Where no filter passes over anything, what is ready is what there is but for what was ever given."""
    for group, topic in (("billing", "orders"), ("billing", "bills"), ("limited", "orders"), ("late", "orders")):
        there = sum(len(messages) for queue, messages in counts.queues.items() if queue.topic == topic)
        known = len(work.given.get((group, topic), ())) + (0 if group == "late" else work.done[group, topic])
        assert counts.of(group, topic).ready == there - known
    there = sum(len(messages) for queue, messages in counts.queues.items() if queue.topic == "bills")
    assert counts.of("archive", "bills").ready == there - 3
    assert len(counts.queues[QueueId("%RETRY%limited_orders", 0)]) == 3


async def check_calls(broker: RunningBroker, counts: Counts) -> None:
    async with official(broker) as admin:
        for group, topics in READ.items():
            answer = await admin.DescribeGroupAccumulation(pb.DescribeGroupAccumulationRequest(group=resource(group)))
            assert answer.status.code == definition.OK
            assert set(answer.topic_accumulation) == set(topics)
            for topic in topics:
                told, count = answer.topic_accumulation[topic], counts.whole(group, topic)
                assert (told.inflight_messages, told.ready_messages) == (count.in_flight, count.ready)
                assert told.accumulation == count.in_flight + count.ready
                assert told.last_consume_timestamp == count.passed_ms
                late_ms = told.deliver_delay_time.ToMilliseconds() - count.delay_ms
                assert 0 <= late_ms < 10_000
                assert count.ready or not late_ms


async def check_commands(broker: RunningBroker, counts: Counts) -> None:
    """`quarry lag` as an operator calls it."""
    for group in ("billing", "limited"):
        topics = READ[group]
        command = [sys.executable, "-m", "quarry_mq.cli.main", "lag", group, "--json", "--admin", broker.admin]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
        output, _ = await process.communicate()
        assert process.returncode == 0
        told = {row["topic"]: row for row in map(json.loads, output.splitlines())}
        found = {topic: counts.whole(group, topic) for topic in topics}
        assert set(told) == {*topics, "*"}
        for topic, count in found.items():
            row = told[topic]
            assert (row["inFlight"], row["ready"]) == (count.in_flight, count.ready)
            assert row["messages"] == count.in_flight + count.ready
            assert 0 <= row["delaySeconds"] - count.delay_ms / 1000 < 20
        assert told["*"]["messages"] == sum(each.in_flight + each.ready for each in found.values())


async def check_metrics(broker: RunningBroker, expected: Mapping[tuple[str, ...], Count]) -> None:
    """Of all pairs, also those that nobody has asked for since the start."""
    lag = broker.broker._background.lag
    for _ in range(2):  # the first may have begun before the messages were counted
        before = lag.pairs
        while lag.pairs is before:
            await asyncio.sleep(0.02)
    for name, stat in MESSAGES.items():
        assert values(broker, name, *LABELS) == {key: stat(count) for key, count in expected.items()}, name
    for name, stat in LATENCIES.items():
        told = values(broker, name, *LABELS)
        assert told.keys() == expected.keys()
        for key, count in expected.items():
            assert 0 <= told[key] - stat(count) < 20_000
            assert stat(count) or not told[key]


def test_lag_is_a_scan_less_what_consumers_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Workload()
    log = tmp_path / "store" / "commitlog"

    async def first_life() -> None:
        async with running_broker(tmp_path, monkeypatch, **SETTINGS) as broker:
            await some_traffic(broker, work)
            counts = Counts(broker, work, log)
            check_by_what_was_done(counts, work)
            await check_calls(broker, counts)
            await check_commands(broker, counts)
            await check_metrics(broker, counts.pairs())

    async def second_life() -> None:
        """The first that is heard of two groups is an acknowledgement, and of the others nothing at all: they are told
        of, and all of their queues.
        """
        async with running_broker(tmp_path, monkeypatch, **SETTINGS) as broker:
            broker.clock.push(60)
            async with Client(broker.endpoint) as client:
                await work.acknowledge(client, "billing", "orders", 1)
                await work.acknowledge(client, "limited", "orders", 1)
            counts = Counts(broker, work, log)
            await check_calls(broker, counts)
            await check_metrics(broker, counts.pairs())

    run(first_life())
    run(second_life())
