"""Prints `quarry queues --summary`: counts of all queues, of a store or of a live broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.terminal.text import say
from quarry_mq.store.consumequeue.queue_summary import QueueSummary

FAMILY_STATS: Final = (
    "table_bytes",
    "live_data_bytes",
    "memtable_bytes",
    "block_cache_bytes",
    "pending_compaction_bytes",
)
LEVEL_BYTES: Final = "level_bytes."


def show_summary(summary: QueueSummary, *, as_json: bool) -> None:
    if as_json:
        say(json_line(_fields(summary)))
        return
    for line in _lines(summary):
        say(line)


def _fields(summary: QueueSummary) -> dict[str, object]:
    return {
        "kinds": {
            kind.value: {"queues": each.queues, "empty": each.empty, "entries": each.entries}
            for kind, each in summary.kinds.items()
        },
        "largest": [
            {"topic": each.queue.topic, "queueId": each.queue.number, "entries": each.entries}
            for each in summary.largest
        ],
        "disk": {
            place: {"files": use.files, "apparentBytes": use.apparent_bytes, "allocatedBytes": use.allocated_bytes}
            for place, use in summary.disk.items()
        },
        "rocksdb": dict(summary.stats),
    }


def _lines(summary: QueueSummary) -> Iterator[str]:
    yield f"{'queues':>15}  {'empty':>15}  {'entries':>15}  kind"
    for kind, each in summary.kinds.items():
        if each.queues:
            yield f"{each.queues:>15,}  {each.empty:>15,}  {each.entries:>15,}  {kind.value}"
    if summary.largest:
        yield ""
        yield f"{'entries':>15}  largest queues"
        for queue, entries in summary.largest:
            yield f"{entries:>15,}  {queue.topic}/{queue.number}"
    if summary.disk:
        yield ""
        yield f"{'files':>15}  {'bytes':>15}  {'allocated':>15}  on disk"
        for place, use in sorted(summary.disk.items()):
            yield f"{use.files:>15,}  {use.apparent_bytes:>15,}  {use.allocated_bytes:>15,}  {place}"
    if summary.stats:
        yield ""
        yield from _rocksdb_lines(summary)


def _rocksdb_lines(summary: QueueSummary) -> Iterator[str]:
    """Yield the RocksDB table: a column for each family, and only those levels that hold tables."""
    stats = summary.stats
    families = sorted({name.partition(".")[0] for name in stats if "." in name})
    levels = sorted({each.partition(".")[2] for each in stats if each.partition(".")[2].startswith(LEVEL_BYTES)})
    yield f"{'RocksDB':<26}" + "".join(f"  {family:>15}" for family in families)
    for stat in (*FAMILY_STATS, *levels):
        values = [stats.get(f"{family}.{stat}", 0) for family in families]
        if any(values) or stat not in levels:
            yield f"{stat:<26}" + "".join(f"  {value:>15,}" for value in values)
