"""Columns of the messages of a live broker: named as in the table `messages`, or as by Spark's source for Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, MapType, StringType, StructType

from quarry_mq.client.requests import body_of
from quarry_mq.pipeline.kafka_columns import (
    HEADERS,
    KAFKA,
    KAFKA_TYPES,
    LOG_APPEND_TIME,
    Header,
    headers_of,
    of_senders,
)
from quarry_mq.pipeline.source.kafka import KafkaRows
from quarry_mq.pipeline.source.message_columns import MessageRows
from quarry_mq.pipeline.source.options import InvalidOption
from quarry_mq.pipeline.source.table import Types, check_schema, chosen, types_of
from quarry_mq.pipeline.source.times import TimeForm, arrow_schema, timestamps
from quarry_mq.pipeline.stream.options import UnreadableBody
from quarry_mq.pipeline.stream.source_options import SourceOptions
from quarry_mq.protocol.messages.bodies import compression_name, plain_body
from quarry_mq.protocol.messages.property_names import (
    BORN_TIMESTAMP,
    MESSAGE_GROUP,
    UNIQUE_KEY,
)
from quarry_mq.protocol.messages.system_flag import COMPRESSED, COMPRESSION_MASK, INNER_BATCH
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.times import to_ms
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.scan import RecordBatch

IDENTITY: Final = definition.Encoding.Name(definition.IDENTITY)
"""Value of `bodyEncoding` for a body that is as its sender has made it."""
_GZIP: Final = definition.Encoding.Name(definition.GZIP)


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


_AS_STORED: Final = frozenset(
    {"topic", "queueId", "queueOffset", "storeTimestamp", "bornTimestamp", "bornHost", "storeHost", "tags", "keys"}
)
"""Columns that are the same in the table `messages`."""


class RecordRows:
    """Stored records as rows of these columns."""

    def __init__(self, rows: MessageRows, broker: str) -> None:
        self._rows = rows
        self._broker = broker

    def array(self, name: str) -> pa.Array:
        """Return the column of this name. Raises UnreadableBody for a record that is not one message."""
        if name in _AS_STORED:
            return self._rows.array(name)
        match name:
            case "broker":
                return pa.array([self._broker] * len(self._rows), pa.string())
            case "messageGroup":
                return self._rows.property_texts(MESSAGE_GROUP)
            case "uniqKey":
                ids = self._rows.property_texts(UNIQUE_KEY)
                return pc.coalesce(ids, self._rows.offset_ids()) if ids.null_count else ids
            case "properties":
                return of_senders(self._rows.array("properties"))
        return self._bodies[1 if name == "body" else 0]

    @cached_property
    def _bodies(self) -> tuple[pa.Array, pa.Array]:
        """Return the encodings and the bodies. What a client of RocketMQ has compressed is uncompressed."""
        bodies, flags = self._rows.array("body"), self._rows.columns.system_flag
        encodings = np.full(len(flags), IDENTITY, object)
        compressed = np.flatnonzero(flags & COMPRESSED)
        if not len(compressed):
            return pa.array(encodings, pa.string()), bodies
        found = bodies.to_pylist()
        by_grpc = self._rows.property_texts(BORN_TIMESTAMP).is_valid().to_numpy(zero_copy_only=False)
        for row in compressed.tolist():
            flag = int(flags[row])
            # the sender has compressed it, and receivers get it unchanged
            is_of_sender = by_grpc[row] and not flag & COMPRESSION_MASK
            plain = None if is_of_sender else plain_body(flag, found[row])
            if plain is None:
                encodings[row] = _GZIP if is_of_sender else (compression_name(flag, found[row]) or "").upper()
            else:
                found[row] = plain
        return pa.array(encodings, pa.string()), pa.array(found, pa.binary())


def batch_of_records(records: RecordBatch, broker: str, schema: StructType, *, is_kafka: bool) -> pa.RecordBatch:
    """Return records of one queue as rows of the schema. Raises UnreadableBody."""
    inner = np.flatnonzero(records.columns.system_flag & INNER_BATCH)
    if len(inner):
        raise UnreadableBody(
            f"{_place(records, broker, int(inner[0]))}: it is a batch that consumers take apart (BatchCQ), which this "
            "source does not do"
        )
    rows = MessageRows(records)

    def refuse(at: PhysicalOffset, problem: str) -> str:
        row = int(np.flatnonzero(records.columns.physical_offset == at)[0])
        raise UnreadableBody(f"{_place(records, broker, row)}: {problem}; without columns=kafka, 'body' has its bytes")

    made: KafkaRows | RecordRows = KafkaRows(rows, refuse) if is_kafka else RecordRows(rows, broker)
    arrow = arrow_schema(schema)
    arrays = [
        timestamps(array) if pa.types.is_timestamp(field.type) else array
        for field, array in ((field, made.array(field.name)) for field in arrow)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _place(records: RecordBatch, broker: str, row: int) -> str:
    columns = records.columns
    topic = records.topics[int(columns.topic_index[row])]
    return f"topic {topic}, queue {broker}/{columns.queue_number[row]}, offset {columns.queue_offset[row]}"


def _array(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return timestamps(pa.array(values, pa.int64()))
    return pa.array(list(values), kind)
