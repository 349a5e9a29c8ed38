"""The module defines the byte layout of the commit log: records and blanks (docs/formats/commit-log.md).

All integers are big-endian. The fields of a record, with h = 8 bytes per IPv4 host and 20 per IPv6 host, n body bytes,
t topic bytes and p property bytes; offsets are for two IPv4 hosts:

| field                       | offset | bytes  | type                                  |
|-----------------------------|--------|--------|---------------------------------------|
| size                        | 0      | 4      | i32, of the whole record              |
| magic                       | 4      | 4      | u32, V1 or V2                         |
| body CRC                    | 8      | 4      | u32, CRC-32 of the body & 0x7FFFFFFF  |
| queue number                | 12     | 4      | i32                                   |
| flag                        | 16     | 4      | i32                                   |
| queue offset                | 20     | 8      | i64                                   |
| physical offset             | 28     | 8      | i64                                   |
| system flag                 | 36     | 4      | i32                                   |
| born timestamp              | 40     | 8      | i64, ms                               |
| born host                   | 48     | h      | address bytes, port i32               |
| store timestamp             | 56     | 8      | i64, ms                               |
| store host                  | 64     | h      | address bytes, port i32               |
| reconsume times             | 72     | 4      | i32                                   |
| prepared transaction offset | 76     | 8      | i64                                   |
| body length                 | 84     | 4      | i32                                   |
| body                        | 88     | n      |                                       |
| topic length                | 88 + n | 1 or 2 | i8 in V1, i16 in V2                   |
| topic                       |        | t      | UTF-8                                 |
| properties length           |        | 2      | i16                                   |
| properties                  |        | p      | `store.record.properties`             |

A blank is the filler that closes a segment: size i32 (all bytes left in the segment), magic u32.
"""

from __future__ import annotations

from struct import Struct, calcsize
from typing import Final

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
"""The magic codes are on disk: never change them. Zero stays unused, as a preallocated segment holds zeros."""

_UP_TO_BORN_HOST: Final = ">iIIiiqqiq"
_HOST_V4: Final = "4si"
_HOST_V6: Final = "16si"
_STORE_TIMESTAMP: Final = "q"
_AFTER_HOSTS: Final = "iqi"

RECONSUME_TIMES: Final = Struct(">i")
AFTER_HOSTS_SIZE: Final = calcsize(">" + _AFTER_HOSTS)
"""Bytes from the reconsume times to the body."""

HEADS: Final = tuple(
    Struct(_UP_TO_BORN_HOST + born + _STORE_TIMESTAMP + store + _AFTER_HOSTS)
    for store in (_HOST_V4, _HOST_V6)
    for born in (_HOST_V4, _HOST_V6)
)
"""Structs of everything before the body, by `system_flag >> HOST_BITS_SHIFT & 3`."""

HEAD_V4: Final = HEADS[0]
SIZE: Final = Struct(">i")
PHYSICAL_OFFSET: Final = Struct(">q")
PHYSICAL_OFFSET_POSITION: Final = 28
SIZE_AND_MAGIC: Final = Struct(">iI")
TOPIC_LENGTH_V1: Final = Struct(">b")
TOPIC_LENGTH_V2: Final = Struct(">h")
TOPIC_LENGTHS: Final = {MAGIC_V1: TOPIC_LENGTH_V1, MAGIC_V2: TOPIC_LENGTH_V2}
"""The topic's length field by magic code; its keys are the magic codes of records."""
PROPERTIES_LENGTH: Final = Struct(">h")

HOST_BITS_SHIFT: Final = 4
IPV4_LENGTH: Final = 4
IPV6_LENGTH: Final = 16
IPV6_EXTRA: Final = IPV6_LENGTH - IPV4_LENGTH

NAME_END: Final = 0x01
"""The byte that ends the name of a property."""
ENTRY_END: Final = 0x02
"""The byte that ends a property; the last property may lack it."""

HEAD_SIZE: Final = 88
HEAD_BYTES: Final = 256
"""Enough bytes for the head of any record, with hosts of any kind."""
BESIDE_BODY_MAX: Final = 2 * (2 + 32_767)
"""Bytes of a record that are neither head nor body, at most: topic and properties, each with its length."""
BLANK_SIZE: Final = 8
RECORD_SIZE_MINIMUM: Final = 92
"""The size of a record with two IPv4 hosts, no body, one byte of topic in V1, no properties."""

TOPIC_LENGTH_V1_MAXIMUM: Final = 127
"""The length field of V1 is a signed byte; longer topics need V2."""

TOPIC_LENGTH_MAXIMUM: Final = 255
"""RocketMQ's limit for retry topics, the longest topics there are."""

PROPERTIES_LENGTH_MAXIMUM: Final = 32_767
"""The length field is a signed 16-bit integer."""

PORT_MAXIMUM: Final = 65_535

QUEUE_OFFSET_MAXIMUM: Final = 2**63 - 2
"""The offset after the last record of a queue has to fit into 64 bits, too."""

MESSAGE_SIZE_MAXIMUM: Final = 4 * 1024 * 1024
"""RocketMQ's default limit of a body; clients split batches by it."""

RECORD_OVERHEAD_MAXIMUM: Final = 65_536
"""Bytes by which a record may be larger than the largest body (RocketMQ's rule). This covers the longest head, topic
and properties, so a body within its limit never makes a record beyond the record's limit.
"""

CRC_PROPERTY_START: Final = b"__CRC32#\x01"
CRC_DIGITS: Final = 10
CRC_PROPERTY_SIZE: Final = 20
"""The record's CRC as its last property: name, 0x01, ten digits (lowest first), 0x02."""

SECTOR_SIZE: Final = 512
"""The smallest unit a disk writes: a hole left by a crash inside a record has at least as many zeros."""

assert [head.size for head in HEADS] == [88, 100, 100, 112], "heads: table and structs disagree"
assert HEAD_V4.size == HEAD_SIZE
assert SIZE_AND_MAGIC.size == BLANK_SIZE
assert HEAD_SIZE + TOPIC_LENGTH_V1.size + 1 + PROPERTIES_LENGTH.size == RECORD_SIZE_MINIMUM
assert TOPIC_LENGTH_V1.size == 1
assert TOPIC_LENGTH_V2.size == 2
assert len(CRC_PROPERTY_START) + CRC_DIGITS + 1 == CRC_PROPERTY_SIZE
assert HEADS[3].size + 2 + TOPIC_LENGTH_MAXIMUM + 2 + PROPERTIES_LENGTH_MAXIMUM <= RECORD_OVERHEAD_MAXIMUM
