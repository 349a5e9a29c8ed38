"""The module gathers the fields of many records at once, and marks those that need the exact decoder.

It applies the rules of `store.record.codec.decode_record` to arrays. A row that breaks a rule is only marked: the exact
decoder judges it. So a rule may be broader here, never narrower.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from quarry_mq.store.record.codec import topic_text
from quarry_mq.store.record.layout import (
    CRC_PROPERTY_SIZE,
    CRC_PROPERTY_START,
    ENTRY_END,
    HEADS,
    HOST_BITS_SHIFT,
    MAGIC_V1,
    MAGIC_V2,
    PORT_MAXIMUM,
    PROPERTIES_LENGTH,
    QUEUE_OFFSET_MAXIMUM,
    SECTOR_SIZE,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
)
from quarry_mq.store.scan.columns import Bytes, Flags, Integers, RecordColumns, distinct, pieces

_HOLE: Final = bytes(SECTOR_SIZE)
_HOST_BITS: Final = 3


def _head_type(born_address_bytes: int, store_address_bytes: int) -> np.dtype[np.void]:
    """Return the type of everything before the body, field by field as `store.record.layout` lists them."""
    return np.dtype(
        [
            ("size", ">i4"),
            ("magic", ">u4"),
            ("body_crc", ">u4"),
            ("queue_number", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("physical_offset", ">i8"),
            ("system_flag", ">i4"),
            ("born_timestamp_ms", ">i8"),
            ("born_address", f"V{born_address_bytes}"),
            ("born_port", ">i4"),
            ("store_timestamp_ms", ">i8"),
            ("store_address", f"V{store_address_bytes}"),
            ("store_port", ">i4"),
            ("reconsume_times", ">i4"),
            ("prepared_transaction_offset", ">i8"),
            ("body_length", ">i4"),
        ]
    )


_HEAD_TYPES: Final = tuple(_head_type(born, store) for store in (4, 16) for born in (4, 16))
assert [head.itemsize for head in _HEAD_TYPES] == [head.size for head in HEADS], "heads: types and structs disagree"

_BEFORE_HOSTS: Final = (
    "size",
    "magic",
    "body_crc",
    "queue_number",
    "flag",
    "queue_offset",
    "physical_offset",
    "system_flag",
    "born_timestamp_ms",
)
_AFTER_BORN_ADDRESS: Final = (
    "born_port",
    "store_timestamp_ms",
    "store_port",
    "reconsume_times",
    "prepared_transaction_offset",
    "body_length",
)


class Gathered(NamedTuple):
    """The result has the columns of all rows; they mean nothing in doubtful rows. `doubtful` is a bool array of shape
    (n,).
    """

    columns: RecordColumns
    topics: tuple[str, ...]
    doubtful: Flags


def gather(segment: Bytes, base: int, positions: Integers) -> Gathered:
    """Return the fields of the records at `positions` of the segment, which begins at physical offset `base`.

    After each position there must be room for an IPv4 head, and for as many bytes as the stored size says.
    """
    head, body_position, whole = _heads(segment, positions)
    size, body_length = head["size"], head["body_length"]
    end = positions + size
    version_two = head["magic"] == MAGIC_V2
    whole &= version_two | (head["magic"] == MAGIC_V1)
    whole &= body_length >= 0
    whole &= head["physical_offset"] == positions + base
    for port in (head["born_port"], head["store_port"]):
        whole &= (port >= 0) & (port <= PORT_MAXIMUM)
    whole &= (head["queue_number"] >= 0) & (head["queue_offset"] >= 0) & (head["store_timestamp_ms"] >= 0)
    whole &= head["queue_offset"] <= QUEUE_OFFSET_MAXIMUM

    at = body_position + body_length
    width = np.where(version_two, TOPIC_LENGTH_V2.size, TOPIC_LENGTH_V1.size)
    topic_position = at + width
    # from here on, a row that fails is read at its own beginning: any existing position will do
    whole &= topic_position + PROPERTIES_LENGTH.size <= end
    at = np.where(whole, at, positions)
    topic_length = np.where(version_two, _short(segment, at), segment[at].view(np.int8).astype(np.int64))
    topic_end = topic_position + topic_length
    properties_position = topic_end + PROPERTIES_LENGTH.size
    whole &= (topic_length > 0) & (properties_position <= end)
    properties_length = _short(segment, np.where(whole, topic_end, positions))
    whole &= properties_position + properties_length == end
    whole &= (properties_length == 0) | (segment[end - 1] != 0)
    _doubt_holes(segment, whole, properties_position, properties_length)
    topics, topic_index = _topics(segment, whole, topic_position, topic_length)
    columns = RecordColumns(
        position=positions,
        size=size,
        magic=head["magic"],
        body_crc=head["body_crc"],
        queue_number=head["queue_number"],
        flag=head["flag"],
        queue_offset=head["queue_offset"],
        physical_offset=head["physical_offset"],
        system_flag=head["system_flag"],
        born_timestamp_ms=head["born_timestamp_ms"],
        store_timestamp_ms=head["store_timestamp_ms"],
        reconsume_times=head["reconsume_times"],
        prepared_transaction_offset=head["prepared_transaction_offset"],
        body_position=body_position,
        body_length=body_length,
        topic_position=topic_position,
        topic_length=topic_length,
        properties_position=properties_position,
        properties_length=properties_length,
        topic_index=topic_index,
        has_crc_property=_has_crc_property(segment, whole, end, properties_length),
    )
    return Gathered(columns, topics, ~whole)


def _heads(segment: Bytes, positions: Integers) -> tuple[dict[str, Integers], Integers, Flags]:
    """Return the head's fields by name, where the bodies begin, and which heads lie completely in the segment."""
    heads = pieces(segment, positions, HEADS[0].size).view(_HEAD_TYPES[0])
    fields = {name: heads[name].astype(np.int64) for name in (*_BEFORE_HOSTS, *_AFTER_BORN_ADDRESS)}
    body_position = positions + HEADS[0].size
    whole = np.ones(len(positions), np.bool_)
    host_bits = fields["system_flag"] >> HOST_BITS_SHIFT & _HOST_BITS
    if host_bits.any():
        for bits in range(1, _HOST_BITS + 1):
            body_position[host_bits == bits] = positions[host_bits == bits] + HEADS[bits].size
        whole = body_position <= len(segment)
        for bits in range(1, _HOST_BITS + 1):
            rows = np.flatnonzero(whole & (host_bits == bits))
            if len(rows):
                heads = pieces(segment, positions[rows], HEADS[bits].size).view(_HEAD_TYPES[bits])
                for name in _AFTER_BORN_ADDRESS:
                    fields[name][rows] = heads[name]
    return fields, body_position, whole


