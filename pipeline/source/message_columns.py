"""Defines the columns of the table `messages`, and how each is made of the records of a batch.

Names and meaning are those of `quarry decode --json`, which are those of RocketMQ's own tools.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
)

from quarry_mq.pipeline.source.arrow import binaries, hex_texts, picked, property_maps, texts
from quarry_mq.protocol.messages.property_names import KEYS, TAGS, UNIQUE_KEY
from quarry_mq.protocol.messages.system_flag import BORN_HOST_V6, STORE_HOST_V6
from quarry_mq.store.message import Host, host_text
from quarry_mq.store.record.layout import (
    IPV4_LENGTH,
    IPV6_EXTRA,
    IPV6_LENGTH,
    PHYSICAL_OFFSET,
    PHYSICAL_OFFSET_POSITION,
)
from quarry_mq.store.scan import RecordBatch, RecordColumns
from quarry_mq.store.scan.columns import Flags, Integers, distinct, pieces
from quarry_mq.store.scan.tags import StoredProperties, stored_properties

_PORT_LENGTH: Final = 4
_BORN_HOST: Final = 48
_STORE_TIMESTAMP_LENGTH: Final = 8
"""Positions of fields in a record: see `store.record.layout`."""


class MessageRows:
    """A batch's records, or some of them. A column is made of them when it is requested."""

    def __init__(self, batch: RecordBatch, columns: RecordColumns | None = None) -> None:
        self.batch = batch
        self.columns = batch.columns if columns is None else columns

    def __len__(self) -> int:
        return len(self.columns)

    def select(self, rows: pa.BooleanArray) -> MessageRows:
        """Return the marked rows."""
        return MessageRows(self.batch, self.columns.select(rows.to_numpy(zero_copy_only=False)))

    def array(self, name: str) -> pa.Array:
        """Return the column of this name in the type that Spark expects; nulls if messages have no such column."""
        column = COLUMNS.get(name)
        return pa.nulls(len(self), pa.string()) if column is None else column.make(self)

    @cached_property
    def properties(self) -> StoredProperties:
        return stored_properties(self.batch, self.columns)

    def property_texts(self, name: str) -> pa.Array:
        """Return the values of one property, null where a record lacks it."""
        return texts(self.properties.octets.data, *self._property_places(name))

    def property_octets(self, name: str) -> pa.Array:
        """Return the values of one property as they are stored, null where a record lacks it."""
        return binaries(self.properties.octets.data, *self._property_places(name))

    def _property_places(self, name: str) -> tuple[Integers, Integers, Flags]:
        """Return where the values of one property begin, their lengths, and which records have it."""
        found = self.properties.values(name.encode())
        starts, lengths = np.zeros(len(self), np.int64), np.zeros(len(self), np.int64)
        present = np.zeros(len(self), np.bool_)
        starts[found.rows], lengths[found.rows] = found.starts, found.ends - found.starts
        present[found.rows] = True
        return starts, lengths, present

    def hosts(self, starts: Integers, is_v6: Integers) -> pa.Array:
        """Return the hosts that begin at these positions."""
        lengths = np.where(is_v6 != 0, IPV6_LENGTH, IPV4_LENGTH) + _PORT_LENGTH
        found, index = distinct(np.frombuffer(self.batch.segment, np.uint8), starts, lengths)
        return picked([_host(octets) for octets in found], index)

    @property
    def born_host_starts(self) -> Integers:
        return self.columns.position + _BORN_HOST

    @property
    def store_host_starts(self) -> Integers:
        born_extra = np.where(self.columns.system_flag & BORN_HOST_V6, IPV6_EXTRA, 0)
        return self.born_host_starts + IPV4_LENGTH + _PORT_LENGTH + born_extra + _STORE_TIMESTAMP_LENGTH

    def offset_ids(self) -> pa.Array:
        """Return store host and physical offset in hex, as `store.record.offset_message_id` has them."""
        starts, is_v6 = self.store_host_starts, self.columns.system_flag & STORE_HOST_V6
        if not is_v6.any():
            return self._offset_ids(starts, self.columns.position, IPV4_LENGTH)
        ids = np.empty(len(self), object)
        for rows, address_length in ((is_v6 == 0, IPV4_LENGTH), (is_v6 != 0, IPV6_LENGTH)):
            ids[rows] = self._offset_ids(starts[rows], self.columns.position[rows], address_length).to_pylist()
        return pa.array(ids, pa.string())

    def _offset_ids(self, host_starts: Integers, positions: Integers, address_length: int) -> pa.Array:
        octets = np.frombuffer(self.batch.segment, np.uint8)
        host_length = address_length + _PORT_LENGTH
        hosts = pieces(octets, host_starts, host_length).view(np.uint8).reshape(-1, host_length)
        offsets = pieces(octets, positions + PHYSICAL_OFFSET_POSITION, PHYSICAL_OFFSET.size).view(np.uint8)
        return hex_texts(np.hstack([hosts, offsets.reshape(-1, PHYSICAL_OFFSET.size)]))

    def magic_texts(self) -> pa.Array:
        found, index = np.unique(self.columns.magic, return_inverse=True)
        return picked([f"{magic:08x}" for magic in found.tolist()], index)


def _host(octets: bytes) -> str:
    return host_text(Host(octets[:-_PORT_LENGTH], int.from_bytes(octets[-_PORT_LENGTH:], "big")))


class Column(NamedTuple):
    """The type of a column in Spark, and the function that makes its values."""

    type: DataType
    make: Callable[[MessageRows], pa.Array]


def _integers(name: str) -> Column:
    return Column(IntegerType(), lambda rows: pa.array(getattr(rows.columns, name).astype(np.int32)))


def _longs(name: str) -> Column:
    return Column(LongType(), lambda rows: pa.array(getattr(rows.columns, name)))


def _text(make: Callable[[MessageRows], pa.Array]) -> Column:
    return Column(StringType(), make)


COLUMNS: Final[dict[str, Column]] = {
    "topic": _text(lambda rows: picked(rows.batch.topics, rows.columns.topic_index)),
    "queueId": _integers("queue_number"),
    "queueOffset": _longs("queue_offset"),
    "phyOffset": _longs("physical_offset"),
    "storeSize": _integers("size"),
    "storeTimestamp": _longs("store_timestamp_ms"),
    "bornTimestamp": _longs("born_timestamp_ms"),
    "bornHost": _text(lambda rows: rows.hosts(rows.born_host_starts, rows.columns.system_flag & BORN_HOST_V6)),
    "storeHost": _text(lambda rows: rows.hosts(rows.store_host_starts, rows.columns.system_flag & STORE_HOST_V6)),
    "msgId": _text(MessageRows.offset_ids),
    "uniqKey": _text(lambda rows: rows.property_texts(UNIQUE_KEY)),
    "tags": _text(lambda rows: rows.property_texts(TAGS)),
    "keys": _text(lambda rows: rows.property_texts(KEYS)),
    "flag": _integers("flag"),
    "sysFlag": _integers("system_flag"),
    "reconsumeTimes": _integers("reconsume_times"),
    "preparedTransactionOffset": _longs("prepared_transaction_offset"),
    "magic": _text(MessageRows.magic_texts),
    "bodyCRC": _integers("body_crc"),
    "bodyLength": _integers("body_length"),
    "properties": Column(
        MapType(StringType(), StringType()),
        lambda rows: property_maps(
            rows.batch.segment, rows.columns.properties_position, rows.columns.properties_length
        ),
    ),
    "body": Column(
        BinaryType(),
        lambda rows: binaries(rows.batch.segment, rows.columns.body_position, rows.columns.body_length),
    ),
}
