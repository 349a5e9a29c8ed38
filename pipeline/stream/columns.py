"""Columns of the messages of a live broker: named as in the table `messages`, or as by Spark's source for Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, MapType, StringType, StructType

from quarry_mq.client.requests import body_of
from quarry_mq.pipeline.kafka_columns import HEADERS, KAFKA, KAFKA_TYPES, LOG_APPEND_TIME, Header, headers_of
from quarry_mq.pipeline.source.options import InvalidOption
from quarry_mq.pipeline.source.table import Types, check_schema, chosen, types_of
from quarry_mq.pipeline.source.times import TimeForm, arrow_schema, timestamps
from quarry_mq.pipeline.stream.options import UnreadableBody
from quarry_mq.pipeline.stream.source_options import SourceOptions
from quarry_mq.protocol.messages.bodies import body_problem, uncompressed
from quarry_mq.protocol.messages.property_names import COMPRESSED_BY
from quarry_mq.protocol.messages.system_flag import COMPRESSED, COMPRESSION_MASK, Compression
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.times import to_ms


class Received(NamedTuple):
    """A message, and the name of the broker that has it."""

    broker: str
    message: definition.Message


class LiveColumn(NamedTuple):
    """The type of a column in Spark, and the function that takes its value from a received message."""

    type: DataType
    of: Callable[[Received], Any]


def _of(kind: DataType, value: Callable[[definition.SystemProperties], Any]) -> LiveColumn:
    return LiveColumn(kind, lambda received: value(received.message.system_properties))


def _keys(properties: definition.SystemProperties) -> str | None:
    return " ".join(properties.keys) or None


COLUMNS: Final[dict[str, LiveColumn]] = {
    "topic": LiveColumn(StringType(), lambda received: received.message.topic.name),
    "broker": LiveColumn(StringType(), lambda received: received.broker),
    "queueId": _of(IntegerType(), lambda properties: properties.queue_id),
    "queueOffset": _of(LongType(), lambda properties: properties.queue_offset),
    "storeTimestamp": _of(LongType(), lambda properties: to_ms(properties.store_timestamp)),
    "bornTimestamp": _of(LongType(), lambda properties: to_ms(properties.born_timestamp)),
    "bornHost": _of(StringType(), lambda properties: properties.born_host),
    "storeHost": _of(StringType(), lambda properties: properties.store_host),
    "uniqKey": _of(StringType(), lambda properties: properties.message_id),
    "tags": _of(StringType(), lambda properties: properties.tag or None),
    "keys": _of(StringType(), _keys),
    "messageGroup": _of(StringType(), lambda properties: properties.message_group or None),
    "properties": LiveColumn(
        MapType(StringType(), StringType()), lambda received: list(received.message.user_properties.items())
    ),
    "bodyEncoding": _of(StringType(), lambda properties: definition.Encoding.Name(properties.body_encoding)),
    "body": LiveColumn(BinaryType(), lambda received: received.message.body),
}
TYPES: Final[Types] = {name: column.type for name, column in COLUMNS.items()}


def plain_body_of(received: Received) -> tuple[bytes | None, str | None]:
    """Return the uncompressed body, or None and the reason why it cannot be uncompressed.

    A broker does not uncompress other methods than GZIP if the body is too large for it. Then it names the method.
    """
    message = received.message
    body, named = message.body, message.user_properties.get(COMPRESSED_BY)
    if named is None and message.system_properties.body_encoding != definition.GZIP:
        return body, None
    method = _METHODS.get(named or "gzip")
    plain = None if method is None else uncompressed(body, method) if body else body
    if plain is not None:
        return plain, None
    return None, body_problem(COMPRESSED | (_UNKNOWN if method is None else method), body)


_METHODS: Final = {
    "gzip": Compression.ZLIB,
    "zlib": Compression.ZLIB,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
_UNKNOWN: Final = COMPRESSION_MASK
"""Bits of a system flag that name no method."""


def _key(received: Received) -> bytes | None:
    keys = _keys(received.message.system_properties)
    return None if keys is None else keys.encode()


def _value(received: Received) -> bytes:
    body = body_of(received.message)
    if body is None:
        place = received.message.system_properties
        raise UnreadableBody(
            f"topic {received.message.topic.name}, queue {received.broker}/{place.queue_id}, offset "
            f"{place.queue_offset}: the body cannot be uncompressed; without columns=kafka, 'body' has its bytes"
        )
    return body


def _headers(received: Received) -> list[Header]:
    properties = received.message.system_properties
    return headers_of(properties.tag or None, properties.message_id or None, received.message.user_properties)


_KAFKA_VALUES: Final[dict[str, Callable[[Received], Any]]] = {
    "key": _key,
    "value": _value,
    "topic": COLUMNS["topic"].of,
    "partition": COLUMNS["queueId"].of,
    "offset": COLUMNS["queueOffset"].of,
    "timestamp": COLUMNS["storeTimestamp"].of,
    "timestampType": lambda _: LOG_APPEND_TIME,
    HEADERS: _headers,
}


def is_kafka(options: SourceOptions) -> bool:
    """Return whether the columns are those of Spark's source for Kafka."""
    return options.columns == (KAFKA,)


def live_schema(options: SourceOptions) -> StructType:
    """Return the schema of the requested columns, or of all. Raises InvalidOption."""
    if not is_kafka(options):
        return chosen(types_of(TYPES, options.timestamps), options.columns or TYPES)
    if options.timestamps is TimeForm.MILLIS:
        raise InvalidOption("option 'timestamps': with columns=kafka the timestamp is a TIMESTAMP, as Kafka's")
    return chosen(KAFKA_TYPES, [name for name in KAFKA_TYPES if options.include_headers or name != HEADERS])


def check_live_schema(options: SourceOptions, schema: StructType) -> None:
    """Check a schema that the user gave. Raises InvalidOption for an unknown column or a wrong type."""
    check_schema(schema, KAFKA_TYPES if is_kafka(options) else TYPES)


def batch_of(received: Sequence[Received], schema: StructType, *, is_kafka: bool) -> pa.RecordBatch:
    """Return the messages as rows of the schema, which holds some of the columns."""
    arrow = arrow_schema(schema)
    arrays = [
        _array(map(_KAFKA_VALUES[field.name] if is_kafka else COLUMNS[field.name].of, received), field.type)
        for field in arrow
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _array(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return timestamps(pa.array(values, pa.int64()))
    return pa.array(list(values), kind)
