"""The package encodes and decodes records of the commit log, without I/O (docs/formats/commit-log.md)."""

from quarry_mq.store.record.codec import (
    decode_record,
    encode_blank,
    encode_record,
    parts_to_decode,
    reaches_over_end,
    record_size,
    size_with_body,
    with_reconsume_times,
)
from quarry_mq.store.record.message_id import (
    client_message_id,
    offset_message_id,
    parse_offset_message_id,
)
from quarry_mq.store.record.properties import (
    Blank,
    Corrupt,
    Decoded,
    EndOfData,
    StoredMessage,
    Torn,
    decode_properties,
    encode_properties,
    java_hash,
    tags_code,
)
from quarry_mq.store.record.replacement import REPLACED_TOPIC, encode_replacement, is_replaced

__all__ = [
    "REPLACED_TOPIC",
    "Blank",
    "Corrupt",
    "Decoded",
    "EndOfData",
    "StoredMessage",
    "Torn",
    "client_message_id",
    "decode_properties",
    "decode_record",
    "encode_blank",
    "encode_properties",
    "encode_record",
    "encode_replacement",
    "is_replaced",
    "java_hash",
    "offset_message_id",
    "parse_offset_message_id",
    "parts_to_decode",
    "reaches_over_end",
    "record_size",
    "size_with_body",
    "tags_code",
    "with_reconsume_times",
]
