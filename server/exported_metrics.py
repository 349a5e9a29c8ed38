"""Connect the parts of a broker to the metrics that are read from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quarry_mq.server.admin.sources import Sources
from quarry_mq.server.cluster.metrics import cluster_metrics
from quarry_mq.server.observability.metrics.instruments import (
    ServerMetrics,
    slave_metrics,
    stage_metrics,
    sweep_metrics,
    waiting_metrics,
)
from quarry_mq.server.observability.metrics.rocketmq import (
    BrokerStats,
    Families,
    connection_metrics,
    lag_metrics,
    storage_metrics,
    traffic_metrics,
)
from quarry_mq.server.settings.broker_settings import BrokerSettings


def export(
    metrics: ServerMetrics, sources: Sources, settings: BrokerSettings, *, slave_lags: Callable[[], Sequence[int]]
) -> None:
    """Have the metrics of all parts read at each scrape, until `ServerMetrics.stop_watching`.

    `slave_lags` returns how many bytes of the log each attached slave lacks.
    """
    its, maintenance, background = sources.components, sources.maintenance, sources.background
    store, front = its.store, sources.front.stats
    if front is not None:
        metrics.watch_front(front)
    metrics.watch_limits(its.edge.limits_met, front)
    metrics.watch_delivery(its.delivery)
    metrics.watch_clients(its.edge.clients)
    metrics.watch_engines(store.queues, store.state_engine, store.messages.pending)
    metrics.watch_migration(store.migration)
    metrics.watch_expiry(store.expiry, lambda: maintenance.retention.used_ratios)
    metrics.watch_lite_topics(maintenance.lite_topics.counts)
    metrics.watch_cleaning(maintenance.cleaning)
    metrics.watch(lambda: sweep_metrics(maintenance.verification.sweeps))
    metrics.watch_indexes(store.messages.indexes)
    metrics.watch(lambda: stage_metrics(its.sends.commit.stages, its.delivery.stages))
    metrics.watch(lambda: waiting_metrics(background.waiting, background.sampling))
    families = Families(cluster=settings.broker.cluster, node_id=settings.broker.name)
    metrics.watch(lambda: traffic_metrics(families, its.sends.metrics.traffic))
    metrics.watch(lambda: lag_metrics(families, background.lag.pairs))
    metrics.watch(lambda: storage_metrics(families, store.messages, _broker_metrics(sources)))
    metrics.watch(lambda: slave_metrics(slave_lags()))
    cluster = sources.cluster
    if cluster is not None:
        metrics.watch(lambda: cluster_metrics(cluster))
    metrics.watch(lambda: connection_metrics(families, its.edge.clients, settings.metrics.top_groups))


def _broker_metrics(sources: Sources) -> BrokerStats:
    waiting = sources.background.waiting
    return BrokerStats(
        disk_used_bytes=sources.maintenance.retention.used_bytes,
        oldest_message_age_ms=waiting.oldest_age_ms,
        timer_late_ms=waiting.late_ms,
        takes_sends=not sources.health.look().sends_refused,
    )
