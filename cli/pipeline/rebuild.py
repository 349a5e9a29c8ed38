"""`quarry pipeline rebuild`: the consume queues of a store, made anew from its log."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from cli.offline.arguments import Json, Store
from cli.offline.record_text import json_line
from cli.pipeline.session import Conf, Master, spark_session
from store.disk import PosixDisk

PHASES = ("reading the log", "writing the queues")


def rebuild(
    store: Store,
    *,
    master: Master = None,
    conf: Conf = None,
    split_mib: Annotated[int, typer.Option("--split-mib", min=1, help="MiB of the log that one task reads.")] = 64,
    as_json: Json = False,
) -> None:
    """Make the RocksDB queues of a store anew from its log, on Spark.

    The result is what a broker's own dispatch makes of the log, key by key. The old database is set aside. No broker
    may run on the store. Queues that are kept in files are made with `quarry migrate`.

    Exit code 0: it is done, 1: the log is damaged, 2: it could not run. The store is then what it was.
    """
    begun_s = time.perf_counter()
    with spark_session("rebuild", store, master, conf, PHASES) as spark:
        from pipeline.rebuild import rebuild as rebuild_on

        done = rebuild_on(spark, PosixDisk(), store, split_bytes=split_mib << 20)
    took_s = time.perf_counter() - begun_s
    if as_json:
        fields = {
            "units": done.units,
            "queues": done.queues,
            "tables": done.tables,
            "dispatchedUpTo": done.dispatched_up_to,
            "aside": None if done.aside is None else str(done.aside),
            "seconds": round(took_s, 1),
        }
        typer.echo(json_line(fields))
        return
    typer.echo(
        f"{done.units:,} units of {done.queues:,} queues, up to offset {done.dispatched_up_to}, in {took_s:.1f} s"
    )
    if done.aside is not None:
        typer.echo(f"the old database is kept in {done.aside}")
