"""`quarry pipeline stats` counts what a store holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quarry_mq.cli.offline.arguments import Json, Store
from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.pipeline.arguments import Topics
from quarry_mq.cli.pipeline.session import Conf, Master, spark_session, tell_damage
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.output import print_rows
from quarry_mq.cli.terminal.quantities import bytes_text, count_text, rate_text
from quarry_mq.cli.terminal.text import say, time_text
from quarry_mq.cli.terminal.times import Since, Until, option_ms
from quarry_mq.store.fs import PosixDisk

if TYPE_CHECKING:
    from quarry_mq.pipeline.stats.model import Lag, Statistics, TopicStats, Volume

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
        from quarry_mq.pipeline.stats import Wanted, as_document, report_html, statistics

        wanted = Wanted(topics=tuple(topic or ()), from_ms=from_ms, to_ms=to_ms, top=limit)
        found = statistics(spark, PosixDisk(), store, wanted)
        if report is not None:
            report.write_text(report_html(found, datetime.now(UTC)), encoding="utf-8")
    if as_json:
        say(json_line(as_document(found)))
    else:
        print_statistics(found)
    tell_damage(found.damage)
    raise typer.Exit(Exit.FINDING if found.damage.count else Exit.FINE)


def print_statistics(found: Statistics) -> None:
    """Print the topics and groups with the highest counts; for topics that were named also queues, tags and keys."""
    volume, busiest = found.volume, found.busiest_minute
    say(
        f"{count_text(volume.messages)} messages of {count_text(found.topic_count)} topics, "
        f"{bytes_text(volume.store_bytes)} of the log, {bytes_text(volume.body_bytes)} of them bodies"
    )
    if found.first_stored is not None and found.last_stored is not None and busiest is not None:
        rates = ""
        if volume.messages_per_second is not None and volume.bytes_per_second is not None:
            rates = f", {rate_text(volume.messages_per_second)}/s and {bytes_text(int(volume.bytes_per_second))}/s"
        say(f"stored from {time_text(found.first_stored)} to {time_text(found.last_stored)}{rates}")
        say(f"most in one minute: {count_text(busiest.messages)} from {time_text(busiest.at_ms)}")
    if found.duplicates.ids:
        extra, ids = found.duplicates.extra_records, found.duplicates.ids
        say(f"{count_text(extra)} records repeat one of {count_text(ids)} message ids of their topic")
    _print_topics(found)
    for topic in found.topics if found.wanted.topics else ():
        _print_details(topic)
    _print_table(
        [{"topic": each.topic, "repeatedId": each.uniq_key, "records": each.records} for each in found.repeated_ids]
    )
    _print_lag(found.lag)


def _print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Print an empty line, and rows with the same fields; nothing without rows."""
    if rows:
        say("")
        print_rows(rows, list(rows[0]), as_json=False)


def _print_topics(found: Statistics) -> None:
    _print_table(
        [
            {
                "topic": each.topic,
                **_counts(each.volume),
                "mostInAMinute": each.busiest_minute.messages,
                "queues": each.queue_count,
                "maxToMean": round(each.skew.max_to_mean, 2),
                "variation": round(each.skew.variation, 2),
            }
            for each in found.topics
        ]
    )
    if found.topic_count > len(found.topics):
        say(f"and {count_text(found.topic_count - len(found.topics))} more topics")


def _print_details(topic: TopicStats) -> None:
    _print_table([{"queueOf": topic.topic, "queueId": each.queue_id, **_counts(each.volume)} for each in topic.queues])
    _print_table(
        [
            {"topic": topic.topic, "tag": "(none)" if each.tag is None else each.tag, **_counts(each.volume)}
            for each in topic.tags
        ]
    )
    _print_table([{"topic": topic.topic, "key": each.key, "messages": each.messages} for each in topic.keys])


def _counts(volume: Volume) -> dict[str, object]:
    return {
        "messages": volume.messages,
        "logBytes": volume.store_bytes,
        "messagesPerSecond": volume.messages_per_second,
    }


def _print_lag(lag: Lag) -> None:
    if lag.not_known is not None:
        say("")
        say(f"how far groups are behind is not known: {lag.not_known}")
        return
    _print_table(
        [
            {
                "group": each.group,
                "topic": each.topic,
                "lag": each.lag,
                "inFlight": each.in_flight,
                "queues": each.queues,
                "largestInQueue": each.most_behind,
            }
            for each in lag.groups
        ]
    )
    say(f"lag of {count_text(lag.group_count)} groups in all: {count_text(lag.lag)}")
