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

from quarry_mq.pipeline.kafka_columns import HEADERS, KAFKA_TYPES
from quarry_mq.pipeline.source.options import InvalidOption
from quarry_mq.pipeline.stream.options import UnusableRow
from quarry_mq.protocol.messages.property_names import TAGS, UNIQUE_KEY
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
    "value": (StringType, BinaryType),
    "key": (StringType, BinaryType),
    HEADERS: (ArrayType,),
}
"""Columns of the rows and the types that each may have."""
_OF_KAFKA: Final = {"value": "body", "key": "keys", HEADERS: "properties"}
"""Columns of Spark's sink for Kafka, with ours that say the same."""
_NAMES: Final[dict[type[DataType], str]] = {
    StringType: "string",
    BinaryType: "binary",
    ArrayType: "array<string>",
    MapType: "map<string,string>",
    TimestampType: "timestamp",
    LongType: "bigint (ms since 1970)",
}
_HEADERS: Final = KAFKA_TYPES[HEADERS].simpleString()
_ENCODINGS: Final = {"IDENTITY": definition.IDENTITY, "GZIP": definition.GZIP}


def check_columns(schema: StructType, topic: str | None) -> None:
    """Check the columns of the rows.

    Raises InvalidOption with the column that is missing, unknown, or of a type that no message has.
    """
    for field in schema:
        kinds = TAKEN.get(field.name)
        if kinds is None:
            raise InvalidOption(f"column {field.name!r}: a message has no such thing; there are {', '.join(TAKEN)}")
        found = field.dataType.simpleString()
        if field.name == HEADERS:
            is_right, wanted = found == _HEADERS, _HEADERS
        else:
            is_right, wanted = _is_one_of(field.dataType, kinds), " or ".join(_NAMES[kind] for kind in kinds)
        if not is_right:
            raise InvalidOption(f"column {field.name!r}: it is {found}, not {wanted}")
    for other, ours in _OF_KAFKA.items():
        if {other, ours} <= set(schema.fieldNames()):
            raise InvalidOption(f"column {other!r}: there is {ours!r}, too; they are the same")
    if not {"body", "value"} & set(schema.fieldNames()):
        raise InvalidOption("column 'body': it is missing")
    if topic is None and "topic" not in schema.fieldNames():
        raise InvalidOption("column 'topic': it is missing, and there is no option 'topic'")
    if topic is not None and "topic" in schema.fieldNames():
        raise InvalidOption("column 'topic': the option 'topic' says where all messages go; leave out one of them")


def _is_one_of(kind: DataType, kinds: tuple[type[DataType], ...]) -> bool:
    if not isinstance(kind, kinds):
        return False
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
            _fill(message, _with_our_columns(row), topic)
        except (ValueError, TypeError) as error:
            raise UnusableRow(f"row {number} of partition {partition}: {error}") from error
        system = message.system_properties
        system.message_id = row.get("messageId") or made_id(message, f"{write}/{partition}/{number}")
        system.born_host = host
        fill_ms(system.born_timestamp, now_ms)
        yield message


def _with_our_columns(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with our columns for those of Kafka. Of its headers, the tag stays a tag, and the id is left out."""
    if not _OF_KAFKA.keys() & row.keys():
        return row
    if "value" in row and row["value"] is None:
        raise ValueError("column 'value': null")
    ours = {_OF_KAFKA.get(name, name): value for name, value in row.items()}
    if isinstance(row.get("key"), bytes):
        ours["keys"] = row["key"].decode()
    if HEADERS in row:
        headers = {each["key"]: each["value"] for each in row[HEADERS] or () if each["key"] != UNIQUE_KEY}
        tag = headers.pop(TAGS, None)
        if tag is not None:
            ours.setdefault("tag", tag.decode())
        ours["properties"] = [(name, value if value is None else value.decode()) for name, value in headers.items()]
    return ours


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
