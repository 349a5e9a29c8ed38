"""Messages and records for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from quarry_mq.store.message import Host, Message, PhysicalOffset, QueueOffset
from quarry_mq.store.record import StoredMessage, decode_record, encode_properties, encode_record

BORN_V4 = Host(bytes([192, 168, 7, 9]), 54_954)
STORE_V4 = Host(bytes([127, 0, 0, 1]), 10_911)
HOST_V6 = Host(bytes(range(0xA0, 0xB0)), 8081)
STORED_AT_MS = 1_795_219_820_440
START = PhysicalOffset(0)

PROPERTIES = {"TAGS": "TagA", "KEYS": "order-1 order-2", "région": "île-0"}

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\x01\x02"), min_size=1)
names = text.filter(lambda name: name != "__CRC32#" and not name.startswith("__RMQ.TRANSIENT."))
property_maps = st.dictionaries(names, text, max_size=6)
topics = st.text("ABCXYZabcxyz0189_-%|", min_size=1, max_size=255)
hosts = st.builds(
    Host,
    st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)),
    st.integers(0, 65_535),
)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
positive32 = st.integers(0, 2**31 - 1)
positive64 = st.integers(0, 2**63 - 1)
messages = st.builds(
    Message,
    topic=topics,
    queue_number=positive32,
    body=st.binary(max_size=300),
    properties=property_maps,
    born_timestamp_ms=int64,
    born_host=hosts,
    store_host=hosts,
    flag=int32,
    system_flag=int32,
    reconsume_times=int32,
    prepared_transaction_offset=int64,
)


def message(
    topic: str = "orders",
    body: bytes = b"a body of some bytes",
    properties: Mapping[str, str] = PROPERTIES,
    born_host: Host = BORN_V4,
    store_host: Host = STORE_V4,
) -> Message:
    return Message(
        topic=topic,
        queue_number=3,
        body=body,
        properties=properties,
        born_timestamp_ms=STORED_AT_MS - 75,
        born_host=born_host,
        store_host=store_host,
        flag=5,
        system_flag=0x102,
        reconsume_times=2,
        prepared_transaction_offset=9,
    )


def record(each: Message, at: int = 0, *, crc_property: bool = False) -> bytes:
    return encode_record(
        each,
        queue_offset=QueueOffset(17),
        physical_offset=PhysicalOffset(at),
        store_timestamp_ms=STORED_AT_MS,
        raw_properties=encode_properties(each.properties),
        crc_property=crc_property,
    )


def whole(data: bytes, position: int = 0, at: int = 0) -> StoredMessage:
    """The message that must be there."""
    decoded = decode_record(memoryview(data), position, PhysicalOffset(at))
    assert isinstance(decoded, StoredMessage), decoded
    return decoded


def as_message(stored: StoredMessage) -> Message:
    """What a producer would have to hand in for this record."""
    return Message(
        topic=stored.topic,
        queue_number=stored.queue_number,
        body=bytes(stored.body),
        properties=stored.properties,
        born_timestamp_ms=stored.born_timestamp_ms,
        born_host=stored.born_host,
        store_host=stored.store_host,
        flag=stored.flag,
        system_flag=stored.system_flag,
        reconsume_times=stored.reconsume_times,
        prepared_transaction_offset=stored.prepared_transaction_offset,
    )
