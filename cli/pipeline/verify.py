"""`quarry pipeline verify` checks whether all parts of a store agree, for stores that are too large for one core."""

from __future__ import annotations

from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import DifferenceLimit, Json, Store
from quarry_mq.cli.offline.verify import show
from quarry_mq.cli.pipeline.session import Conf, Master, spark_session
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.verify import DIFFERENCES_MAX

PHASES = ("reading the store", "comparing what differs")

Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder to write `verdict.json` and all `differences` to (Parquet), in any file system of Spark.",
        show_default=False,
    ),
]


def verify(
    store: Store,
    *,
    output: Output = None,
    limit: DifferenceLimit = DIFFERENCES_MAX,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Compare commit log, consume queues, key index and metadata of a store, and tell where they differ, on Spark.

    The same comparison as `quarry verify`. No broker may run on the store; nothing of it is changed.

    Exit status 0: all agree, 1: something differs, 2: it could not be read.
    """
    with spark_session("verify", store, master, conf, PHASES) as spark:
        from quarry_mq.pipeline.verify import verify as verify_on

        report = verify_on(spark, PosixDisk(), store, output=output, differences_max=limit)
    show(report, as_json=as_json)
    raise typer.Exit(Exit.FINE if report.agrees else Exit.FINDING)
