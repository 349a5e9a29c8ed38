"""Export metrics of background work: jobs, the key index, the migration and the clean-up of consume queues."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quarry_mq.server.jobs.asked import JobKind
from quarry_mq.store.index import KeyIndexes
from quarry_mq.store.index.tiered.folders import Stage
from quarry_mq.store.layout.queue_phase import QueuePhase
from quarry_mq.store.migration import AgreementReport, MigrationStats
from quarry_mq.store.state.jobs import JobState

CLEANING_BUCKETS_S: Final = [0.01 * 4**step for step in range(10)]
"""Bounds from 10 ms, an idle store, to 44 min, a billion entries."""


class CleaningStats(Protocol):
    """The state and numbers that the clean-up keeps."""

    @property
    def phase(self) -> str: ...

    @property
    def lag_bytes(self) -> int: ...


class QueueCleaningMetrics:
    """Implement `server.maintenance.queue_cleanup.CleaningMetrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sweeps = Histogram(
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
        self._sweeps.observe(seconds)
        self._entries.inc(entries)
        self._files.inc(files)

    def cleaning_failed(self) -> None:
        self._failures.inc()

    def rewrote_tables(self, before_bytes: int, after_bytes: int, seconds: float) -> None:
        self._rewrites.observe(seconds)
        self._bytes.labels(when="before").set(before_bytes)
        self._bytes.labels(when="after").set(after_bytes)


def cleaning_metrics(cleaning: CleaningStats) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "quarry_queue_cleaning_under_way", "1 while consume queues are cleaned up", value=int(bool(cleaning.phase))
    )
    yield GaugeMetricFamily(
        "quarry_queue_cleaning_behind_bytes",
        "Bytes by which the clean-up of the consume queues lags behind the start of the log",
        value=cleaning.lag_bytes,
    )


class JobCounters:
    """Implement `server.jobs.jobs.JobMetrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._open = Gauge("quarry_jobs_open", "Jobs that are queued or running", registry=registry)
        ended = Counter("quarry_jobs_ended", "Finished jobs by outcome", ["kind", "outcome"], registry=registry)
        done = Counter("quarry_job_items", "Queues and messages that jobs have processed", ["kind"], registry=registry)
        self._ended: Final = {
            (kind.value, state): ended.labels(kind=kind.value, outcome=state.value)
            for kind in JobKind
            for state in JobState
            if state.is_end
        }
        self._done: Final = {kind.value: done.labels(kind=kind.value) for kind in JobKind}

    def jobs_open(self, count: int) -> None:
        self._open.set(count)

    def job_did(self, kind: str, count: int) -> None:
        if kind in self._done and count > 0:
            self._done[kind].inc(count)

    def job_ended(self, kind: str, state: JobState) -> None:
        if (kind, state) in self._ended:
            self._ended[kind, state].inc()


class KeyIndexMetrics:
    """Implement `server.maintenance.key_index.IndexMetrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._failures = Counter(
            "quarry_index_failures",
            "Failed steps of a key index, which were retried",
            ["step"],
            registry=registry,
        )

    def index_failed(self, step: str) -> None:
        self._failures.labels(step).inc()


def index_metrics(indexes: KeyIndexes) -> Iterator[Metric]:
    lag = max((index.handed_over - index.written_up_to for index in indexes.followers), default=0)
    yield GaugeMetricFamily(
        "quarry_index_behind_bytes",
        "Bytes of commit log that are dispatched and not in the key index yet",
        value=max(0, lag),
    )
    files = GaugeMetricFamily("quarry_index_files", "Key index files by stage", labels=["stage"])
    stages = Counts(each.stage for each in indexes.tiered.files) if indexes.tiered is not None else Counts()
    for stage in Stage:
        files.add_metric([stage.value], stages[stage])
    files.add_metric(["hash"], 0 if indexes.hash_files is None else len(indexes.hash_files.files))
    yield files
    yield GaugeMetricFamily(
        "quarry_index_damaged_files",
        "Key index files that cannot be read completely",
        value=0 if indexes.tiered is None else len(indexes.tiered.damaged),
    )
    yield CounterMetricFamily(
        "quarry_index_rebuilt_files",
        "Damaged key index files that were rebuilt from the log",
        value=0 if indexes.tiered is None else indexes.tiered.rebuilt,
    )


class MigrationSource(Protocol):
    """The state and numbers that the migration keeps, readable on any thread."""

    @property
    def phase(self) -> QueuePhase: ...

    def stats(self) -> MigrationStats: ...

    def mismatches(self) -> int: ...

    @property
    def at_start(self) -> AgreementReport | None: ...


def migration_metrics(migration: MigrationSource) -> Iterator[Metric]:
    phases = GaugeMetricFamily(
        "quarry_queue_migration_phase", "1 for the current phase of the consume queues", labels=["phase"]
    )
    for phase in QueuePhase:
        phases.add_metric([phase.value], int(phase is migration.phase))
    yield phases
    stats = migration.stats()
    for name, meaning, value in (
        (
            "backfill_ratio",
            "Progress of the backfill: the share of the older file entries that is in RocksDB, from 0 to 1",
            stats.backfill_ratio,
        ),
        (
            "double_write_lag_bytes",
            "Bytes of commit log that are dispatched to only one of files and RocksDB",
            stats.lag_bytes,
        ),
        (
            "start_disagreements",
            "Queue bounds on which files and RocksDB disagreed at the start",
            0 if migration.at_start is None else sum(migration.at_start.differences.values()),
        ),
        ("mismatches", "Differences between files and RocksDB in the last comparison", migration.mismatches()),
    ):
        yield GaugeMetricFamily(f"quarry_queue_{name}", meaning, value=value)
