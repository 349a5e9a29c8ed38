"""`quarry units` and the offline part of `quarry queues`: they list consume queues, from RocksDB or from files.

`quarry queues --summary` prints counts of all queues, of a store or of a live broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import typer

from quarry_mq.cli.offline.arguments import Json, Queue, Store, Topic
from quarry_mq.cli.offline.opened_store import opened
from quarry_mq.cli.offline.record_text import exact_time_text, json_line
from quarry_mq.cli.terminal.text import one_line, say
from quarry_mq.store.consumequeue.queue_summary import QueueSummary
from quarry_mq.store.message import QueueId
from quarry_mq.store.offline import OfflineStore, QueueSource

Source = Annotated[
    QueueSource | None,
    typer.Option(
        "--source",
        metavar="file|rocksdb",
        help="Where to read the queues. Default: where a broker would read them.",
        show_default=False,
    ),
]


def list_queues(open_store: OfflineStore, source: QueueSource | None, *, as_json: bool) -> None:
    if not as_json:
        say(f"{'min offset':>12}  {'max offset':>12}  queue")
    for queue, bounds in open_store.queues(source):
        fields = {
            "topic": queue.topic,
            "queueId": queue.number,
            "minOffset": bounds.minimum,
            "maxOffset": bounds.maximum,
        }
        if as_json:
            say(json_line(fields))
        else:
            say(f"{bounds.minimum:>12}  {bounds.maximum:>12}  {one_line(queue.topic)}/{queue.number}")


def units(store: Store, topic: Topic, queue: Queue, source: Source = None, as_json: Json = False) -> None:
    """List the entries of one queue: where each record lies, its size, tags code and store time.

    File queues hold no store time. RocketMQ calls an entry a unit.
    """
    with opened(store) as open_store:
        entries = open_store.entries(QueueId(topic, queue), source=source)
        if not as_json:
            say(f"{'offset':>12}  {'phy offset':>15}  {'size':>8}  {'tags code':>20}  store time")
        for entry in entries:
            if as_json:
                fields = {
                    "offset": entry.queue_offset,
                    "phyOffset": entry.physical_offset,
                    "size": entry.size,
                    "tagsCode": entry.tags_code,
                    "storeTimestamp": entry.store_timestamp_ms,
                }
                say(json_line(fields))
            else:
                stored = "" if entry.store_timestamp_ms is None else exact_time_text(entry.store_timestamp_ms)
                say(
                    f"{entry.queue_offset:>12}  {entry.physical_offset:>15}  {entry.size:>8}  "
                    f"{entry.tags_code:>20}  {stored}".rstrip()
                )


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
