"""`quarry pipeline export` writes messages of a store into files that other programs read."""

from __future__ import annotations

from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import Json, Store
from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.pipeline.arguments import Tags, Topics, Where
from quarry_mq.cli.pipeline.session import Conf, Master, damage_fields, spark_session, tell_damage
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.text import say
from quarry_mq.cli.terminal.times import Since, Until, option_ms
from quarry_mq.pipeline.body_form import BodyForm
from quarry_mq.store.fs import PosixDisk

PHASES = ("reading the log", "writing the files")


Destination = Annotated[
    str, typer.Argument(metavar="DEST", help="Folder, in any file system that Spark knows (`s3a://…`).")
]
BodyOption = Annotated[
    BodyForm,
    typer.Option(
        "--body",
        metavar="stored|none|plain|text|base64",
        help="Bodies: as stored, left out, or decompressed (as bytes, as text, or in base64).",
    ),
]
Format = Annotated[str, typer.Option("--format", metavar="FORMAT", help="Format of the files: one that Spark writes.")]
Incremental = Annotated[
    bool,
    typer.Option(
        "--incremental", help="Continue where the last export to DEST ended; the first run starts the export."
    ),
]


def export(
    store: Store,
    destination: Destination,
    *,
    topic: Topics = None,
    tag: Tags = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    body: BodyOption = BodyForm.STORED,
    file_format: Format = "parquet",
    incremental: Incremental = False,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Export messages to files, in folders by topic and day, on Spark.

    The store may be running: its durable messages are exported. After a killed run readers see either nothing of it, or
    all of it once the command is run again.

    Exit status 0: it is done, 1: the log is damaged (all else is exported), messages expired since the last export,
    or bodies could not be uncompressed, 2: it could not run.
    """
    from_ms, to_ms = option_ms(since, "--since"), option_ms(until, "--until")
    with spark_session("export", store, master, conf, PHASES) as spark:
        from quarry_mq.pipeline.export import Selection
        from quarry_mq.pipeline.export import export as export_on

        selection = Selection(
            topics=tuple(topic or ()),
            tags=tuple(tag or ()),
            from_ms=from_ms,
            to_ms=to_ms,
            where=where,
            body=body,
            file_format=file_format,
        )
        done = export_on(spark, PosixDisk(), store, destination, selection, goes_on=incremental)
    if as_json:
        fields = {
            "from": done.begin,
            "to": done.end,
            "messages": done.messages,
            "files": done.files,
            "expiredBytes": done.expired,
            "withoutBody": done.without_body,
            "firstWithoutBody": done.first_without_body,
            **damage_fields(done.damage),
        }
        say(json_line(fields))
    else:
        say(f"{done.messages:,} messages of the offsets [{done.begin}, {done.end}) in {done.files} files")
    if done.expired:
        say(f"{done.expired} bytes of the log expired before they were exported", err=True)
    if done.without_body:
        say(
            f"{done.without_body:,} messages are marked as compressed but could not be decompressed, the first one at "
            f"offset {done.first_without_body}: their body is null, and bodyProblem says why",
            err=True,
        )
    tell_damage(done.damage)
    raise typer.Exit(Exit.FINDING if done.expired or done.without_body or done.damage.count else Exit.FINE)
