"""Which part of a broker tells which of its figures."""

from __future__ import annotations

from dataclasses import dataclass

from server.clients import ClientRegistry
from server.cluster.cluster import Cluster
from server.cluster_metrics import cluster_figures
from server.delivery import Delivery
from server.front import FrontFigures
from server.health import HealthState
from server.limits import LimitsMet
from server.lite_topics import LiteTopicCounts
from server.metrics import ServerMetrics
from server.observing import Background, Observing
from server.queue_cleaning import QueueCleaning
from server.retention import Retention
from server.rocketmq_metrics import (
    BrokerFigures,
    Families,
    connection_figures,
    lag_figures,
    storage_figures,
    traffic_figures,
)
from server.settings import BrokerSettings
from server.stage_metrics import stage_figures, waiting_metrics
from store.opening import OpenStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """The parts. `front` is None where the front keeps no figures."""

    store: OpenStore
    front: FrontFigures | None
    delivery: Delivery
    clients: ClientRegistry
    retention: Retention
    lite_topics: LiteTopicCounts
    cleaning: QueueCleaning
    observing: Observing
    background: Background
    health: HealthState
    limits_met: LimitsMet
    cluster: Cluster | None


def export(metrics: ServerMetrics, parts: Exported, settings: BrokerSettings) -> None:
    """Have all of them read at each scrape, until `ServerMetrics.stop_watching`."""
    store = parts.store
    if parts.front is not None:
        metrics.watch_front(parts.front)
    metrics.watch_limits(parts.limits_met, parts.front)
    metrics.watch_delivery(parts.delivery)
    metrics.watch_clients(parts.clients)
    metrics.watch_engines(store.queues, store.state_engine, store.messages.held)
    metrics.watch_migration(store.migration)
    metrics.watch_expiry(store.expiry, lambda: parts.retention.used_ratios)
    metrics.watch_lite_topics(parts.lite_topics)
    metrics.watch_cleaning(parts.cleaning)
    metrics.watch_indexes(store.messages.indexes)
    observing, background = parts.observing, parts.background
    metrics.watch(lambda: stage_figures(observing.send_stages, observing.receive_stages))
    metrics.watch(lambda: waiting_metrics(background.waiting, background.sampling))
    families = Families(cluster=settings.broker.cluster, node_id=settings.broker.name)
    metrics.watch(lambda: traffic_figures(families, observing.traffic))
    metrics.watch(lambda: lag_figures(families, background.lag.pairs))
    metrics.watch(lambda: storage_figures(families, store.messages, _broker_figures(parts)))
    cluster = parts.cluster
    if cluster is not None:
        metrics.watch(lambda: cluster_figures(cluster))
    metrics.watch(lambda: connection_figures(families, parts.clients, settings.metrics.top_groups))


def _broker_figures(parts: Exported) -> BrokerFigures:
    waiting = parts.background.waiting
    return BrokerFigures(
        disk_used_bytes=parts.retention.used_bytes,
        oldest_message_age_ms=waiting.oldest_age_ms,
        timer_late_ms=waiting.late_ms,
        takes_sends=not parts.health.look().sends_refused,
    )
