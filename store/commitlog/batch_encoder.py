"""The module turns a batch of encoded messages into records, dispatch requests and results."""

from __future__ import annotations

from typing import Final

from quarry_mq.store.message import Appended, DispatchRequest, EncodedBatch, EncodedMessage, Message, UnknownQueues
from quarry_mq.store.native import EncodeBatch, Native
from quarry_mq.store.offsets import PhysicalOffset, QueueOffset
from quarry_mq.store.record import encode_record
from quarry_mq.store.record.properties import EncodedProperties

_make: Final = tuple.__new__


def encode_batch(
    messages: list[EncodedMessage],
    next_offsets: dict[tuple[str, int], QueueOffset],
    physical_offset: PhysicalOffset,
    stored_ms: int,
    crc_property: bool,  # noqa: FBT001 - as the native part has it
) -> EncodedBatch | UnknownQueues:
    """Assign offsets to the messages and encode their records, the first of which is to lie at `physical_offset`.

    If `next_offsets` lacks some of the queues, only those queues are returned. Raises Invalid for what no record can
    hold.
    """
    queues = ((message.topic, message.queue_number) for message in messages)
    if unknown := [queue for queue in queues if queue not in next_offsets]:
        return unknown
    records: list[bytes] = []
    requests: list[DispatchRequest] = []
    appended: list[Appended] = []
    assigned: dict[tuple[str, int], QueueOffset] = {}
    at = physical_offset
    for topic, number, body, raw_properties, born_ms, born_host, store_host, flag, code in messages:
        queue = topic, number
        offset = assigned[queue] if queue in assigned else next_offsets[queue]
        assigned[queue] = QueueOffset(offset + 1)
        message = Message(topic, number, body, {}, born_ms, born_host, store_host, system_flag=flag)
        record = encode_record(message, offset, at, stored_ms, raw_properties, crc_property=crc_property)
        size = len(record)
        records.append(record)
        properties = EncodedProperties(raw_properties)
        requests.append(
            _make(DispatchRequest, (topic, number, offset, at, size, code, stored_ms, flag, properties, ()))
        )
        appended.append(_make(Appended, (offset, at, size, stored_ms)))
        at = PhysicalOffset(at + size)
    return b"".join(records), requests, appended, assigned


def native_batch_encoder(native: Native) -> EncodeBatch:
    """Return the `encode_batch` of the native part."""
    return native.BatchEncoder(DispatchRequest, Appended, EncodedProperties).make
