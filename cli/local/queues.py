"""`quarry queues` lists the queues of a store, or counts the queues of a store or of a live broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import Json
from quarry_mq.cli.offline.opened_store import opened
from quarry_mq.cli.offline.queues import Source, list_queues, show_summary
from quarry_mq.cli.online.connection.administration import admin_port
from quarry_mq.cli.online.connection.arguments import broker_of
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.store.consumequeue.queue_summary import CountedQueue, DiskUse, KindSummary, QueueKind, QueueSummary
from quarry_mq.store.message import QueueId


def queues(
    store: Annotated[
        Path | None,
        typer.Argument(metavar="[STORE]", help="Store directory, unless --admin is given.", show_default=False),
    ] = None,
    *,
    summary: Annotated[
        bool, typer.Option("--summary", help="Count the queues instead: by kind, on disk, in RocksDB, and the largest.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            "-n",
            metavar="N",
            min=0,
            max=1_000,
            help="With --summary: maximum number of largest queues to show.",
        ),
    ] = 10,
    admin: Annotated[
        str | None,
        typer.Option(
            "--admin",
            metavar="HOST:PORT",
            help="With --summary: admin address of a live broker to ask.",
            show_default=False,
        ),
    ] = None,
    source: Source = None,
    as_json: Json = False,
) -> None:
    """List all queues with their min and max offsets.

    A queue whose messages have all expired shows the same number twice. With --summary a queue is empty if the log has
    none of its messages; entries are counted as stored, so expired ones count until they are removed. On disk, `bytes`
    is the length of the files and `allocated` the space that they occupy, which is less if they have holes.
    """
    admin = broker_of(admin, is_store_named=store is not None)
    if admin is not None:
        if store is not None or source is not None or not summary:
            raise typer.BadParameter("needs --summary, and is not allowed with STORE or --source", param_hint="--admin")
        show_summary(summary_of_broker(admin, limit), as_json=as_json)
        return
    if store is None:
        raise typer.BadParameter("STORE is needed; or --admin with --summary")
    with opened(store) as open_store:
        if summary:
            show_summary(open_store.summary(source, largest_max=limit), as_json=as_json)
        else:
            list_queues(open_store, source, as_json=as_json)


def summary_of_broker(admin: str, largest_max: int) -> QueueSummary:
    """Ask the broker at this admin address for a summary.

    A refusal or a lost connection ends the command with one line.
    """
    with admin_port(admin) as broker:
        answer = broker.SummarizeQueues(pb.SummarizeQueuesRequest(largest=largest_max))
    return QueueSummary(
        kinds={QueueKind(each.kind): KindSummary(each.queues, each.empty, each.entries) for each in answer.kinds},
        largest=[CountedQueue(QueueId(each.topic, each.queue), each.entries) for each in answer.largest],
        disk={place: DiskUse(use.files, use.apparent_bytes, use.allocated_bytes) for place, use in answer.disk.items()},
        stats=dict(answer.rocksdb),
    )
