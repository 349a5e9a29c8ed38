"""Figures of the copies of a store."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from quarry_mq.server.replicas.process import Replication


def replication_metrics(replication: Replication) -> Iterator[Metric]:
    """Yield how far each copy is: on the primary all of them, on another copy itself."""
    lag_bytes = GaugeMetricFamily(
        "quarry_replica_lag_bytes", "Bytes of the log that a copy does not have in its queues", labels=["replica"]
    )
    lag_seconds = GaugeMetricFamily("quarry_replica_lag_seconds", "Age of the oldest of them", labels=["replica"])
    connected = GaugeMetricFamily("quarry_replica_connected", "1 if a copy follows", labels=["replica"])
    for each in replication.statuses():
        lag_bytes.add_metric([each.name], each.lag_bytes)
        lag_seconds.add_metric([each.name], each.lag_s)
        connected.add_metric([each.name], each.is_connected)
    yield from (lag_bytes, lag_seconds, connected)
    yield GaugeMetricFamily(
        "quarry_replication_term", "Number of the promotion that made the primary", value=replication.term
    )
    is_primary = replication.primary is not None
    yield GaugeMetricFamily("quarry_replica_primary", "1 if this copy is the primary", value=is_primary)
