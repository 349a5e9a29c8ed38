"""Metrics of the operator."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quarry_mq.cli.operator.loop import Stats
from quarry_mq.server.observability.metrics.instruments import watch


def operator_registry(stats: Stats) -> CollectorRegistry:
    registry = CollectorRegistry()
    watch(registry, lambda: operator_metrics(stats))
    return registry


def operator_metrics(stats: Stats) -> Iterator[Metric]:
    """Yield the resources by kind and state, the looks at them, and the looks that failed."""
    resources = GaugeMetricFamily(
        "quarry_operator_resources", "Custom resources by the status of their condition Ready", labels=["kind", "state"]
    )
    for kind, states in stats.states.items():
        for state in ("True", "False", "Unknown"):
            resources.add_metric([kind, state.lower()], states[state])
    yield resources
    looks = CounterMetricFamily("quarry_operator_looks", "Looks at a custom resource", labels=["kind"])
    failures = CounterMetricFamily(
        "quarry_operator_failures",
        "Looks at a custom resource that are repeated soon, because it could not be brought to its declaration",
        labels=["kind"],
    )
    for kind in stats.states:
        looks.add_metric([kind], stats.looks[kind])
        failures.add_metric([kind], stats.failures[kind])
    yield looks
    yield failures
