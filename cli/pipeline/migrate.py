"""`quarry pipeline migrate`: queue files to RocksDB, for stores that outgrow one core."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.offline.arguments import Json, Store
from cli.offline.migrate import show
from cli.pipeline.session import Conf, Master, spark_session
from cli.terminal.exit import Exit
from store.clock import SystemClock
from store.fs import PosixDisk
from store.layout.queue_phase import QueuePhase
from store.progress import Progress

PHASES = ("reading the log", "writing the queues")


def migrate(
    store: Store,
    *,
    remove_old: Annotated[
        bool, typer.Option("--remove-old", help="Remove the queue files; else they are set aside.")
    ] = False,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Move the consume queues of a store from files to RocksDB, on Spark.

    What `quarry migrate --to rocksdb` does, with the log read by tasks. No broker may run on the store; ended at any
    moment, it may be run again.

    Exit code 0: done, or nothing to do, 1: the two differ, and the store is what it was, 2: it could not run.
    """
    with spark_session("migrate", store, master, conf, PHASES) as spark:
        from pipeline.migrate import migrate as migrate_on

        done = migrate_on(
            spark,
            PosixDisk(),
            SystemClock(),
            store,
            asked_by="quarry pipeline migrate",
            report=_silent,
            remove_old=remove_old,
        )
    show(done, as_json=as_json)
    raise typer.Exit(Exit.FINE if done.phase is QueuePhase.ROCKSDB else Exit.FINDING)


def _silent(progress: Progress) -> None:
    """Who watches is told of Spark's tasks."""
