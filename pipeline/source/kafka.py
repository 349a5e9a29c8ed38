"""The messages of a store with the columns of Spark's source for Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructType

from quarry_mq.pipeline.kafka_columns import HEADERS, KAFKA_TYPES, LOG_APPEND_TIME, headers_of
from quarry_mq.pipeline.source.message_columns import MessageRows
from quarry_mq.pipeline.source.messages import DAMAGE, MessageReader
from quarry_mq.pipeline.source.options import DamageMode, InvalidOption, ReadOptions
from quarry_mq.pipeline.source.table import Rows, Types, chosen
from quarry_mq.pipeline.source.times import TimeForm
from quarry_mq.protocol.messages.bodies import body_problem, plain_body
from quarry_mq.protocol.messages.property_names import KEYS, TAGS, UNIQUE_KEY
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.scan import RecordBatch

_SAME: Final = {"topic": "topic", "partition": "queueId", "offset": "queueOffset", "timestamp": "storeTimestamp"}
"""Columns of the table `messages` under the names of Kafka."""


def kafka_schema(options: ReadOptions) -> StructType:
    """Return the schema of a message in Kafka's columns. Raises InvalidOption."""
    if options.timestamps is TimeForm.MILLIS:
        raise InvalidOption("option 'timestamps': with columns=kafka the timestamp is a TIMESTAMP, as Kafka's")
    names = [name for name in KAFKA_TYPES if options.include_headers or name != HEADERS]
    if options.mode is DamageMode.QUARANTINE:
        names.append(DAMAGE)
    return chosen(KafkaReader.types, names)


class KafkaReader(MessageReader):
    """Reads the commit log. The value is the uncompressed body."""

    types: ClassVar[Types] = {**KAFKA_TYPES, DAMAGE: StringType()}
    time_column: ClassVar[str] = "timestamp"

    def shown(self, segments: SegmentList, batch: RecordBatch) -> Rows:
        return KafkaRows(MessageRows(batch), lambda at, problem: str(self.refused(segments, at, problem)))


class KafkaRows:
    """Messages whose columns are made as Kafka has them."""

    def __init__(self, rows: MessageRows, unreadable: Callable[[PhysicalOffset, str], str]) -> None:
        self._rows = rows
        self._unreadable = unreadable

    def __len__(self) -> int:
        return len(self._rows)

    def select(self, rows: pa.BooleanArray) -> KafkaRows:
        """Return the marked rows."""
        return KafkaRows(self._rows.select(rows), self._unreadable)

    def array(self, name: str) -> pa.Array:
        """Return the column of this name in the type that Spark expects."""
        if name in _SAME:
            return self._rows.array(_SAME[name])
        match name:
            case "key":
                return self._rows.property_octets(KEYS)
            case "timestampType":
                return pa.array(np.full(len(self), LOG_APPEND_TIME, np.int32))
            case "value":
                return self._values[0]
            case "damage":
                return self._values[1]
        return pa.array(list(self._headers()), to_arrow_type(KAFKA_TYPES[HEADERS]))

    def _headers(self) -> Iterator[list[object]]:
        tags, ids = (self._rows.property_texts(name).to_pylist() for name in (TAGS, UNIQUE_KEY))
        properties = self._rows.array("properties").to_pylist()
        for tag, unique_key, pairs in zip(tags, ids, properties, strict=True):
            yield [*headers_of(tag, unique_key, dict(pairs))]

    @cached_property
    def _values(self) -> tuple[pa.Array, pa.Array]:
        """Return the uncompressed bodies, and for each what is wrong with it."""
        flags = self._rows.columns.system_flag.tolist()
        offsets = self._rows.columns.physical_offset.tolist()
        bodies = self._rows.array("body").to_pylist()
        problems: list[str | None] = [None] * len(flags)
        for row, (flag, body) in enumerate(zip(flags, bodies, strict=True)):
            bodies[row] = plain_body(flag, body)
            if bodies[row] is None:
                problems[row] = self._unreadable(PhysicalOffset(offsets[row]), body_problem(flag, body))
        return pa.array(bodies, pa.binary()), pa.array(problems, pa.string())
