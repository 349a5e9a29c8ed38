"""Defines the columns of `columns = "kafka"`: names, types and meaning are those of Spark's source for Kafka.

A message's keys are the key, its queue is the partition, and its store time is the timestamp, as for a topic of Kafka
with `LogAppendTime`: offsets and store times come from one clock and grow together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quarry_mq.protocol.messages.property_names import (
    RESERVED_PREFIX,
    RESERVED_PROPERTIES,
    TAGS,
    UNIQUE_KEY,
)

KAFKA: Final = "kafka"
"""Value of the option `columns` that selects these columns."""

LOG_APPEND_TIME: Final = 1
"""Kafka's number for timestamps that the broker sets: the value of `timestampType`."""

HEADERS: Final = "headers"
KAFKA_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
"""Types of the columns in their order. Spark's source for Kafka has `headers` only with `includeHeaders`."""


class Header(TypedDict):
    """A header of a message."""

    key: str
    value: bytes


def headers_of(tag: str | None, unique_key: str | None, properties: Mapping[str, str]) -> list[Header]:
    """Return the headers of a message: its tag, its message id, then the properties that the sender has set."""
    of_message = {TAGS: tag, UNIQUE_KEY: unique_key}
    named = {name: text for name, text in of_message.items() if text is not None}
    of_user = {name: text for name, text in properties.items() if is_of_user(name)}
    return [Header(key=name, value=text.encode()) for name, text in (named | of_user).items()]


def is_of_user(name: str) -> bool:
    """Return whether a property was set by the sender, and not by a client library or a broker."""
    return name not in RESERVED_PROPERTIES and not name.startswith(RESERVED_PREFIX)


def of_senders(maps: pa.MapArray, *, without: Sequence[str] = ()) -> pa.MapArray:
    """Return maps of properties with those alone for which `is_of_user` is true, and that are not left out by name."""
    names = maps.keys
    left_out = pa.array(sorted({*RESERVED_PROPERTIES, *without}), pa.string())
    kept = pc.invert(pc.or_(pc.is_in(names, value_set=left_out), pc.starts_with(names, RESERVED_PREFIX)))
    counts = np.concatenate([[0], np.cumsum(kept.to_numpy(zero_copy_only=False))]).astype(np.int32)
    offsets = pa.array(counts[maps.offsets.to_numpy()])
    return pa.MapArray.from_arrays(offsets, names.filter(kept), maps.items.filter(kept))
