"""Defines the columns of a stream: the parts of a received message, named as in the table `messages`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, MapType, StringType, StructType

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.times import to_ms


class StreamColumn(NamedTuple):
    """The type of a column in Spark, and the function that takes its value from a received message."""

    type: DataType
    of: Callable[[definition.Message], Any]


def _encoding(message: definition.Message) -> str:
    return definition.Encoding.Name(message.system_properties.body_encoding)


COLUMNS: Final[dict[str, StreamColumn]] = {
    "topic": StreamColumn(StringType(), lambda message: message.topic.name),
    "queueId": StreamColumn(IntegerType(), lambda message: message.system_properties.queue_id),
    "queueOffset": StreamColumn(LongType(), lambda message: message.system_properties.queue_offset),
    "storeTimestamp": StreamColumn(LongType(), lambda message: to_ms(message.system_properties.store_timestamp)),
    "bornTimestamp": StreamColumn(LongType(), lambda message: to_ms(message.system_properties.born_timestamp)),
    "bornHost": StreamColumn(StringType(), lambda message: message.system_properties.born_host),
    "storeHost": StreamColumn(StringType(), lambda message: message.system_properties.store_host),
    "uniqKey": StreamColumn(StringType(), lambda message: message.system_properties.message_id),
    "tags": StreamColumn(StringType(), lambda message: message.system_properties.tag or None),
    "keys": StreamColumn(StringType(), lambda message: " ".join(message.system_properties.keys) or None),
    "messageGroup": StreamColumn(StringType(), lambda message: message.system_properties.message_group or None),
    "properties": StreamColumn(MapType(StringType(), StringType()), lambda message: dict(message.user_properties)),
    "bodyEncoding": StreamColumn(StringType(), _encoding),
    "body": StreamColumn(BinaryType(), lambda message: message.body),
}


def batch_of(messages: Sequence[definition.Message], schema: StructType) -> pa.RecordBatch:
    """Return the messages as rows of the schema, which holds some of the columns."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [
        pa.array([COLUMNS[field.name].of(message) for message in messages], field.type)
        if not pa.types.is_map(field.type)
        else pa.array([list(COLUMNS[field.name].of(message).items()) for message in messages], field.type)
        for field in arrow
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)
