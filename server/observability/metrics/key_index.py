"""Export metrics of the key indexes (`server.maintenance.key_index`)."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quarry_mq.store.index import KeyIndexes
from quarry_mq.store.index.tiered.folders import Stage


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


def index_figures(indexes: KeyIndexes) -> Iterator[Metric]:
    behind = max((index.handed_over - index.written_up_to for index in indexes.followers), default=0)
    yield GaugeMetricFamily(
        "quarry_index_behind_bytes",
        "Bytes of commit log that are dispatched and not in the key index yet",
        value=max(0, behind),
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
