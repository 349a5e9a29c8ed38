"""Metrics that a real broker exports once it has had some traffic of every kind."""

from __future__ import annotations

import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from quarry_mq.cli.operator.loop import Stats
from quarry_mq.cli.operator.metrics import operator_metrics
from quarry_mq.protocol.clock import Progress, SystemClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.observability.metrics.instruments import (
    replica_metrics,
    watch,
    watch_certificates,
    watch_health,
)
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.process.process_metrics import (
    ProcessStats,
    RecoveryStats,
    process_metrics,
    recovery_metrics,
    watch_python,
)
from quarry_mq.server.replicas.status import ReplicaStatus
from quarry_mq.store.metadata import TopicType
from quarry_mq.store.security.sealer import new_key
from tests.conformance.broker import RunningBroker, run, running_broker, until
from tests.conformance.client import Client, consumer_settings, message, producer_settings
from tests.conformance.test_order import dead_letter
from tests.conformance.test_transactions import begin, end

SETTINGS = {
    "metrics": {"lag_interval_ms": 100},
    "index": {"hash_files": True, "hash_slots": 64, "hash_items": 128},
    "expiry": {"interval_ms": 100},
}


class Emitted(NamedTuple):
    """One metric, with what of it was there: names of samples, and of labels by sample."""

    name: str
    kind: str
    meaning: str
    labels: dict[str, frozenset[str]]

    @property
    def documented_name(self) -> str:
        return self.name + ("_total" if self.kind == "counter" else "")


@cache
def emitted() -> dict[str, Emitted]:
    """Return the metrics by name, as the metrics page has it."""
    patch = pytest.MonkeyPatch()
    with tempfile.TemporaryDirectory() as directory:
        try:
            families = run(_exported(Path(directory), patch))
        finally:
            patch.undo()
    found = [Emitted(each.name, each.type, each.documentation, _labels(each)) for each in families]
    return {each.documented_name: each for each in found}


@cache
def samples() -> dict[str, frozenset[str]]:
    """Names of labels by the name of the sample, as PromQL has it. Those of a process are not ours to check."""
    return {name: labels for each in emitted().values() for name, labels in each.labels.items()}


async def _exported(directory: Path, patch: pytest.MonkeyPatch) -> list[Metric]:
    key_file = directory / "cluster.key"
    key_file.write_bytes(new_key())
    key_file.chmod(0o600)
    cluster = {"members": ["127.0.0.1:1"], "key_file": key_file, "unreachable_after_ms": 2_000}
    async with running_broker(directory, patch, **SETTINGS, cluster=cluster) as broker:
        _watch_process(broker.registry)
        await _traffic(broker)
        await until(lambda: _value(broker, "rocketmq_consumer_lag_messages", "is_retry") is not None, "lag")
        await until(lambda: _value(broker, "quarry_delayed_next_due_seconds") is not None, "the next delayed message")
        await until(lambda: _value(broker, "rocketmq_storage_message_reserve_time") is not None, "the oldest message")
        await until(lambda: _value(broker, "rocketmq_storage_size") is not None, "the use of the disk")
        return list(broker.registry.collect())


class _Certificates:
    expires_s = 1_700_000_000.0
    failed_reloads = 0


def _watch_process(registry: CollectorRegistry) -> None:
    """Add the metrics that `server.main` exports beside the broker, and those of the operator."""
    watch_health(registry, HealthState())
    watch_certificates(registry, _Certificates())
    watch_python(registry)
    recovery = RecoveryStats(SystemClock())
    recovery.report(Progress("recovering", 1, 1))
    watch(registry, lambda: process_metrics(ProcessStats(SystemClock()), "0"))
    watch(registry, lambda: recovery_metrics(recovery))
    looks = Stats()
    looks.states["Topic"] = Counter({"True": 1})
    watch(registry, lambda: operator_metrics(looks))
    watch(registry, lambda: replica_metrics([ReplicaStatus(name="b")], term=1, is_primary=True))


async def _traffic(broker: RunningBroker) -> None:
    for topic, kind in (("orders", TopicType.NORMAL), ("paid", TopicType.TRANSACTION), ("later", TopicType.DELAY)):
        broker.topic(topic, kind, queues=1)
    async with Client(broker.endpoint) as client, Client(broker.endpoint) as consumer:
        await client.declare(producer_settings("orders", "paid"))
        await consumer.declare(consumer_settings("billing", "orders"))
        await consumer.receive("billing", "orders")
        await client.sent(*(message("orders") for _ in range(4)))
        received = await consumer.receive("billing", "orders", count=3)
        await consumer.ack("billing", "orders", received.handles[0])
        await dead_letter(consumer, "billing", "orders", received.handles[1])
        for resolution in (definition.COMMIT, definition.ROLLBACK):
            await end(client, "paid", await begin(client, "paid"), resolution)
        due = Timestamp(seconds=broker.clock.wall_ms() // 1000 + 600)
        await client.sent(message("later", message_type=definition.DELAY, delivery_timestamp=due))


def _labels(metric: Metric) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for sample in metric.samples:
        found[sample.name] = found.get(sample.name, frozenset()) | frozenset(sample.labels)
    return found


def _value(broker: RunningBroker, name: str, *labels: str) -> float | None:
    for metric in broker.registry.collect():
        for sample in metric.samples:
            if sample.name == name and sample.labels.keys() >= set(labels):
                return sample.value
    return None
