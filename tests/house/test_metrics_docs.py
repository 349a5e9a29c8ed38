"""`docs/metrics.md` lists what the broker exports: every name, type and meaning, and nothing else."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from prometheus_client import CollectorRegistry

from server.front import FrontFigures, GrpcStatus
from server.health import HealthState
from server.metrics import ServerMetrics, watch_health
from store.index import NO_INDEXES
from store.migration import MigrationFigures
from store.offsets import PhysicalOffset
from store.queue_phase import QueuePhase
from store.state import open_state_engine

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


class Figures:
    waiting_polls = 0
    inflight_count = 0
    subscription_count = 0
    redeliveries = 0


class LogFigures:
    segment_count = 3
    segment_size = 1 << 30
    going_bytes = 0


class MigrationFiguresOfTests:
    phase = QueuePhase.BACKFILLING

    def figures(self) -> MigrationFigures:
        return MigrationFigures(
            read_rocksdb=False,
            assign_rocksdb=False,
            backfilled_to=PhysicalOffset(5),
            backfill_end=PhysicalOffset(10),
            log_begin=PhysicalOffset(0),
            lag_bytes=0,
        )

    def mismatches(self) -> int:
        return 0

    @property
    def at_start(self) -> None:
        return None


class CleaningFigures:
    phase = ""
    behind_bytes = 0


def rows(directory: Path) -> set[tuple[str, str, str]]:
    registry = CollectorRegistry()
    watch_health(registry, HealthState())
    metrics = ServerMetrics(registry)
    engine = open_state_engine(directory, create=True)
    try:
        metrics.watch_limits({"clients": 1}, FrontFigures())
        metrics.watch_delivery(Figures())
        metrics.watch_clients(())
        metrics.watch_engines(engine, engine)
        metrics.watch_front(FrontFigures())
        metrics.watch_migration(MigrationFiguresOfTests())
        metrics.watch_expiry(LogFigures(), lambda: {"log": 0.5, "queues": 0.5})
        metrics.watch_cleaning(CleaningFigures())
        metrics.watch_indexes(NO_INDEXES)
        return {
            (each.name + ("_total" if each.type == "counter" else ""), each.type, each.documentation)
            for each in registry.collect()
        }
    finally:
        engine.close()


def documented() -> list[tuple[str, str, str]]:
    found = re.findall(r"^\| `(quarry_[a-z_]+)` \| ([a-z]+) \| (.+) \|$", DOCS.read_text(), flags=re.MULTILINE)
    return [(name, kind, meaning) for name, kind, meaning in found]


def test_the_metrics_page_agrees_with_the_code(tmp_path: Path) -> None:
    listed = documented()
    assert len(listed) == len(set(listed))
    assert set(listed) == rows(tmp_path / "quarry")


def test_no_label_grows_with_topics_queues_or_groups(tmp_path: Path) -> None:
    """1,000,000 queues must not make 1,000,000 time series."""
    registry = CollectorRegistry()
    metrics = ServerMetrics(registry)
    engine = open_state_engine(tmp_path / "quarry", create=True)
    metrics.watch_engines(engine, engine)
    metrics.watch_limits({"clients": 1}, FrontFigures())
    metrics.watch_front(
        FrontFigures(connections_ended=Counter(["NO_ERROR"]), calls_failed=Counter([GrpcStatus.INTERNAL]))
    )
    metrics.watch_migration(MigrationFiguresOfTests())
    metrics.watch_expiry(LogFigures(), lambda: {"log": 0.5, "queues": 0.5})
    labels = {label for each in registry.collect() for sample in each.samples for label in sample.labels}
    engine.close()
    assert labels <= {
        "le",
        "outcome",
        "database",
        "family",
        "code",
        "status",
        "cause",
        "how",
        "holds",
        "level",
        "limit",
        "phase",
    }
