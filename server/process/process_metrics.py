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
    build = GaugeMetricFamily("quarry_build_info", "1; its labels tell what runs", labels=["version", "python"])
    build.add_metric([version, platform.python_version()], 1)
    yield build
    yield HistogramMetricFamily(
        "quarry_loop_late_seconds",
        "How late the event loop was for something that it does twice a second",
        buckets=list(figures.loop_late.buckets()),
        sum_value=figures.loop_late.total,
    )
    yield HistogramMetricFamily(
        "quarry_garbage_pause_seconds",
        "How long Python stopped everything to look for garbage",
        buckets=list(figures.pauses.buckets()),
        sum_value=figures.pauses.total,
    )


def recovery_figures(figures: RecoveryFigures) -> Iterator[Metric]:
    seconds = GaugeMetricFamily(
        "quarry_recovery_seconds", "How long the last opening of the store took, by its phases", labels=["phase"]
    )
    read = GaugeMetricFamily(
        "quarry_recovery_bytes", "Commit log that the last opening read, by its phases", labels=["phase"]
    )
    for name, phase in figures.phases():
        seconds.add_metric([name], phase.ended_s - phase.began_s)
        read.add_metric([name], phase.done_bytes)
    yield seconds
    yield read
