"""Export metrics of the migration of the consume queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from quarry_mq.store.layout.queue_phase import QueuePhase
from quarry_mq.store.migration import AgreementReport, MigrationFigures


class MigrationSource(Protocol):
    """The state and numbers that the migration keeps, readable on any thread."""

    @property
    def phase(self) -> QueuePhase: ...

    def figures(self) -> MigrationFigures: ...

    def mismatches(self) -> int: ...

    @property
    def at_start(self) -> AgreementReport | None: ...


def migration_figures(migration: MigrationSource) -> Iterator[Metric]:
    phases = GaugeMetricFamily(
        "quarry_queue_migration_phase", "1 for the current phase of the consume queues", labels=["phase"]
    )
    for phase in QueuePhase:
        phases.add_metric([phase.value], int(phase is migration.phase))
    yield phases
    figures = migration.figures()
    for name, meaning, value in (
        (
            "backfill_ratio",
            "Progress of the backfill: the share of the older file entries that is in RocksDB, from 0 to 1",
            figures.backfill_ratio,
        ),
        (
            "double_write_lag_bytes",
            "Bytes of commit log that are dispatched to only one of files and RocksDB",
            figures.lag_bytes,
        ),
        (
            "start_disagreements",
            "Queue bounds on which files and RocksDB disagreed at the start",
            0 if migration.at_start is None else sum(migration.at_start.differences.values()),
        ),
        ("mismatches", "Differences between files and RocksDB in the last comparison", migration.mismatches()),
    ):
        yield GaugeMetricFamily(f"quarry_queue_{name}", meaning, value=value)
