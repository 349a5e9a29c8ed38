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
        "quarry_queue_migration_phase", "1 for the phase that the consume queues are in", labels=["phase"]
    )
    for phase in QueuePhase:
        phases.add_metric([phase.value], int(phase is migration.phase))
    yield phases
    figures = migration.figures()
    for name, meaning, value in (
        (
            "backfill_ratio",
            "How much of what was in files before double write is in RocksDB, from 0 to 1",
            figures.backfill_ratio,
        ),
        (
            "double_write_lag_bytes",
            "How much of the log one of files and RocksDB has and the other has not",
            figures.lag_bytes,
        ),
        (
            "start_disagreements",
            "Bounds of queues in which files and RocksDB disagreed at the start",
            0 if migration.at_start is None else sum(migration.at_start.differences.values()),
        ),
        ("mismatches", "Differences between files and RocksDB in the last comparison", migration.mismatches()),
    ):
        yield GaugeMetricFamily(f"quarry_queue_{name}", meaning, value=value)
