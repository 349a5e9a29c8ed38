"""The job `replay` sends messages of a store once more, to a live broker.

Each message gets an id that is made of where the message lies and where it goes, so that a repeated run sends the same
ids. A task sends rows, and reports each message that the broker refuses because of its content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sql

from quarry_mq.pipeline.damage import NO_DAMAGE, DamagedPlaces, LogTable, beside_damage
from quarry_mq.pipeline.export.body import PROBLEM, plain_bodies, plain_where, with_problem
from quarry_mq.pipeline.source.log_splits import readable_range
from quarry_mq.pipeline.source.message_columns import COLUMNS
from quarry_mq.pipeline.source.options import SPLIT_BYTES
from quarry_mq.pipeline.stream.options import SinkOptions, sink_options
from quarry_mq.pipeline.stream.sink.outgoing import messages_of
from quarry_mq.pipeline.stream.sink.sender import Sender
from quarry_mq.pipeline.wanted import Wanted
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.messages.property_names import (
    MESSAGE_GROUP,
    REPLAYED_FROM,
    REPLAYED_ID,
    RESERVED_PREFIX,
    RESERVED_PROPERTIES,
)
from quarry_mq.protocol.messages.system_flag import COMPRESSED, COMPRESSION_MASK, Compression
from quarry_mq.protocol.names import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from quarry_mq.store.fs import Disk

FIRST_REFUSED: Final = 20
"""Refused messages that are listed; further ones are only counted."""

SENDING_TELLS: Final = "messages long, refused long, first array<struct<place: string, reason: string>>"
_TELLS: Final = pa.schema(
    [
        ("messages", pa.int64()),
        ("refused", pa.int64()),
        ("first", pa.list_(pa.struct([("place", pa.string()), ("reason", pa.string())]))),
    ]
)


def sending(options: SinkOptions) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that a task runs over its rows.

    It yields one row with the count of sent and refused messages.
    """

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        refused: list[tuple[str, str]] = []
        clock, client = SystemClock(), options.connection.client()
        sender = Sender(
            client,
            options.in_flight_max,
            lambda message, reason: refused.append((message.user_properties[REPLAYED_FROM], reason)),
        )
        count = 0
        try:
            for batch in batches:
                refused += _without_body(batch)
                whole = batch.filter(compute.is_valid(batch.column("body"))).drop_columns([PROBLEM])
                # each row has an id already, so no id is made of its place
                for message in messages_of(
                    whole, topic=None, write="", partition=0, first_row=count, now_ms=clock.wall_ms()
                ):
                    sender.add(message)
                count += batch.num_rows
            sender.finish()
        finally:
            client.close()
            sender.close()
        first = [{"place": place, "reason": reason} for place, reason in refused[:FIRST_REFUSED]]
        told: dict[str, list[Any]] = {
            "messages": [count - len(refused)],
            "refused": [len(refused)],
            "first": [first],
        }
        yield pa.RecordBatch.from_pydict(told, _TELLS)

    return send


def _without_body(batch: pa.RecordBatch) -> list[tuple[str, str]]:
    """Return the positions and reasons of the rows whose body could not be uncompressed."""
    problems = batch.column(PROBLEM)
    if problems.null_count == len(problems):
        return []
    rows = batch.select(["properties", PROBLEM]).filter(compute.is_valid(problems)).to_pylist()
    return [(dict(row["properties"])[REPLAYED_FROM], row[PROBLEM]) for row in rows]


_SENT: Final = (
    *("topic", "queueId", "queueOffset", "phyOffset", "msgId", "uniqKey"),
    *("tags", "keys", "sysFlag", "properties", "body"),
)
"""Columns that go through the shuffle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Describes the broker and the topic that messages are sent to."""

    options: Mapping[str, str]
    """Options of the sink without its topic: docs/pipeline.md."""
    topic: str | None = None
    """The topic that all messages go to; None sends each to the topic it was stored in."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of one run: how many messages were sent, and which could not be sent."""

    messages: int
    refused: int = 0
    first_refused: tuple[tuple[str, str], ...] = ()
    """Position (`orders/3/1207`) and reason of the first refused messages of each task, `FIRST_REFUSED` at most."""
    damage: DamagedPlaces = NO_DAMAGE
    """Damaged places of the log; nothing of them was sent."""


