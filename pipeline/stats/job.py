"""Computes the statistics: Spark makes the tables, the largest rows of each are kept and put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql

from quarry_mq.pipeline.damage import LogTable, beside_damage
from quarry_mq.pipeline.session import shuffles_for
from quarry_mq.pipeline.source.log_splits import readable_range
from quarry_mq.pipeline.source.options import SPLIT_BYTES
from quarry_mq.pipeline.stats.groups import lag_of_groups, queue_counts
from quarry_mq.pipeline.stats.messages import MINUTE_MS, keys, largest, minutes_of, repeated_ids, summed
from quarry_mq.pipeline.stats.model import (
    Duplicates,
    KeyStats,
    Point,
    QueueStats,
    RepeatedId,
    Skew,
    Statistics,
    TagStats,
    TopicStats,
    Volume,
    Wanted,
)
from quarry_mq.store.fs import Disk

POINTS_MAX: Final = 240
"""Points of a series, at most: a plot shows no more, and the driver holds a series of each topic."""
_HOUR: Final = 60 * MINUTE_MS
_DAY: Final = 24 * _HOUR
BUCKETS_MS: Final = (
    *(count * MINUTE_MS for count in (1, 2, 5, 10, 15, 30)),
    *(count * _HOUR for count in (1, 2, 3, 6, 12)),
    *(count * _DAY for count in (1, 2, 7, 14, 28)),
)
_StatsOf = TypeVar("_StatsOf")


def statistics(spark: SparkSession, disk: Disk, root: Path, wanted: Wanted) -> Statistics:
    """Count what the log holds, and compute the lag of the groups.

    The log is read three times: for counts, for repeated ids and for keys. Damaged places are reported, and all else is
    counted. Raises StoreUnusable and what Spark raises.
    """
    begin, end = readable_range(disk, root, SPLIT_BYTES)
    with shuffles_for(spark, end - begin):
        found, damage = beside_damage(LogTable(spark, root), lambda log: _counted(log, disk, wanted))
    return replace(found, damage=damage)


def _counted(log: LogTable, disk: Disk, wanted: Wanted) -> Statistics:
    spark, root = log.spark, log.root
    with _kept(minutes_of(log, wanted)) as table, _kept(repeated_ids(log, wanted)) as repeated:
        total = _only(summed(table))
        scale = _Scale(total["firstStored"], total["lastStored"])
        series = table.withColumn("topic", sql.lit(""))
        topics = summed(table, "topic")
        shown = topics.orderBy(sql.desc("messages"), "topic").limit(wanted.top).collect()
        extra = sql.coalesce(sql.sum(sql.col("records") - 1), sql.lit(0))
        repetition = _only(repeated.agg(sql.count("*").alias("ids"), extra.alias("extra")))
        ids = repeated.orderBy(sql.desc("records"), "topic", "uniqKey").limit(wanted.top).collect()
        names = [row["topic"] for row in shown]
        details = _Details(log, wanted, names, scale)
        return Statistics(
            wanted=wanted,
            store=str(root),
            volume=scale.volume(total),
            first_stored=total["firstStored"],
            last_stored=total["lastStored"],
            busiest_minute=_busiest(series).get(""),
            bucket_ms=scale.bucket_ms,
            series=scale.series(series).get("", ()),
            topic_count=topics.count(),
            topics=details.stats(shown, table, repeated, queue_counts(disk, root, names)),
            duplicates=Duplicates(repetition["ids"], repetition["extra"]),
            repeated_ids=tuple(RepeatedId(*row) for row in ids),
            lag=lag_of_groups(spark, disk, root, wanted),
        )


@dataclass(frozen=True, slots=True)
class _Scale:
    """The time between the first and the last message, and how it is divided into buckets."""

    first_ms: int | None
    last_ms: int | None

    @property
    def bucket_ms(self) -> int:
        needed_ms = 0 if self.first_ms is None or self.last_ms is None else (self.last_ms - self.first_ms) / POINTS_MAX
        return next((each for each in BUCKETS_MS if each > needed_ms), int(-(-needed_ms // _DAY) * _DAY))

    def volume(self, row: Row) -> Volume:
        stats = row["messages"] or 0, row["storeBytes"] or 0, row["bodyBytes"] or 0
        if self.first_ms is None or self.last_ms is None or self.first_ms == self.last_ms:
            return Volume(*stats, None, None)
        took_s = (self.last_ms - self.first_ms) / 1000
        return Volume(*stats, stats[0] / took_s, stats[1] / took_s)

    def series(self, table: DataFrame) -> dict[str, tuple[Point, ...]]:
        """Return the series of each topic, in time order."""
        at = sql.col("minute") - sql.col("minute") % self.bucket_ms
        rows = summed(table.withColumn("at", at), "topic", "at").orderBy("topic", "at")
        return _by_topic(rows, lambda row: Point(row["at"], row["messages"], row["storeBytes"]))


class _Details:
    """Computes the details of each of the shown topics."""

    def __init__(self, log: LogTable, wanted: Wanted, names: list[str], scale: _Scale) -> None:
        self._log = log
        self._wanted = wanted
        self._names = names
        self._scale = scale

    def stats(
        self, shown: Iterable[Row], table: DataFrame, repeated: DataFrame, counts: Mapping[str, int]
    ) -> tuple[TopicStats, ...]:
        if not self._names:
            return ()
        of_shown = sql.col("topic").isin(*self._names)
        table, repeated = table.filter(of_shown), repeated.filter(of_shown)
        volume, top = self._scale.volume, self._wanted.top
        by_queue, by_tag = summed(table, "topic", "queueId"), summed(table, "topic", "tag")
        queues = _by_topic(
            largest(by_queue, top, sql.desc("messages"), "queueId"),
            lambda row: QueueStats(row["queueId"], volume(row)),
        )
        tags = _by_topic(
            largest(by_tag, top, sql.desc("messages"), "tag"), lambda row: TagStats(row["tag"], volume(row))
        )
        some_keys = keys(self._log, self._wanted, self._names)
        named = _by_topic(
            largest(some_keys, top, sql.desc("messages"), "key"), lambda row: KeyStats(row["key"], row["messages"])
        )
        tag_counts = {row["topic"]: row["count"] for row in by_tag.groupBy("topic").count().collect()}
        extra = repeated.groupBy("topic").agg(sql.count("*"), sql.sum(sql.col("records") - 1)).collect()
        duplicates = {topic: Duplicates(ids, records) for topic, ids, records in extra}
        spread, busiest, series = _spread(by_queue), _busiest(table), self._scale.series(table)
        found = []
        for row in shown:
            name = row["topic"]
            queue_count = max(counts.get(name, 0), spread[name]["queues"])
            found.append(
                TopicStats(
                    topic=name,
                    volume=volume(row),
                    first_stored=row["firstStored"],
                    last_stored=row["lastStored"],
                    busiest_minute=busiest[name],
                    queue_count=queue_count,
                    skew=_skew(spread[name], queue_count),
                    queues=queues[name],
                    tag_count=tag_counts[name],
                    tags=tags[name],
                    keys=named.get(name, ()),
                    duplicates=duplicates.get(name, Duplicates(0, 0)),
                    series=series[name],
                )
            )
        return tuple(found)


def _busiest(table: DataFrame) -> dict[str, Point]:
    """Return for each topic the minute with the most messages, the first one of equals."""
    by_minute = summed(table, "topic", "minute")
    found = largest(by_minute, 1, sql.desc("messages"), "minute").collect()
    return {row["topic"]: Point(row["minute"], row["messages"], row["storeBytes"]) for row in found}


def _spread(by_queue: DataFrame) -> dict[str, Row]:
    """Return for each topic the number of queues, and the moments of their message counts."""
    count = sql.col("messages").cast("double")
    rows = by_queue.groupBy("topic").agg(
        sql.count("*").alias("queues"),
        sql.sum("messages").alias("sum"),
        sql.sum(count * count).alias("squares"),
        sql.max("messages").alias("max"),
    )
    return {row["topic"]: row for row in rows.collect()}


def _skew(spread: Row, queue_count: int) -> Skew:
    """Return the skew over all queues, including those without messages."""
    mean = spread["sum"] / queue_count
    variance = max(spread["squares"] / queue_count - mean * mean, 0.0)
    return Skew(spread["max"] / mean, variance**0.5 / mean)


def _by_topic(table: DataFrame, stats: Callable[[Row], _StatsOf]) -> dict[str, tuple[_StatsOf, ...]]:
    found: dict[str, list[_StatsOf]] = defaultdict(list)
    for row in table.collect():
        found[row["topic"]].append(stats(row))
    return {topic: tuple(each) for topic, each in found.items()}


def _only(table: DataFrame) -> Any:
    (row,) = table.collect()
    return row


@contextmanager
def _kept(table: DataFrame) -> Iterator[DataFrame]:
    """Keep the table while the block runs, so that it is computed once; rows that do not fit into memory go to disk."""
    kept = table.persist()
    try:
        yield kept
    finally:
        kept.unpersist()
