"""`quarry units` and the offline part of `quarry queues`: they list consume queues, from RocksDB or from files."""

from __future__ import annotations

from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import Json, Queue, Store, Topic
from quarry_mq.cli.offline.opened_store import opened
from quarry_mq.cli.offline.record_text import exact_time_text, json_line
from quarry_mq.cli.terminal.text import one_line, say
from quarry_mq.store.offline.store import OfflineStore, QueueSource
from quarry_mq.store.offsets import QueueId

Source = Annotated[
    QueueSource | None,
    typer.Option(
        "--source", help="Where to read the queues. Default: where a broker would read them.", show_default=False
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
