"""Export metrics of the clean-up of consume queues (`server.maintenance.queue_cleanup`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

CLEANING_BUCKETS_S: Final = [0.01 * 4**step for step in range(10)]
"""Bounds from 10 ms, an idle store, to 44 min, a billion entries."""


class CleaningFigures(Protocol):
    """The state and numbers that the clean-up keeps."""

    @property
    def phase(self) -> str: ...

    @property
    def behind_bytes(self) -> int: ...


class QueueCleaningMetrics:
    """Implement `server.maintenance.queue_cleanup.CleaningMetrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._rounds = Histogram(
            "quarry_queue_cleaning_seconds",
            "Duration of a clean-up run that removes entries of expired messages from the consume queues, pauses "
            "included",
            buckets=CLEANING_BUCKETS_S,
            registry=registry,
        )
        self._entries = Counter(
            "quarry_queue_entries_removed",
            "Entries of expired messages that were removed from the consume queues",
            registry=registry,
        )
        self._files = Counter("quarry_queue_files_removed", "Files of consume queues that expired", registry=registry)
        self._failures = Counter(
            "quarry_queue_cleaning_failures", "Clean-up runs that failed and were restarted", registry=registry
        )
        self._rewrites = Histogram(
            "quarry_queue_table_rewrite_seconds",
            "Rewrites of RocksDB's tables of entries, which free the space of removed entries",
            buckets=CLEANING_BUCKETS_S,
            registry=registry,
        )
        self._bytes = Gauge(
            "quarry_queue_table_rewrite_bytes",
            "Size of RocksDB's tables of entries before and after their last rewrite",
            ["when"],
            registry=registry,
        )

    def cleaned_queues(self, entries: int, files: int, seconds: float) -> None:
        self._rounds.observe(seconds)
        self._entries.inc(entries)
        self._files.inc(files)

    def cleaning_failed(self) -> None:
        self._failures.inc()

    def rewrote_tables(self, before_bytes: int, after_bytes: int, seconds: float) -> None:
        self._rewrites.observe(seconds)
        self._bytes.labels(when="before").set(before_bytes)
        self._bytes.labels(when="after").set(after_bytes)


def cleaning_figures(cleaning: CleaningFigures) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "quarry_queue_cleaning_under_way", "1 while consume queues are cleaned up", value=int(bool(cleaning.phase))
    )
    yield GaugeMetricFamily(
        "quarry_queue_cleaning_behind_bytes",
        "Bytes by which the clean-up of the consume queues lags behind the start of the log",
        value=cleaning.behind_bytes,
    )
