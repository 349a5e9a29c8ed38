"""Export metrics of the process and its last recovery, and those of Prometheus' library for any Python process."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from quarry_mq.server.process.process_figures import ProcessFigures, RecoveryFigures


def watch_python(registry: CollectorRegistry) -> None:
    """Export memory, open files, CPU time and start of the process, and Python's counts of garbage."""
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)


def process_figures(figures: ProcessFigures, version: str) -> Iterator[Metric]:
    build = GaugeMetricFamily(
        "quarry_build_info", "Always 1; the labels tell the versions of Quarry and Python", labels=["version", "python"]
    )
    build.add_metric([version, platform.python_version()], 1)
    yield build
    yield HistogramMetricFamily(
        "quarry_loop_late_seconds",
        "How late the event loop ran a check that is due twice a second",
        buckets=list(figures.loop_late.buckets()),
        sum_value=figures.loop_late.total,
    )
    yield HistogramMetricFamily(
        "quarry_garbage_pause_seconds",
        "Duration of Python's garbage collections, which stop everything else",
        buckets=list(figures.pauses.buckets()),
        sum_value=figures.pauses.total,
    )


def recovery_figures(figures: RecoveryFigures) -> Iterator[Metric]:
    seconds = GaugeMetricFamily(
        "quarry_recovery_seconds", "Duration of the last opening of the store, by phase", labels=["phase"]
    )
    read = GaugeMetricFamily(
        "quarry_recovery_bytes", "Bytes of commit log that the last opening read, by phase", labels=["phase"]
    )
    for name, phase in figures.phases():
        seconds.add_metric([name], phase.ended_s - phase.began_s)
        read.add_metric([name], phase.done_bytes)
    yield seconds
    yield read
