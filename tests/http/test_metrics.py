"""Metrics of the broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from quarry_mq.server.observability.metrics.instruments import OF_CAUSE, OF_DATABASE, OF_FAMILY, OF_LEVEL, ServerMetrics
from quarry_mq.server.settings.sections import MetricsSection
from quarry_mq.store.state.identity import open_state_engine


class Delivery:
    waiting_polls = 3
    inflight_count = 5
    subscription_count = 2
    redeliveries = 7


class NoStats:
    def statistics(self) -> dict[str, int]:
        return {}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> ServerMetrics:
    return ServerMetrics(registry, MetricsSection())


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_sends_are_counted_by_outcome(registry: CollectorRegistry, metrics: ServerMetrics) -> None:
    metrics.sent(3, 0.002)
    metrics.sent(0, 0.001)
    assert value(registry, "quarry_sends_total", outcome="stored") == 1
    assert value(registry, "quarry_sends_total", outcome="failed") == 1
    assert value(registry, "quarry_messages_stored_total") == 3
    assert value(registry, "quarry_send_duration_seconds_count") == 2
    assert value(registry, "quarry_send_duration_seconds_sum") == pytest.approx(0.003)


def test_receives_are_counted_by_outcome(registry: CollectorRegistry, metrics: ServerMetrics) -> None:
    metrics.received(32)
    metrics.received(0)
    metrics.acknowledged(30)
    assert value(registry, "quarry_receives_total", outcome="messages") == 1
    assert value(registry, "quarry_receives_total", outcome="empty") == 1
    assert value(registry, "quarry_messages_delivered_total") == 32
    assert value(registry, "quarry_messages_acknowledged_total") == 30


def test_outcomes_are_there_before_they_happen(registry: CollectorRegistry, metrics: ServerMetrics) -> None:
    """A rate of a counter that appears with its first failure misses that failure."""
    assert value(registry, "quarry_sends_total", outcome="failed") == 0
    assert value(registry, "quarry_receives_total", outcome="empty") == 0


def test_flushes_and_batches_are_observed(registry: CollectorRegistry, metrics: ServerMetrics) -> None:
    metrics.observe_flush(0.004, sends=12)
    metrics.observe_batch(64)
    assert value(registry, "quarry_flush_duration_seconds_count") == 1
    assert value(registry, "quarry_flush_duration_seconds_bucket", le="0.0032") == 0
    assert value(registry, "quarry_flush_duration_seconds_bucket", le="0.0064") == 1
    assert value(registry, "quarry_flush_sends_sum") == 12
    assert value(registry, "quarry_round_messages_bucket", le="64.0") == 1


def test_delivery_and_clients_are_watched(registry: CollectorRegistry, metrics: ServerMetrics) -> None:
    clients: list[str] = []
    metrics.watch_delivery(Delivery())
    metrics.watch_clients(clients)
    clients.append("late")
    assert value(registry, "quarry_waiting_polls") == 3
    assert value(registry, "quarry_inflight_messages") == 5
    assert value(registry, "quarry_subscriptions") == 2
    assert value(registry, "quarry_redeliveries_total") == 7
    assert value(registry, "quarry_clients") == 1


def test_rocksdb_stats_come_by_database_and_family(
    registry: CollectorRegistry, metrics: ServerMetrics, tmp_path: Path
) -> None:
    engine = open_state_engine(tmp_path / "quarry", create=True)
    try:
        batch = engine.batch()
        batch.put(engine.family("topics"), b"name", bytes(10_000))
        engine.write(batch)
        metrics.watch_engines(NoStats(), engine)
        assert (value(registry, "quarry_rocksdb_memtable_bytes", database="state", family="topics") or 0) > 10_000
        assert value(registry, "quarry_rocksdb_background_errors", database="state", family="topics") == 0
        assert value(registry, "quarry_rocksdb_memtable_bytes", database="queues", family="default") is None
        metrics.stop_watching()
    finally:
        engine.close()
    # rmq#9875: a native engine that is read after it was closed takes the process with it
    assert value(registry, "quarry_rocksdb_memtable_bytes", database="state", family="topics") is None


def test_every_stat_of_the_engine_has_a_metric_and_the_other_way_round(
    registry: CollectorRegistry, metrics: ServerMetrics, tmp_path: Path
) -> None:
    engine = open_state_engine(tmp_path / "quarry", create=True)
    try:
        stats = {name.split(".")[min(1, name.count("."))] for name in engine.statistics()}
        assert stats == {*OF_DATABASE, *OF_FAMILY, *OF_LEVEL, *OF_CAUSE}
        metrics.watch_engines(NoStats(), engine)
        assert value(registry, "quarry_rocksdb_running_compactions", database="state") == 0
        assert value(registry, "quarry_rocksdb_level_bytes", database="state", family="topics", level="0") == 0
        stops = {"database": "state", "family": "topics", "cause": "memtables"}
        assert value(registry, "quarry_rocksdb_write_stops_total", **stops) == 0
        metrics.stop_watching()
    finally:
        engine.close()
