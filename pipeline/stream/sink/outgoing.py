"""Makes messages of rows: it defines the columns that a row may have, and what each becomes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from quarry_mq.pipeline.source.options import InvalidOption
from quarry_mq.pipeline.stream.options import UnusableRow
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.times import fill_ms

TAKEN: Final[dict[str, tuple[type[DataType], ...]]] = {
    "topic": (StringType,),
    "body": (StringType, BinaryType),
    "bodyEncoding": (StringType,),
    "tag": (StringType,),
    "keys": (StringType, ArrayType),
    "properties": (MapType,),
    "messageGroup": (StringType,),
    "deliveryTimestamp": (TimestampType, LongType),
    "messageId": (StringType,),
}
"""Columns of the rows and the types that each may have."""
_NAMES: Final[dict[type[DataType], str]] = {
    StringType: "string",
    BinaryType: "binary",
    ArrayType: "array<string>",
    MapType: "map<string,string>",
    TimestampType: "timestamp",
    LongType: "bigint (ms since 1970)",
}
_ENCODINGS: Final = {"IDENTITY": definition.IDENTITY, "GZIP": definition.GZIP}


def check_columns(schema: StructType, topic: str | None) -> None:
    """Check the columns of the rows.

    Raises InvalidOption with the column that is missing, unknown, or of a type that no message has.
    """
    for field in schema:
        kinds = TAKEN.get(field.name)
        if kinds is None:
            raise InvalidOption(f"column {field.name!r}: a message has no such thing; there are {', '.join(TAKEN)}")
        if not isinstance(field.dataType, kinds) or not _holds_texts(field.dataType):
            wanted = " or ".join(_NAMES[kind] for kind in kinds)
            raise InvalidOption(f"column {field.name!r}: it is {field.dataType.simpleString()}, not {wanted}")
    if "body" not in schema.fieldNames():
        raise InvalidOption("column 'body': it is missing")
    if topic is None and "topic" not in schema.fieldNames():
        raise InvalidOption("column 'topic': it is missing, and there is no option 'topic'")
    if topic is not None and "topic" in schema.fieldNames():
        raise InvalidOption("column 'topic': the option 'topic' says where all messages go; leave out one of them")


def _holds_texts(kind: DataType) -> bool:
    match kind:
        case ArrayType():
            return isinstance(kind.elementType, StringType)
        case MapType():
            return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    return True


def made_id(message: definition.Message, place: str) -> str:
    """Make the id of a message that has none: the same id whenever the same row comes to the same position.

    The content is part of it: another row at the same position must not pass for a repetition. The id has the form of
    the official clients' ids, 17 bytes in hex of which the first is the version.
    """
    digest = blake2b(place.encode(), digest_size=16)
    digest.update(message.SerializeToString(deterministic=True))
    return "01" + digest.hexdigest().upper()


def messages_of(
    batch: pa.RecordBatch, *, topic: str | None, write: str, partition: int, first_row: int, now_ms: int
) -> Iterator[definition.Message]:
    """Yield the rows of a batch as messages. Raises UnusableRow with the column and the row."""
    host = socket.gethostname()
    for number, row in enumerate(batch.to_pylist(), first_row):
        message = definition.Message()
        try:
            _fill(message, row, topic)
        except (ValueError, TypeError) as error:
            raise UnusableRow(f"row {number} of partition {partition}: {error}") from error
        system = message.system_properties
        system.message_id = row.get("messageId") or made_id(message, f"{write}/{partition}/{number}")
        system.born_host = host
        fill_ms(system.born_timestamp, now_ms)
        yield message


def _fill(message: definition.Message, row: dict[str, Any], topic: str | None) -> None:
    system = message.system_properties
    name, body = topic or row.get("topic"), row["body"]
    if not name:
        raise ValueError("column 'topic': null")
    if body is None:
        raise ValueError("column 'body': null")
    message.topic.name = name
    message.body = body.encode() if isinstance(body, str) else body
    system.message_type = definition.NORMAL
    encoding = row.get("bodyEncoding") or "IDENTITY"
    if encoding not in _ENCODINGS:
        raise ValueError(f"column 'bodyEncoding': {encoding!r} is none of {', '.join(_ENCODINGS)}")
    system.body_encoding = _ENCODINGS[encoding]
    if row.get("tag"):
        system.tag = row["tag"]
    keys = row.get("keys") or ()
    each = [key for key in keys.split(" ") if key] if isinstance(keys, str) else [_text("keys", key) for key in keys]
    system.keys.extend(each)
    for key, value in row.get("properties") or ():
        message.user_properties[key] = _text("properties", value)
    if row.get("messageGroup"):
        system.message_group = row["messageGroup"]
        system.message_type = definition.FIFO
    at = row.get("deliveryTimestamp")
    if at is not None:
        fill_ms(system.delivery_timestamp, _ms(at))
        system.message_type = definition.DELAY


def _text(column: str, value: str | None) -> str:
    if value is None:
        raise ValueError(f"column {column!r}: it holds null")
    return value


def _ms(at: datetime | int) -> int:
    ms = at if isinstance(at, int) else round(at.timestamp() * 1000)
    if ms < 0:
        raise ValueError(f"column 'deliveryTimestamp': {ms} ms lies before 1970")
    return ms
