"""`quarry units` and the offline part of `quarry queues`: they list consume queues, from RocksDB or from files.

`quarry queues --summary` prints counts of all queues, of a store or of a live broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from quarry_mq.cli.offline.arguments import Json, Queue, Store, Topic
from quarry_mq.cli.offline.opened_store import opened
from quarry_mq.cli.offline.record_text import exact_time_text, json_line
from quarry_mq.cli.terminal.output import print_rows
from quarry_mq.cli.terminal.quantities import exact_bytes_text, label
from quarry_mq.cli.terminal.text import say
from quarry_mq.store.consumequeue.queue_summary import QueueSummary
from quarry_mq.store.message import ConsumeQueueEntry, QueueId
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


QUEUE_COLUMNS: Final = ("queue", "minOffset", "maxOffset")
ENTRY_COLUMNS: Final = ("offset", "phyOffset", "size", "tagsCode", "storedAt")


def list_queues(open_store: OfflineStore, source: QueueSource | None, *, as_json: bool) -> None:
    rows = (
        {
            **(
                {"topic": queue.topic, "queueId": queue.number}
                if as_json
                else {"queue": f"{queue.topic}/{queue.number}"}
            ),
            "minOffset": bounds.minimum,
            "maxOffset": bounds.maximum,
        }
        for queue, bounds in open_store.queues(source)
    )
    print_rows(rows, QUEUE_COLUMNS, as_json=as_json, kind="queues")


def units(store: Store, topic: Topic, queue: Queue, source: Source = None, as_json: Json = False) -> None:
    """List the entries of one queue: where each record lies, its size, tags code and store time.

    File queues hold no store time. RocketMQ calls an entry a unit.
    """
    with opened(store) as open_store:
        entries = open_store.entries(QueueId(topic, queue), source=source)
        rows = (_entry_fields(entry, as_json=as_json) for entry in entries)
        print_rows(rows, ENTRY_COLUMNS, as_json=as_json, kind="entries")


def _entry_fields(entry: ConsumeQueueEntry, *, as_json: bool) -> dict[str, object]:
    stored_ms = entry.store_timestamp_ms
    if as_json:
        stored: dict[str, object] = {"storeTimestamp": stored_ms}
    else:
        stored = {"storedAt": None if stored_ms is None else exact_time_text(stored_ms)}
    return {
        "offset": entry.queue_offset,
        "phyOffset": entry.physical_offset,
        "size": entry.size,
        "tagsCode": entry.tags_code,
        **stored,
    }


FAMILY_STATS: Final = (
    "table_bytes",
    "live_data_bytes",
    "memtable_bytes",
    "block_cache_bytes",
    "pending_compaction_bytes",
)
LEVEL_BYTES: Final = "level_bytes."


KIND_COLUMNS: Final = ("kind", "queues", "empty", "entries")
LARGEST_COLUMNS: Final = ("largestQueues", "entries")
DISK_COLUMNS: Final = ("onDisk", "files", "bytes", "allocatedBytes")


def show_summary(summary: QueueSummary, *, as_json: bool) -> None:
    if as_json:
        say(json_line(_fields(summary)))
        return
    kinds: list[Mapping[str, object]] = [
        {"kind": kind.value, "queues": each.queues, "empty": each.empty, "entries": each.entries}
        for kind, each in summary.kinds.items()
        if each.queues
    ]
    print_rows(kinds, KIND_COLUMNS, as_json=False, kind="queues")
    largest = [{"largestQueues": f"{queue.topic}/{queue.number}", "entries": n} for queue, n in summary.largest]
    disk = [
        {"onDisk": place, "files": use.files, "bytes": use.apparent_bytes, "allocatedBytes": use.allocated_bytes}
        for place, use in sorted(summary.disk.items())
    ]
    families = _families(summary)
    for rows, columns in (
        (largest, LARGEST_COLUMNS),
        (disk, DISK_COLUMNS),
        (_rocksdb_rows(summary, families), ("rocksdb", *families)),
    ):
        if rows:
            say()
            print_rows(rows, columns, as_json=False)


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


def _families(summary: QueueSummary) -> list[str]:
    return sorted({name.partition(".")[0] for name in summary.stats if "." in name})


def _rocksdb_rows(summary: QueueSummary, families: Sequence[str]) -> list[Mapping[str, object]]:
    """Return a row for each statistic, with a value for each family; only those levels that hold tables."""
    stats = summary.stats
    levels = sorted({each.partition(".")[2] for each in stats if each.partition(".")[2].startswith(LEVEL_BYTES)})
    rows: list[Mapping[str, object]] = []
    for stat in (*FAMILY_STATS, *levels) if families else ():
        values = {family: stats.get(f"{family}.{stat}", 0) for family in families}
        if any(values.values()) or stat not in levels:
            name = f"level {stat.removeprefix(LEVEL_BYTES)}" if stat in levels else label(stat)
            rows.append({"rocksdb": name, **{family: exact_bytes_text(each) for family, each in values.items()}})
    return rows