def replay(
    spark: SparkSession,
    disk: Disk,
    root: Path,
    target: Target,
    wanted: Wanted,
    *,
    keeps_compressed: bool = False,
    split_bytes: int = SPLIT_BYTES,
) -> Replayed:
    """Send the messages that lie in the log now, those of each queue in their order.

    `keeps_compressed`: bodies compressed with ZLIB are sent as they are; all others are uncompressed. A message that is
    refused because of its content is counted, and the others are sent. Raises StoreUnusable, OSError, InvalidOption,
    and what Spark raises.
    """
    # the broker may be the one that runs on this store: messages that it stores from now on are not sent once more
    begin, end = readable_range(disk, root, split_bytes)
    options = sink_options(target.options, is_stream=False)

    def send(log: LogTable) -> list[Row]:
        rows = wanted.rows(log.rows(",".join(COLUMNS)), begin, end).filter(_is_of_users(wanted)).select(*_SENT)
        # nothing is sent before the whole log is read: each queue's messages go to one task first
        return _sent(rows, target, options, keeps_compressed=keeps_compressed)

    told, damage = beside_damage(LogTable(spark, root, split_bytes=split_bytes), send, begin, end)
    first = [(each["place"], each["reason"]) for row in told for each in row["first"]]
    messages, refused = sum(row["messages"] for row in told), sum(row["refused"] for row in told)
    return Replayed(messages, refused, tuple(first[:FIRST_REFUSED]), damage)


def _sent(rows: DataFrame, target: Target, options: SinkOptions, *, keeps_compressed: bool) -> list[Row]:
    """Send the rows in tasks, and return the result row of each task."""
    # the order of a queue's messages includes that of its message groups
    ordered = rows.repartition("topic", "queueId").sortWithinPartitions("phyOffset")
    plain = ordered.mapInArrow(stored_bodies if keeps_compressed else plain_bodies, with_problem(rows.schema))
    sent = outgoing(plain, target.topic, keeps_compressed=keeps_compressed)
    return sent.mapInArrow(sending(options), SENDING_TELLS).collect()


def outgoing(rows: DataFrame, topic: str | None, *, keeps_compressed: bool) -> DataFrame:
    """Return rows of the table `messages` as rows of the sink."""
    into = sql.col("topic") if topic is None else sql.lit(topic)
    origin = sql.coalesce("uniqKey", "msgId")
    place = sql.concat_ws("/", "topic", "queueId", "queueOffset")
    digest = sql.substring(sql.sha2(sql.concat_ws("/", sql.lit("replay"), "msgId", origin, place, into), 256), 1, 32)
    marks = sql.create_map(sql.lit(REPLAYED_FROM), place, sql.lit(REPLAYED_ID), origin)
    is_compressed = sql.col("sysFlag").bitwiseAND(COMPRESSED) != 0
    return rows.select(
        into.alias("topic"),
        "body",
        (sql.when(is_compressed, "GZIP").otherwise("IDENTITY") if keeps_compressed else sql.lit("IDENTITY")).alias(
            "bodyEncoding"
        ),
        sql.col("tags").alias("tag"),
        "keys",
        sql.map_concat(sql.map_filter("properties", _is_of_user), marks).alias("properties"),
        sql.col("properties").getItem(MESSAGE_GROUP).alias("messageGroup"),
        sql.concat(sql.lit("01"), sql.upper(digest)).alias("messageId"),
        PROBLEM,
    )


def stored_bodies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with bodies uncompressed where the protocol has no name for their compression.

    Flags are adapted: bodies that still are marked as compressed are so with ZLIB.
    """
    for batch in plain_where(batches, _is_odd):
        flags = [flag & ~COMPRESSED if _is_odd(flag) else flag for flag in batch.column("sysFlag").to_pylist()]
        place = batch.schema.get_field_index("sysFlag")
        yield batch.set_column(place, "sysFlag", pa.array(flags, pa.int32()))


def _is_odd(flag: int) -> bool:
    return bool(flag & COMPRESSED) and flag & COMPRESSION_MASK not in (0, Compression.ZLIB)


def _is_of_users(wanted: Wanted) -> Column:
    """Return the condition that leaves out the broker's own topics.

    Retry topics and dead letters are left out too, unless topics are named.
    """
    topic = sql.col("topic")
    of_broker = topic.isin(*sorted(SYSTEM_TOPICS)) | topic.startswith(SYSTEM_TOPIC_PREFIX)
    return ~of_broker if wanted.topics else ~of_broker & ~topic.startswith("%")


def _is_of_user(name: Column, _value: Column) -> Column:
    """Return the condition that a property was set by the sender.

    Marks of an earlier replay are replaced by new ones.
    """
    taken = sorted(RESERVED_PROPERTIES | {REPLAYED_FROM, REPLAYED_ID})
    return ~name.isin(*taken) & ~name.startswith(RESERVED_PREFIX)