def _short(segment: Bytes, at: Integers) -> Integers:
    """Return the i16 at each of the positions."""
    return segment[at].view(np.int8).astype(np.int64) << 8 | segment[at + 1]


def _doubt_holes(segment: Bytes, whole: Flags, start: Integers, length: Integers) -> None:
    """Mark rows as doubtful whose properties hold a sector of zeros."""
    for row in np.flatnonzero(whole & (length >= SECTOR_SIZE)).tolist():
        if _HOLE in segment[start[row] : start[row] + length[row]].tobytes():
            whole[row] = False


def _topics(segment: Bytes, whole: Flags, start: Integers, length: Integers) -> tuple[tuple[str, ...], Integers]:
    """Return the distinct topics and the index of each row's topic. Rows whose topic is no text are
    marked as doubtful.
    """
    rows = np.flatnonzero(whole)
    index = np.zeros(len(whole), np.int64)
    names, index[rows] = distinct(segment, start[rows], length[rows])
    topics = [topic_text(name) for name in names]
    if None in topics:
        whole[rows] &= np.array([topic is not None for topic in topics])[index[rows]]
    return tuple(topic or "" for topic in topics), index


def _has_crc_property(segment: Bytes, whole: Flags, end: Integers, properties_length: Integers) -> Flags:
    """Return whether the last property of each row is the CRC, as a separate property."""
    possible = whole & (properties_length >= CRC_PROPERTY_SIZE)
    start = np.where(possible, end - CRC_PROPERTY_SIZE, 0)
    named = pieces(segment, start, len(CRC_PROPERTY_START)) == np.void(CRC_PROPERTY_START)
    alone = (properties_length == CRC_PROPERTY_SIZE) | (segment[start - 1] == ENTRY_END)
    present: Flags = possible & named & alone
    return present
