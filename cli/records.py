"""Stored records that answers of a live broker hold: decoding them, and what commands show of them."""

from __future__ import annotations

from typing import TypeAlias

from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import query_pb2 as pb
from quarry_mq.store.message import PhysicalOffset, host_text
from quarry_mq.store.record import StoredMessage, client_message_id, decode_record, offset_message_id

Record: TypeAlias = StoredMessage


def decoded(found: pb.FoundMessage | pb.MessageTrace, address: str) -> Record:
    """Decode the record of an answer. Ends the command if the answer contains no complete record."""
    at = PhysicalOffset(found.physical_offset)
    record = decode_record(memoryview(found.record), 0, at, check_crc=True)
    if not isinstance(record, StoredMessage):
        end(Exit.COULD_NOT_RUN, f"{address}: the answer contains no record of offset {at}")
    return record


def message_of(record: Record, topic: str) -> definition.Message:
    """Return the message as consumers of the topic get it."""
    from quarry_mq.server.wire.messages import fill_message  # not at the top: half a broker comes with it

    message = definition.Message()
    fill_message(message, record, topic=topic, receipt_handle="", delivery_attempt=0)
    return message


def message_id_of(record: Record) -> str:
    return client_message_id(record.properties) or offset_id_of(record)


def offset_id_of(record: Record) -> str:
    return offset_message_id(record.store_host, record.physical_offset)


def born_host_of(record: Record) -> str:
    return host_text(record.born_host)


def store_host_of(record: Record) -> str:
    return host_text(record.store_host)
