"""Export RocksDB's figures as metrics. Labels: database and family, and level or cause if there are several.

A scrape costs the same at any number of queues: see `kv.rocks_figures`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

OF_DATABASE: Final[Mapping[str, str]] = {
    "running_compactions": "Running compactions",
    "running_flushes": "Running flushes of memtables",
    "delayed_write_rate": "Bytes per second to which RocksDB limits writes; 0 if it does not",
}
OF_FAMILY: Final[Mapping[str, str]] = {
    "memtable_bytes": "Size of the memtables: written and not yet in tables",
    "immutable_memtables": "Full memtables that wait to be flushed",
    "table_bytes": "Live table files on disk",
    "live_data_bytes": "Size of the live data, as RocksDB estimates it",
    "table_reader_bytes": "Memory for the indexes and filters of open tables",
    "block_cache_bytes": "Memory for cached blocks",
    "block_cache_pinned_bytes": "Memory for cached blocks that are in use",
    "block_cache_max_bytes": "Capacity of the block cache",
    "keys_estimate": "Number of keys, as RocksDB estimates it",
    "compaction_pending": "1 while a compaction is pending",
    "pending_compaction_bytes": "Bytes that compaction still has to rewrite",
    "level_zero_tables": "Tables of level 0, which overlap each other; many of them slow down reads",
    "write_stopped": "1 while RocksDB blocks writes because compaction lags",
    "background_errors": "Errors in flushes and compactions",
}
OF_LEVEL: Final[Mapping[str, str]] = {
    "level_tables": "Number of table files by level",
    "level_bytes": "Size of table files by level",
}
OF_CAUSE: Final[Mapping[str, str]] = {
    "write_delays": "How often writes were slowed down, by cause",
    "write_stops": "How often writes were stopped, by cause",
}


class EngineFigures(Protocol):
    """An engine reports figures about itself, see `kv.KeyValueEngine.statistics`."""

    def statistics(self) -> dict[str, int]: ...


def engine_figures(engines: Mapping[str, EngineFigures]) -> Iterator[Metric]:
    """Yield the metrics of `engines`, which are given by the name of their database."""
    metrics = dict(_metrics())
    for database, engine in engines.items():
        for name, value in engine.statistics().items():
            match name.split("."):
                case [figure]:
                    labels = [database]
                case [family, figure, *which]:
                    labels = [database, family, *which]
            if figure in metrics:
                metrics[figure].add_metric(labels, value)
    yield from metrics.values()


def _metrics() -> Iterator[tuple[str, GaugeMetricFamily | CounterMetricFamily]]:
    for figures, labels in ((OF_DATABASE, []), (OF_FAMILY, ["family"]), (OF_LEVEL, ["family", "level"])):
        for figure, meaning in figures.items():
            yield figure, GaugeMetricFamily(_name(figure), meaning, labels=["database", *labels])
    for figure, meaning in OF_CAUSE.items():
        yield figure, CounterMetricFamily(_name(figure), meaning, labels=["database", "family", "cause"])


def _name(figure: str) -> str:
    return f"quarry_rocksdb_{figure}"
