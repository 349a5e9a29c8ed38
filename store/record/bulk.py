"""Records of messages whose properties are encoded already, many at once."""

from __future__ import annotations

from collections.abc import Sequence

from store.message import EncodedMessage, Message
from store.offsets import PhysicalOffset, QueueOffset
from store.record.codec import encode_record


def encode_records(
    messages: list[EncodedMessage],
    queue_offsets: Sequence[QueueOffset],
    physical_offset: PhysicalOffset,
    stored_ms: int,
    crc_property: bool,  # noqa: FBT001
) -> tuple[bytes, list[int]]:
    """The records behind each other, the first at the physical offset, and the size of each. Raises Invalid."""
    records: list[bytes] = []
    at = physical_offset
    for each, queue_offset in zip(messages, queue_offsets, strict=True):
        message = Message(
            each.topic,
            each.queue_number,
            each.body,
            {},
            each.born_timestamp_ms,
            each.born_host,
            each.store_host,
            system_flag=each.system_flag,
        )
        record = encode_record(message, queue_offset, at, stored_ms, each.raw_properties, crc_property=crc_property)
        records.append(record)
        at = PhysicalOffset(at + len(record))
    return b"".join(records), [len(record) for record in records]
