"""`quarry pipeline rebuild` rebuilds the consume queues of a store from its log."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import Json, Store
from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.pipeline.session import Conf, Master, spark_session
from quarry_mq.cli.terminal.text import say
from quarry_mq.store.fs import PosixDisk

PHASES = ("reading the log", "writing the queues", "making the index")


def rebuild(
    store: Store,
    *,
    master: Master = None,
    conf: Conf = None,
    split_mib: Annotated[int, typer.Option("--split-mib", metavar="N", min=1, help="MiB of the log per task.")] = 64,
    with_index: Annotated[
        bool | None,
        typer.Option(
            "--index/--no-index", help="Whether to build the tiered key index, too. Default: if the store has one."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Rebuild the RocksDB queues of a store from its log, on Spark, and everything else that it derives from the log.

    The result is what a broker's own dispatch makes of the log, key by key. The old database is set aside. Pending
    messages are looked for, and the tiered key index is rebuilt if the store has one. No broker may run on the store.
    Queues that are kept in files go to RocksDB with `quarry pipeline migrate`.

    Exit status 0: it is done, 1: the log is damaged, 2: it could not run. After 1 or 2 the store is unchanged.
    """
    begun_s = time.perf_counter()
    with spark_session("rebuild", store, master, conf, PHASES) as spark:
        from quarry_mq.pipeline.rebuild import rebuild as rebuild_on

        done = rebuild_on(spark, PosixDisk(), store, with_index=with_index, split_bytes=split_mib << 20)
    took_s = time.perf_counter() - begun_s
    queues, index = done.queues, done.index
    if as_json:
        fields = {
            "units": queues.entries,
            "queues": queues.queues,
            "tables": queues.tables,
            "dispatchedUpTo": queues.dispatched_up_to,
            "aside": None if done.aside is None else str(done.aside),
            "waiting": done.waiting,
            "indexItems": None if index is None else index.items,
            "indexFiles": None if index is None else index.files,
            "seconds": round(took_s, 1),
        }
        say(json_line(fields))
        return
    say(
        f"{queues.entries:,} entries of {queues.queues:,} queues, up to offset {queues.dispatched_up_to}, in "
        f"{took_s:.1f} s"
    )
    if done.waiting is not None:
        say(f"{done.waiting:,} delayed messages are pending")
    if index is not None:
        say(f"{index.items:,} keys in {index.files} index files")
    if done.aside is not None:
        say(f"the old database is kept in {done.aside}")
