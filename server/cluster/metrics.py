"""Metrics of a cluster, as one of its members sees it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from quarry_mq.server.cluster.cluster import Cluster
from quarry_mq.server.cluster.membership import MemberState


def cluster_metrics(cluster: Cluster) -> Iterator[Metric]:
    """Yield the cluster's metrics at each scrape."""
    members = GaugeMetricFamily(
        "quarry_cluster_members", "Members of the cluster, as seen by this member", labels=["state", "reachable"]
    )
    seen = cluster.members.all()
    for state in MemberState:
        for is_reachable in (True, False):
            count = sum(each.member.state is state and each.is_reachable is is_reachable for each in seen)
            members.add_metric([state.value, "yes" if is_reachable else "no"], count)
    yield members
    yield GaugeMetricFamily(
        "quarry_cluster_handover",
        "1 while message groups that move to this member wait for other members",
        value=int(not cluster.groups.is_settled),
    )
    yield CounterMetricFamily(
        "quarry_cluster_sends_forwarded",
        "Sends that were forwarded to the member that owns their message group, and stored there",
        value=cluster.sends.forwarded,
    )
    yield GaugeMetricFamily(
        "quarry_cluster_sends_waiting",
        "Sends that are being forwarded to another member or wait for one, because of their message group",
        value=len(cluster.sends),
    )
    yield GaugeMetricFamily(
        "quarry_cluster_consumers_held",
        "Pairs of consumer group and topic that wait until earlier messages of moved message groups are consumed at "
        "other members",
        value=cluster.groups.barriers.waiting,
    )
