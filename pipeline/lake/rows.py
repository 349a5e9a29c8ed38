"""Makes rows of the lake's table. A message has the same row, whether a log or a live broker gives it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import Filter, In, Not, StringStartsWith
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quarry_mq.pipeline.export.body import PROBLEM, plain_bodies
from quarry_mq.pipeline.kafka_columns import of_senders
from quarry_mq.pipeline.source.table import chosen
from quarry_mq.pipeline.source.times import arrow_schema
from quarry_mq.pipeline.stream.columns import IDENTITY
from quarry_mq.pipeline.stream.columns import TYPES as LIVE_TYPES
from quarry_mq.protocol.messages.bodies import body_problem, uncompressed
from quarry_mq.protocol.messages.property_names import COMPRESSED_BY, MESSAGE_GROUP
from quarry_mq.protocol.messages.system_flag import (
    COMPRESSED,
    COMPRESSION_MASK,
    TRANSACTION_MASK,
    Compression,
    TransactionState,
)
from quarry_mq.protocol.names import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from quarry_mq.protocol.times import TIME_MS_MAX
from quarry_mq.store.scan.columns import Flags

SCHEMA: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("broker", StringType()),
        StructField("queueId", IntegerType()),
        StructField("queueOffset", LongType()),
        StructField("storeTimestamp", TimestampType()),
        StructField("bornTimestamp", TimestampType()),
        StructField("bornHost", StringType()),
        StructField("storeHost", StringType()),
        StructField("uniqKey", StringType()),
        StructField("tags", StringType()),
        StructField("keys", StringType()),
        StructField("messageGroup", StringType()),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("body", BinaryType()),
        StructField(PROBLEM, StringType()),
    ]
)
LOG_COLUMNS: Final = (
    *("topic", "queueId", "queueOffset", "phyOffset", "storeTimestamp", "bornTimestamp", "bornHost", "storeHost"),
    *("msgId", "uniqKey", "tags", "keys", "sysFlag", "properties", "body"),
)
"""Columns of the table `messages` that a row is made of, with times in ms."""

_ARROW: Final = arrow_schema(SCHEMA)
_TIMES: Final = ("storeTimestamp", "bornTimestamp")
_AS_RECEIVED: Final = (
    *("topic", "broker", "queueId", "queueOffset", "storeTimestamp", "bornTimestamp", "bornHost", "storeHost"),
    *("uniqKey", "tags", "keys", "messageGroup"),
)
LIVE_SCHEMA: Final = chosen(LIVE_TYPES, [*_AS_RECEIVED, "properties", "bodyEncoding", "body"])
"""Columns of the live source that a row is made of, with times in ms."""
_METHODS: Final = {
    "gzip": Compression.ZLIB,
    "zlib": Compression.ZLIB,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
_UNKNOWN: Final = COMPRESSION_MASK
"""Bits of a system flag that name no method."""
_NOT_QUEUED: Final = (TransactionState.PREPARED, TransactionState.ROLLBACK)


def visible(topics: Sequence[str]) -> list[Filter]:
    """Return the conditions on topics: these, or without names all that are neither the broker's nor a group's."""
    conditions: list[Filter] = [
        Not(In(("topic",), tuple(sorted(SYSTEM_TOPICS)))),
        Not(StringStartsWith(("topic",), SYSTEM_TOPIC_PREFIX)),
    ]
    if topics:
        return [*conditions, In(("topic",), tuple(topics))]
    return [*conditions, Not(StringStartsWith(("topic",), "%"))]


# -- from a log


def rows_of_log(batches: Iterable[pa.RecordBatch], broker: str, deleted: Mapping[str, int]) -> Iterator[pa.RecordBatch]:
    """Yield the records that consumers can see, of batches with `LOG_COLUMNS`, as rows of the table.

    `deleted` maps topics to the physical offset below which all their records were deleted.
    """
    for batch in batches:
        queued = batch.filter(pa.array(_is_queued(batch, deleted)))
        if queued.num_rows:
            yield _row_batch(queued, broker)


def _is_queued(batch: pa.RecordBatch, deleted: Mapping[str, int]) -> Flags:
    states = batch.column("sysFlag").to_numpy() & TRANSACTION_MASK
    queued: Flags = ~np.isin(states, _NOT_QUEUED)
    if deleted:
        offsets = batch.column("phyOffset").to_numpy()
        encoded = batch.column("topic").dictionary_encode()
        ends = np.array([deleted.get(topic, 0) for topic in encoded.dictionary.to_pylist()], np.int64)
        queued &= offsets >= ends[encoded.indices.to_numpy()]
    return queued


def _row_batch(batch: pa.RecordBatch, broker: str) -> pa.RecordBatch:
    if (batch.column("sysFlag").to_numpy() & COMPRESSED).any():
        [batch] = plain_bodies([batch])
    else:
        batch = batch.append_column(PROBLEM, pa.nulls(batch.num_rows, pa.string()))
    properties = batch.column("properties")
    made = {
        "broker": pa.array([broker], pa.string()).take(pa.array(np.zeros(batch.num_rows, np.int32))),
        "uniqKey": pc.coalesce(_filled(batch.column("uniqKey")), batch.column("msgId")),
        "tags": _filled(batch.column("tags")),
        "keys": _filled(_single_spaced(batch.column("keys"))),
        "messageGroup": _filled(pc.map_lookup(properties, pa.scalar(MESSAGE_GROUP), "first")),
        "properties": of_senders(properties, without=(COMPRESSED_BY,)),
    } | {name: _times(batch.column(name)) for name in _TIMES}
    arrays = [made.get(name, batch.column(name) if name not in made else None) for name in _ARROW.names]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _filled(texts: pa.Array) -> pa.Array:
    """Return texts with null for the empty ones: the protocol of the live source does not tell them apart."""
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _single_spaced(keys: pa.Array) -> pa.Array:
    return pc.utf8_trim(pc.replace_substring_regex(keys, " +", " "), " ")


def _times(times_ms: pa.Array) -> pa.Array:
    """Return times in ms as timestamps. Those before 1970 or after 9999 become the first or last one, as live."""
    clamped = np.clip(times_ms.to_numpy(), 0, TIME_MS_MAX)
    return pa.array(clamped * 1000).view(pa.timestamp("us", tz="UTC"))


# -- from a live broker


def rows_of_received(received: pa.RecordBatch) -> pa.RecordBatch:
    """Return messages of a live broker (`LIVE_SCHEMA`) as rows of the table."""
    properties = received.column("properties")
    named = pc.map_lookup(properties, pa.scalar(COMPRESSED_BY), "first").to_pylist()
    bodies: list[bytes | None] = received.column("body").to_pylist()
    problems: list[str | None] = [None] * received.num_rows
    for row, encoding in enumerate(received.column("bodyEncoding").to_pylist()):
        if encoding != IDENTITY or named[row] is not None:
            bodies[row], problems[row] = _plain(bodies[row] or b"", named[row] or encoding)
    made = {name: received.column(name) for name in _AS_RECEIVED} | {
        "properties": of_senders(properties, without=(COMPRESSED_BY,)),
        "body": pa.array(bodies, pa.binary()),
        PROBLEM: pa.array(problems, pa.string()),
    }
    made |= {name: _times(received.column(name)) for name in _TIMES}
    return pa.RecordBatch.from_arrays([made[name] for name in _ARROW.names], schema=_ARROW)


def _plain(body: bytes, encoding: str) -> tuple[bytes | None, str | None]:
    """Return the uncompressed body, or None and the reason why it cannot be uncompressed.

    A broker does not uncompress other methods than GZIP if the body is too large for it. Then it names the method.
    """
    method = _METHODS.get(encoding.lower())
    plain = None if method is None else uncompressed(body, method) if body else body
    if plain is not None:
        return plain, None
    return None, body_problem(COMPRESSED | (_UNKNOWN if method is None else method), body)
