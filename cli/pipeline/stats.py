"""`quarry pipeline stats` counts what a store holds."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import Json, Store
from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.pipeline.arguments import Topics
from quarry_mq.cli.pipeline.session import Conf, Master, spark_session, tell_damage
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.text import say
from quarry_mq.cli.terminal.times import Since, Until, option_ms
from quarry_mq.store.fs import PosixDisk

PHASES = ("counting",)

Limit = Annotated[
    int,
    typer.Option(
        "--limit",
        "-n",
        metavar="N",
        min=1,
        max=200,
        help="Maximum length of each list: topics, queues, tags, keys, ids, groups.",
    ),
]
Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Also write an HTML page with plots.", show_default=False),
]


def stats(
    store: Store,
    *,
    topic: Topics = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 20,
    report: Report = None,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Count messages by topic, queue, tag and minute, and compute the lag of groups, on Spark.

    The store may be running: its durable messages are counted. The lag of groups is only shown for a stopped store.

    Exit status 0: it is done, 1: the log is damaged, and the undamaged part was counted, 2: it could not run.
    """
    from_ms, to_ms = option_ms(since, "--since"), option_ms(until, "--until")
    if report is not None and not report.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {report.absolute().parent}", param_hint="--report")
    with spark_session("stats", store, master, conf, PHASES) as spark:
        from quarry_mq.pipeline.stats import Wanted, as_document, report_html, statistics, summary_lines

        wanted = Wanted(topics=tuple(topic or ()), from_ms=from_ms, to_ms=to_ms, top=limit)
        found = statistics(spark, PosixDisk(), store, wanted)
        if report is not None:
            report.write_text(report_html(found, datetime.now(UTC)), encoding="utf-8")
    if as_json:
        say(json_line(as_document(found)))
    else:
        for line in summary_lines(found):
            say(line)
    tell_damage(found.damage)
    raise typer.Exit(Exit.FINDING if found.damage.count else Exit.FINE)
