"""Computes the lag of consumer groups: their positions against the max offsets of queues."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from quarry_mq.pipeline.stats.model import GroupStats, Lag, Wanted
from quarry_mq.protocol.names import RETRY_PREFIX
from quarry_mq.store.errors import NotAStore, StoreLocked
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.kind import StoreKind
from quarry_mq.store.metadata import TopicTable
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.rocketmq import read_metadata


def lag_of_groups(spark: SparkSession, disk: Disk, root: Path, wanted: Wanted) -> Lag:
    """Return the groups with the most lag, in all topics or in the requested ones."""
    try:
        with OfflineStore.open(disk, root) as store:
            store.queue_reader()
            is_quarry = store.found.kind is StoreKind.QUARRY
    except (NotAStore, StoreLocked) as reason:
        return Lag(str(reason))
    positions, queues = (_table(spark, root, name, wanted) for name in ("positions", "queues"))
    groups = (
        _lag(positions, queues, is_quarry=is_quarry)
        .groupBy("group", "topic")
        .agg(
            sql.count("*").alias("queues"),
            sql.sum("lag").alias("lag"),
            sql.sum("inFlight").alias("inFlight"),
            # of equal queues the first one
            sql.max_by("queueId", sql.struct("lag", -sql.col("queueId"))).alias("mostBehind"),
        )
    )
    groups = groups.persist()
    try:
        total = groups.agg(
            sql.countDistinct("group").alias("groups"),
            sql.coalesce(sql.sum("lag"), sql.lit(0)).alias("lag"),
            sql.sum("inFlight").alias("inFlight"),
        ).first()
        assert total is not None
        rows = groups.orderBy(sql.desc("lag"), sql.desc_nulls_last("inFlight"), "group", "topic").limit(wanted.top)
        return Lag(
            None,
            total["groups"],
            total["lag"],
            total["inFlight"],
            tuple(GroupStats(*row) for row in rows.collect()),
        )
    finally:
        groups.unpersist()


def _table(spark: SparkSession, root: Path, name: str, wanted: Wanted) -> DataFrame:
    # positions are read several times in one query, each time with another filter
    reader = spark.read.format("quarry").option("table", name).option("pushFilters", name == "queues")
    table = reader.load(str(root))
    return table.filter(sql.col("topic").isin(*wanted.topics)) if wanted.topics else table


def _lag(positions: DataFrame, queues: DataFrame, *, is_quarry: bool) -> DataFrame:
    """Return the lag in each queue of the topics in which a group has a position, and in their retry topics.

    A queue that was added to such a topic later is read from its first message: until then all of it is lag. The same
    holds for a retry topic of dead letters that were sent again while the group was away. Where the log has expired
    beyond a position, the lag counts from the queue's min offset. A position beyond the max offset remains where a
    recovery cut off the log.
    """
    readers = positions.select("group", "topic")
    for separator in "_+":
        retry_topic = sql.concat(sql.lit(RETRY_PREFIX), "group", sql.lit(separator), "topic")
        readers = readers.union(positions.select("group", retry_topic))
    readers = readers.distinct()
    both = queues.join(readers, "topic").join(positions, ["group", "topic", "queueId"], "full_outer")
    begin = sql.greatest("nextOffset", "minOffset")  # passes over nulls
    lag = sql.greatest(sql.coalesce("maxOffset", sql.lit(0)) - begin, sql.lit(0))
    in_flight = sql.coalesce("inFlight", sql.lit(0)) if is_quarry else sql.col("inFlight")
    return both.select("group", "topic", "queueId", lag.alias("lag"), in_flight.alias("inFlight"))


def queue_counts(disk: Disk, root: Path, topics: list[str]) -> dict[str, int]:
    """Return the number of write queues of the topics; unknown topics are left out."""
    try:
        with OfflineStore.open(disk, root) as store:
            if store.found.kind is StoreKind.QUARRY:
                table = TopicTable(store.state_engine())
                found = [table.get(name) for name in topics]
            else:
                found = [each for each in read_metadata(disk, root).topics if each.name in set(topics)]
            return {each.name: each.write_queues for each in found if each is not None}
    except StoreLocked:
        return {}
