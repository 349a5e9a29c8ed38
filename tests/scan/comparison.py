"""The scan of a segment beside what the exact decoder says of the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import Blank, Decoded, StoredMessage, decode_record
from quarry_mq.store.record.codec import has_crc_property
from quarry_mq.store.scan import RecordBatch, RecordColumns, scan_segment

Row = dict[str, Any]
STORED_FIELDS = (
    "size",
    "magic",
    "body_crc",
    "queue_number",
    "flag",
    "queue_offset",
    "physical_offset",
    "system_flag",
    "born_timestamp_ms",
    "store_timestamp_ms",
    "reconsume_times",
    "prepared_transaction_offset",
)


def decoded_one_by_one(
    segment: memoryview, base: int, position: int, *, check_crc: bool = True, require_crc_property: bool = False
) -> Iterator[Decoded]:
    """What the exact decoder finds from there; nothing behind what is no record."""
    while position < len(segment):
        found = decode_record(
            segment,
            position,
            PhysicalOffset(base + position),
            check_crc=check_crc,
            require_crc_property=require_crc_property,
        )
        yield found
        if not isinstance(found, StoredMessage):
            return
        position += found.size


def row_of(found: StoredMessage) -> Row:
    """The columns' values for a record, and the bytes that the positions must lead to."""
    row: Row = {name: getattr(found, name) for name in STORED_FIELDS}
    return row | {
        "body": bytes(found.body),
        "topic": found.topic,
        "topic_bytes": found.topic.encode(),
        "properties": found.raw_properties,
        "has_crc_property": has_crc_property(found.raw_properties),
    }


def rows_of(batch: RecordBatch, *, are_apart: bool = False) -> list[Row]:
    columns = batch.columns
    for name in RecordColumns.__slots__:
        column = getattr(columns, name)
        assert column.shape == (len(batch),), name
        assert column.dtype == (bool if name == "has_crc_property" else "int64"), name
    assert are_apart or (columns.position + batch.base == columns.physical_offset).all()
    rows = []
    for row in range(len(batch)):
        each: Row = {name: int(getattr(columns, name)[row]) for name in STORED_FIELDS}
        for name in ("body", "topic", "properties"):
            start = int(getattr(columns, f"{name}_position")[row])
            length = int(getattr(columns, f"{name}_length")[row])
            each["topic_bytes" if name == "topic" else name] = bytes(batch.segment[start : start + length])
        each["topic"] = batch.topics[columns.topic_index[row]]
        each["has_crc_property"] = bool(columns.has_crc_property[row])
        rows.append(each)
    return rows


def assert_same(
    data: bytes,
    base: int = 0,
    position: int = 0,
    *,
    window_bytes: int = 1 << 22,
    check_crc: bool = True,
    require_crc_property: bool = False,
) -> int:
    """Both find the same records and the same end. Returns the number of records."""
    segment = memoryview(data)
    expected = list(
        decoded_one_by_one(segment, base, position, check_crc=check_crc, require_crc_property=require_crc_property)
    )
    batches = list(
        scan_segment(
            segment,
            PhysicalOffset(base),
            position,
            check_crc=check_crc,
            require_crc_property=require_crc_property,
            window_bytes=window_bytes,
        )
    )
    found = [row for batch in batches for row in rows_of(batch)]
    messages = [each for each in expected if isinstance(each, StoredMessage)]
    assert found == [row_of(each) for each in messages]
    assert all(batch.ended_by is None for batch in batches[:-1])
    end = base + position + sum(each.size for each in messages)
    last = expected[-1] if expected else None
    if isinstance(last, StoredMessage):
        last = None
    assert (batches[-1].ended_by if batches else None) == last
    if isinstance(last, Blank):
        end += last.size
    assert batches[-1].end == end if batches else position >= len(data)
    for before, after in pairwise(batches):
        assert len(after) == 0 or after.columns.physical_offset[0] == before.end
    return len(messages)
