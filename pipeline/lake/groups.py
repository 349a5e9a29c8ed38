"""Notes how far consumer groups are, in the table `TABLE_positions`: one set of rows for each look."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from quarry_mq.client.admin import AdminClient
from quarry_mq.pipeline.lake.sources import LiveWish, LogWish
from quarry_mq.pipeline.lake.table import LakeTable
from quarry_mq.pipeline.stream.options import connection_of
from quarry_mq.protocol.names import SYSTEM_GROUP_PREFIX
from quarry_mq.store.errors import StoreLocked
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.offline import OfflineStore


def append_positions(table: LakeTable, wish: LogWish | LiveWish) -> int | None:
    """Note the positions of all groups, as they are now. Returns how many they are; None if they are not known.

    A store that a broker uses does not tell, and a live broker tells at its admin port only. Raises BrokerUnreachable.
    """
    rows = _of_store(table, wish) if isinstance(wish, LogWish) else _of_broker(table, wish)
    if rows is None:
        return None
    now = sql.timestamp_millis(sql.lit(table.clock.wall_ms()))
    return table.append_positions(rows.where(~sql.col("group").startswith(SYSTEM_GROUP_PREFIX)).withColumn("at", now))


def _of_store(table: LakeTable, wish: LogWish) -> DataFrame | None:
    try:
        OfflineStore.open(PosixDisk(), wish.root).close()
    except StoreLocked:
        return None
    found = table.spark.read.format("quarry").option("table", "positions").load(str(wish.root))
    return found.select("group", "topic", sql.lit(wish.broker).alias("broker"), "queueId", "nextOffset", "inFlight")


def _of_broker(table: LakeTable, wish: LiveWish) -> DataFrame | None:
    given = {name.lower(): text for name, text in wish.options.items()}
    address = given.get("adminendpoint")
    if address is None:
        return None
    with AdminClient(connection_of(given).at(address)) as admin:
        found = admin.group_positions(address)
    columns = {
        "group": pa.array([each.group for each in found], pa.string()),
        "topic": pa.array([each.topic for each in found], pa.string()),
        "broker": pa.array([each.broker for each in found], pa.string()),
        "queueId": pa.array([each.queue for each in found], pa.int32()),
        "nextOffset": pa.array([each.next_offset for each in found], pa.int64()),
        "inFlight": pa.nulls(len(found), pa.int64()),
    }
    return table.spark.createDataFrame(pa.table(columns))
