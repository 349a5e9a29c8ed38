"""The module holds what a scan finds as columns: one array per field, one row per record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quarry_mq.protocol.messages.system_flag import HOSTS_V6
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import Blank, Corrupt, EndOfData, StoredMessage, Torn, decode_record
from quarry_mq.store.record.codec import has_crc_property
from quarry_mq.store.record.layout import HEADS, HOST_BITS_SHIFT, PROPERTIES_LENGTH, TOPIC_LENGTHS

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

Ending = Blank | EndOfData | Torn | Corrupt
"""The outcomes that a scan can meet instead of a record."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordColumns:
    """The columns hold the fields of n records in log order, named as in docs/formats/commit-log.md.

    Every array has the shape (n,) and the dtype int64, whatever width the field has on disk, except `has_crc_property`
    (bool). Positions count from the first byte of the segment, lengths are in bytes, times in ms. Magic and body CRC
    are as stored, unsigned.
    """

    position: Integers
    size: Integers
    magic: Integers
    body_crc: Integers
    queue_number: Integers
    flag: Integers
    queue_offset: Integers
    physical_offset: Integers
    system_flag: Integers
    born_timestamp_ms: Integers
    store_timestamp_ms: Integers
    reconsume_times: Integers
    prepared_transaction_offset: Integers
    body_position: Integers
    body_length: Integers
    topic_position: Integers
    topic_length: Integers
    properties_position: Integers
    properties_length: Integers
    topic_index: Integers
    """The index of the record's topic in the batch's `topics`."""
    has_crc_property: Flags

    def __len__(self) -> int:
        return len(self.position)

    def select(self, rows: slice | Integers | Flags) -> RecordColumns:
        """Return the same columns of some of the rows: views for a slice, else copies."""
        return RecordColumns(*(getattr(self, name)[rows] for name in RecordColumns.__slots__))


def single_row(record: StoredMessage, position: int) -> RecordColumns:
    """Return the columns of one record as the exact decoder gave it."""
    head_size = HEADS[(record.system_flag & HOSTS_V6) >> HOST_BITS_SHIFT].size
    body_position = position + head_size
    topic_length = len(record.topic.encode())
    topic_position = body_position + len(record.body) + TOPIC_LENGTHS[record.magic].size
    properties_position = topic_position + topic_length + PROPERTIES_LENGTH.size
    fields = {
        "position": position,
        "body_position": body_position,
        "body_length": len(record.body),
        "topic_position": topic_position,
        "topic_length": topic_length,
        "properties_position": properties_position,
        "properties_length": len(record.raw_properties),
        "topic_index": 0,
    }
    return RecordColumns(
        **{
            name: np.array([fields[name] if name in fields else getattr(record, name)], np.int64)
            for name in RecordColumns.__slots__
            if name != "has_crc_property"
        },
        has_crc_property=np.array([has_crc_property(record.raw_properties)]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class RecordBatch:
    """A batch holds whole records that follow each other in one segment, each of them valid by the exact decoder's
    rules.

    It keeps the segment mapped as long as it lives.
    """

    segment: memoryview
    """The bytes of the segment, all of them, to be read by positions."""
    base: PhysicalOffset
    """The physical offset of the segment's first byte."""
    columns: RecordColumns
    topics: tuple[str, ...]
    """The distinct topics, in no particular order; topics of records after the batch's end may be among them."""
    end: PhysicalOffset
    """The offset where reading continues: after the last record, and after the blank if one ended the batch."""
    ended_by: Ending | None
    """The outcome after the last record; None when nothing but the batch's size ended it."""

    def __len__(self) -> int:
        return len(self.columns)

    def record(self, row: int) -> StoredMessage:
        """Return the record as the exact decoder gives it. CRCs are not checked again."""
        columns = self.columns
        found = decode_record(
            self.segment,
            int(columns.position[row]),
            PhysicalOffset(int(columns.physical_offset[row])),
            check_crc=False,
        )
        assert isinstance(found, StoredMessage), found
        return found

    def properties(self, row: int) -> bytes:
        """Return the stored properties of one record."""
        start = int(self.columns.properties_position[row])
        return bytes(self.segment[start : start + int(self.columns.properties_length[row])])


_COMPARED: Final = 4
"""Distinct texts of one length that are found by comparing all texts with one; the rest goes through a dict."""


def pieces(octets: Bytes, starts: Integers, length: int) -> NDArray[np.void]:
    """Return copies of the `length` bytes at each of the starts: shape (n,), dtype void, to be viewed
    as another type.
    """
    count = max(len(octets) - length + 1, 0)
    # plain bytes: numpy copies structures field by field, which takes twenty times as long
    all_pieces: NDArray[np.void] = np.ndarray(count, f"V{length}", octets, strides=(1,))
    return all_pieces[starts]


def distinct(octets: Bytes, starts: Integers, lengths: Integers) -> tuple[list[bytes], Integers]:
    """Return the distinct ones of n texts of at least one byte, and the index of each text among them: shape (n,)."""
    numbers: dict[bytes, int] = {}
    index = np.zeros(len(starts), np.int64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        texts = pieces(octets, starts[rows], length)
        for _ in range(_COMPARED):
            if not len(rows):
                break
            same = texts == texts[0]
            index[rows[same]] = numbers.setdefault(texts[0].tobytes(), len(numbers))
            rows, texts = rows[~same], texts[~same]
        index[rows] = [numbers.setdefault(text, len(numbers)) for text in texts.tolist()]
    return list(numbers), index
