"""`quarry pipeline lake` keeps a table of a lake with all messages; `lake-maintain` compacts the table."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Final

import typer

from quarry_mq.cli.offline.arguments import Json
from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.pipeline.arguments import Timeout, Tls, TlsCa, Topics, broker_options
from quarry_mq.cli.pipeline.session import Conf, Master, damage_fields, spark_session, tell_damage
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.text import say

if TYPE_CHECKING:
    from quarry_mq.pipeline.lake import Landed, LandedBatch

PHASES: Final = ("reading messages", "writing the table")
_ADDRESS: Final = re.compile(r"[^/\s]+:\d{1,5}")

Table = Annotated[str, typer.Argument(metavar="TABLE", help="Name of the table in Spark: `CATALOG.NAMESPACE.TABLE`.")]


def lake(
    source: Annotated[
        str,
        typer.Argument(
            metavar="STORE|BACKUP|ENDPOINT", help="Store directory, backup, or messaging address of a live broker."
        ),
    ],
    table: Table,
    *,
    topic: Topics = None,
    broker: Annotated[
        str,
        typer.Option(
            "--broker", metavar="NAME", help="With STORE: the name of its broker, as the setting `broker.name` has it."
        ),
    ] = "quarry",
    admin: Annotated[
        str | None,
        typer.Option(
            "--admin",
            metavar="HOST:PORT",
            help="With ENDPOINT: admin address, which lists topics and the positions of groups.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Follow new messages until the command is stopped.")] = False,
    interval: Annotated[
        int,
        typer.Option(
            "--interval", metavar="SECONDS", min=1, help="With --follow: time between two looks for new messages."
        ),
    ] = 60,
    buckets: Annotated[
        int, typer.Option("--buckets", metavar="N", min=1, help="Parts of a day in a new table, by topic.")
    ] = 16,
    batch_mib: Annotated[
        int, typer.Option("--batch-mib", metavar="N", min=1, help="MiB of messages that one commit appends, about.")
    ] = 4096,
    timeout: Timeout = 60,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Append messages to an Iceberg table, on Spark: of a store or backup first, then of the live broker.

    The table has its own position, and each commit appends messages and moves the position. So each message is in the
    table once, even if a run is killed, and the next run continues after the last commit. Run one at a time.

    Exit status 0: it is done, 1: the log is damaged (all else is appended), messages expired before they were
    appended, or bodies could not be uncompressed, 2: it could not run.
    """
    is_live = _is_live(source, admin, topic)
    options = broker_options(source, timeout, tls, tls_ca) | ({} if admin is None else {"adminEndpoint": admin})
    with spark_session("lake", Path(source), master, conf, PHASES) as spark:
        from quarry_mq.pipeline.lake import LakeRun, LiveWish, LogWish
        from quarry_mq.pipeline.lake import lake as lake_on

        topics, size = tuple(topic or ()), batch_mib << 20
        wish: LogWish | LiveWish = LogWish(root=Path(source), broker=broker, topics=topics, batch_bytes=size)
        if is_live:
            wish = LiveWish(options=options, topics=topics, batch_bytes=size)
        report = _show_batch if follow and not as_json else _show_nothing
        run = LakeRun(buckets=buckets, interval_s=interval if follow else None, stop=_stop(follow), report=report)
        done = lake_on(spark, table, wish, run)
    _show(done, is_live=is_live, as_json=as_json)
    tell_damage(done.damage)
    raise typer.Exit(Exit.FINDING if done.expired or done.without_body or done.damage.count else Exit.FINE)


def _is_live(source: str, admin: str | None, topics: list[str] | None) -> bool:
    """Return whether the source is an address. Raises typer.BadParameter if --admin does not fit it."""
    is_live = _ADDRESS.fullmatch(source) is not None and not Path(source).exists()
    if not is_live and admin is not None:
        raise typer.BadParameter("belongs to ENDPOINT, and STORE is given", param_hint="--admin")
    if is_live and admin is None and not topics:
        raise typer.BadParameter("needed without --topic: the admin port lists the topics", param_hint="--admin")
    return is_live


def _stop(follow: bool) -> Event:
    """Return what ends the run after its commit: with --follow, Ctrl-C and SIGTERM set it."""
    stop = Event()
    if follow:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
    return stop


def _show_nothing(_: LandedBatch) -> None:
    """Print nothing: the result is printed at the end."""


def _show_batch(batch: LandedBatch) -> None:
    say(f"{batch.messages:,} messages appended")


def _show(done: Landed, *, is_live: bool, as_json: bool) -> None:
    if as_json:
        fields = {
            "messages": done.messages,
            "commits": done.commits,
            "expired": done.expired,
            "withoutBody": done.without_body,
            "positions": done.positions,
            **damage_fields(done.damage),
        }
        say(json_line(fields))
    else:
        say(f"{done.messages:,} messages in {done.commits:,} commits")
    if done.expired:
        what = "messages" if is_live else "bytes of the log"
        say(f"{done.expired:,} {what} expired before they were appended", err=True)
    if done.without_body:
        say(
            f"{done.without_body:,} messages are marked as compressed but could not be decompressed: their body is "
            "null, and bodyProblem says why",
            err=True,
        )


def lake_maintain(
    table: Table,
    *,
    retention_hours: Annotated[
        int,
        typer.Option("--retention-hours", metavar="N", min=0, help="Age from which snapshots of the table expire."),
    ] = 168,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Compact the files of a table that `quarry pipeline lake` fills, and let old snapshots expire, on Spark.

    The rows and the position of the table stay the same. `quarry pipeline lake` may run at the same time.

    Exit status 0: it is done, 2: it could not run.
    """
    with spark_session("lake-maintain", Path(table), master, conf, ("reading the table", "writing files")) as spark:
        from quarry_mq.pipeline.lake import maintain

        done = maintain(spark, table, retention_hours * 3_600_000)
    if as_json:
        fields = {
            "rewrittenFiles": done.rewritten_files,
            "addedFiles": done.added_files,
            "expiredFiles": done.expired_files,
            "removedBranches": done.removed_branches,
            "removedOrphans": done.removed_orphans,
        }
        say(json_line(fields))
        return
    say(
        f"{done.rewritten_files:,} files became {done.added_files:,}, and {done.expired_files:,} were removed with "
        "their snapshots"
    )
    if done.removed_branches or done.removed_orphans:
        say(f"{done.removed_branches:,} branches and {done.removed_orphans:,} files of killed runs were removed")
