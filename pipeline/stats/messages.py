"""Aggregates messages on Spark. All functions return Spark tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from quarry_mq.pipeline.damage import LogTable
from quarry_mq.pipeline.source.times import TimeForm
from quarry_mq.pipeline.stats.model import Wanted
from quarry_mq.store.index.keys import KEY_END

MINUTE_MS: Final = 60_000
_SUMS: Final = ("messages", "storeBytes", "bodyBytes")


def minutes(spark: SparkSession, root: Path, wanted: Wanted) -> DataFrame:
    """Return `minutes_of` the log of the store at `root`. Damage ends the job."""
    return minutes_of(LogTable(spark, root, has_one_filter=False), wanted)


def minutes_of(log: LogTable, wanted: Wanted) -> DataFrame:
    """Count the messages stored by `topic`, `queueId`, `tag` and `minute` (ms since 1970).

    The columns are `messages`, `storeBytes`, `bodyBytes`, `firstStored` and `lastStored`. The checksums of all records
    are checked.
    """
    rows = _messages(log, wanted, "topic", "queueId", "tags", "storeTimestamp", "storeSize", "bodyLength")
    time = sql.col("storeTimestamp")
    return rows.groupBy(
        "topic", "queueId", sql.col("tags").alias("tag"), (time - time % MINUTE_MS).alias("minute")
    ).agg(
        sql.count("*").alias("messages"),
        sql.sum("storeSize").alias("storeBytes"),
        sql.sum("bodyLength").alias("bodyBytes"),
        sql.min("storeTimestamp").alias("firstStored"),
        sql.max("storeTimestamp").alias("lastStored"),
    )


def summed(table: DataFrame, *by: str) -> DataFrame:
    """Sum rows of `minutes` by some of its columns."""
    return table.groupBy(*by).agg(
        *(sql.sum(name).alias(name) for name in _SUMS),
        sql.min("firstStored").alias("firstStored"),
        sql.max("lastStored").alias("lastStored"),
    )


def repeated_ids(log: LogTable, wanted: Wanted) -> DataFrame:
    """Return the message ids that more than one record of a topic has: `topic`, `uniqKey`, `records`."""
    rows = _messages(log, wanted, "topic", "uniqKey", checked=False).filter("uniqKey is not null")
    return rows.groupBy("topic", "uniqKey").agg(sql.count("*").alias("records")).filter("records > 1")


def keys(log: LogTable, wanted: Wanted, topics: Sequence[str]) -> DataFrame:
    """Count the messages of some topics by key: `topic`, `key`, `messages`. Message ids do not count as keys."""
    rows = _messages(log, wanted, "topic", "keys", checked=False)
    rows = rows.filter(sql.col("topic").isin(*topics)).filter("keys is not null")
    each = sql.explode(sql.array_distinct(sql.split("keys", KEY_END))).alias("key")
    return rows.select("topic", each).filter("key != ''").groupBy("topic", "key").agg(sql.count("*").alias("messages"))


def largest(table: DataFrame, top: int, *order: Column | str) -> DataFrame:
    """Return the first `top` rows of each topic."""
    place = sql.row_number().over(Window.partitionBy("topic").orderBy(*order))
    return table.withColumn("place", place).filter(sql.col("place") <= top).orderBy("topic", "place").drop("place")


def _messages(log: LogTable, wanted: Wanted, *columns: str, checked: bool = True) -> DataFrame:
    names = dict.fromkeys([*columns, "storeTimestamp"])
    rows = log.rows(",".join(names), checked=checked, times=TimeForm.MILLIS)
    if wanted.topics:
        rows = rows.filter(sql.col("topic").isin(*wanted.topics))
    if wanted.from_ms is not None:
        rows = rows.filter(sql.col("storeTimestamp") >= wanted.from_ms)
    if wanted.to_ms is not None:
        rows = rows.filter(sql.col("storeTimestamp") <= wanted.to_ms)
    return rows
