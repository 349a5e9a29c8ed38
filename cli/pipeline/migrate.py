"""`quarry pipeline migrate` moves queue files to RocksDB, for stores that are too large for one core."""

from __future__ import annotations

from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import Json, Store
from quarry_mq.cli.offline.migrate import show
from quarry_mq.cli.pipeline.session import Conf, Master, spark_session
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.protocol.clock import Progress, SystemClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueuePhase

PHASES = ("reading the log", "writing the queues")


def migrate(
    store: Store,
    *,
    remove_old: Annotated[
        bool, typer.Option("--remove-old", help="Remove the queue files. Default: set them aside.")
    ] = False,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Move the consume queues of a store from files to RocksDB, on Spark.

    It does what `quarry migrate --to rocksdb` does, but tasks read the log. No broker may run on the store. It may be
    interrupted at any moment, and run again.

    Exit status 0: done, or nothing to do, 1: old and new queues differ, and the store is unchanged, 2: it could not
    run.
    """
    with spark_session("migrate", store, master, conf, PHASES) as spark:
        from quarry_mq.pipeline.migrate import migrate as migrate_on

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
    """Report nothing: the progress of Spark's tasks is shown instead."""
