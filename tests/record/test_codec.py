"""Records to bytes and back, byte for byte."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.messages.property_names import CRC_PROPERTY
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import Host, Message, PhysicalOffset, QueueOffset
from quarry_mq.store.record import (
    Blank,
    Corrupt,
    EndOfData,
    StoredMessage,
    Torn,
    decode_record,
    encode_blank,
    encode_properties,
    encode_record,
    record_size,
    with_reconsume_times,
)
from quarry_mq.store.record.layout import MAGIC_V1, MAGIC_V2, QUEUE_OFFSET_MAXIMUM
from tests.record.records import (
    HOST_V6,
    START,
    STORED_AT_MS,
    message,
    messages,
    positive64,
    record,
    whole,
)

ZEROS = bytes(4096)


def test_bytes_of_a_small_record() -> None:
    """The layout, spelled out by hand."""
    each = message(topic="T", body=b"hi", properties={"a": "b"})
    expected = bytes.fromhex(
        "00000062 daa320a7"  # size 98, version 1
        f"{zlib.crc32(b'hi') & 0x7FFFFFFF:08x}"
        "00000003 00000005"  # queue number, flag
        "0000000000000011 0000000000001000"  # queue offset, physical offset
        "00000102"  # system flag
        f"{STORED_AT_MS - 75:016x} c0a80709 0000d6aa"  # born timestamp and host
        f"{STORED_AT_MS:016x} 7f000001 00002a9f"  # store timestamp and host
        "00000002 0000000000000009"  # reconsume times, prepared transaction offset
        "00000002 6869"  # body
        "01 54"  # topic
        "0004 61016202"  # properties
    )
    assert record(each, 0x1000) == expected


@given(
    each=messages,
    at=positive64,
    queue_offset=st.integers(0, QUEUE_OFFSET_MAXIMUM),
    stored_at=positive64,
    crc=st.booleans(),
)
def test_round_trip(each: Message, at: int, queue_offset: int, stored_at: int, crc: bool) -> None:
    raw_properties = encode_properties(each.properties)
    data = encode_record(
        each,
        queue_offset=QueueOffset(queue_offset),
        physical_offset=PhysicalOffset(at),
        store_timestamp_ms=stored_at,
        raw_properties=raw_properties,
        crc_property=crc,
    )
    assert len(data) == record_size(each, raw_properties, crc)
    decoded = decode_record(memoryview(b"before" + data + ZEROS), 6, PhysicalOffset(at))
    assert isinstance(decoded, StoredMessage), decoded
    properties = decoded.properties
    assert (properties.pop(CRC_PROPERTY, None) is not None) == crc
    v6_bits = 0x10 * (len(each.born_host.address) == 16) + 0x20 * (len(each.store_host.address) == 16)
    assert decoded._replace(body=each.body, raw_properties=b"") == StoredMessage(  # type: ignore[arg-type]
        size=len(data),
        magic=MAGIC_V1 if len(each.topic) <= 127 else MAGIC_V2,
        body_crc=zlib.crc32(each.body) & 0x7FFFFFFF,
        queue_number=each.queue_number,
        flag=each.flag,
        queue_offset=QueueOffset(queue_offset),
        physical_offset=PhysicalOffset(at),
        system_flag=each.system_flag & ~0x30 | v6_bits,
        born_timestamp_ms=each.born_timestamp_ms,
        born_host=each.born_host,
        store_timestamp_ms=stored_at,
        store_host=each.store_host,
        reconsume_times=each.reconsume_times,
        prepared_transaction_offset=each.prepared_transaction_offset,
        body=each.body,  # type: ignore[arg-type]
        topic=each.topic,
        raw_properties=b"",
    )
    assert decoded.body == each.body
    assert properties == each.properties


def test_body_is_a_view_of_the_segment() -> None:
    data = record(message())
    assert whole(data).body.obj is data


@pytest.mark.parametrize(
    ("length", "magic", "size"), [(127, MAGIC_V1, 91 + 127), (128, MAGIC_V2, 92 + 128), (255, MAGIC_V2, 347)]
)
def test_version_follows_the_length_of_the_topic(length: int, magic: int, size: int) -> None:
    data = record(message(topic="t" * length, body=b"", properties={}))
    assert len(data) == size
    assert whole(data).magic == magic
    assert whole(data).topic == "t" * length


@pytest.mark.parametrize(
    ("born", "store", "bits", "size"),
    [(4, 4, 0x00, 92), (16, 4, 0x10, 104), (4, 16, 0x20, 104), (16, 16, 0x30, 116)],
)
def test_hosts_of_both_kinds(born: int, store: int, bits: int, size: int) -> None:
    each = message("t", b"", {}, Host(HOST_V6.address[:born], 1), Host(HOST_V6.address[:store], 65_535))
    stored = whole(record(each))
    assert (stored.size, stored.system_flag) == (size, 0x102 | bits)
    assert (stored.born_host, stored.store_host) == (each.born_host, each.store_host)


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize(("born", "store"), [(4, 4), (16, 4), (4, 16), (16, 16)])
def test_a_record_may_say_how_often_its_message_was_consumed(born: int, store: int, *, crc: bool) -> None:
    each = message("t", b"x", {"a": "b"}, Host(HOST_V6.address[:born], 1), Host(HOST_V6.address[:store], 2))
    data = record(each, crc_property=crc)
    changed = whole(with_reconsume_times(data, whole(data), 7))
    assert changed.reconsume_times == 7
    digits = changed.properties.get(CRC_PROPERTY)
    assert (digits is not None) == crc
    assert with_reconsume_times(with_reconsume_times(data, changed, 7), changed, each.reconsume_times) == data


def test_crc_property_closes_the_record() -> None:
    """Ten decimal digits, lowest first, over everything before the last 20 bytes."""
    data = record(message(), crc_property=True)
    digits = data[-11:-1]
    assert data[-20:-11] == b"__CRC32#\x01"
    assert data[-1:] == b"\x02"
    assert int(digits[::-1]) == zlib.crc32(data[:-20]) & 0x7FFFFFFF
    assert whole(data).properties[CRC_PROPERTY] == digits.decode()


@pytest.mark.parametrize(("raw", "added"), [(b"", 20), (b"a\x01b\x02", 20), (b"a\x01b", 21)])
def test_crc_property_is_never_glued_to_another(raw: bytes, added: int) -> None:
    """RocketMQ forgets the 0x02 before it in batches, so that the CRC becomes a part of the last value."""
    each = message(properties={})
    data = encode_record(
        each,
        queue_offset=QueueOffset(0),
        physical_offset=START,
        store_timestamp_ms=0,
        raw_properties=raw,
        crc_property=True,
    )
    assert len(data) == record_size(each, raw) + added == record_size(each, raw, crc_property=True)
    properties = whole(data).properties
    assert properties.pop(CRC_PROPERTY).isdecimal()
    assert properties == ({"a": "b"} if raw else {})


def test_glued_crc_text_is_no_crc_property() -> None:
    """A record of a RocketMQ batch is read as RocketMQ reads it: the text belongs to the value."""
    raw = b"a\x01b" + b"__CRC32#\x01" + b"0123456789\x02"
    data = encode_record(
        message(),
        queue_offset=QueueOffset(0),
        physical_offset=START,
        store_timestamp_ms=0,
        raw_properties=raw,
    )
    assert whole(data).properties == {"a": "b__CRC32#\x010123456789"}
    required = decode_record(memoryview(data), 0, START, require_crc_property=True)
    assert required == Corrupt(START, "the record has no CRC property")


@pytest.mark.parametrize("topic", ["", "a\0b", "t" * 256, "\udc80"])
def test_topic_that_cannot_be_stored(topic: str) -> None:
    with pytest.raises(Invalid, match="topic"):
        record(message(topic=topic))


@pytest.mark.parametrize(("length", "crc"), [(32_768, False), (32_748, True)])
def test_properties_too_long_for_their_length_field(length: int, crc: bool) -> None:
    raw_properties = b"n\x01" + b"v" * (length - 3) + b"\x02"
    each = message(properties={})

    def encode(raw: bytes) -> bytes:
        return encode_record(
            each,
            queue_offset=QueueOffset(0),
            physical_offset=START,
            store_timestamp_ms=0,
            raw_properties=raw,
            crc_property=crc,
        )

    assert whole(encode(raw_properties[:-2] + b"\x02")).properties["n"] == "v" * (length - 4)
    with pytest.raises(Invalid, match=r"properties: 32768 bytes when encoded, at most 32767"):
        encode(raw_properties)


def test_address_of_a_strange_length() -> None:
    with pytest.raises(ValueError, match="4 or 16 bytes, not 5"):
        record(message(born_host=Host(b"12345", 1)))


def test_blank_closes_a_segment() -> None:
    segment = record(message()) + encode_blank(30) + bytes(22)
    at = len(segment) - 30
    assert encode_blank(30) == bytes.fromhex("0000001e cbd43194")
    assert decode_record(memoryview(segment), at, PhysicalOffset(5000)) == Blank(PhysicalOffset(5000), 30)


def test_blank_of_the_smallest_size() -> None:
    assert decode_record(memoryview(encode_blank(8)), 0, START) == Blank(START, 8)
    with pytest.raises(ValueError, match="7 are left"):
        encode_blank(7)


def test_blank_that_does_not_reach_the_end_of_the_segment() -> None:
    assert isinstance(decode_record(memoryview(encode_blank(30) + bytes(23)), 0, START), Corrupt)


@pytest.mark.parametrize("length", [8, 87, 88, 91, 4096])
def test_zeros_are_the_end_of_data(length: int) -> None:
    assert decode_record(memoryview(bytes(length)), 0, START) == EndOfData(START)


@pytest.mark.parametrize("length", range(8))
def test_too_few_bytes_for_anything(length: int) -> None:
    """Every segment ends in a blank, so a log is never read here; zeros make no difference."""
    assert isinstance(decode_record(memoryview(bytes(length)), 0, START), Corrupt)


@pytest.mark.parametrize("lost", range(1, 8))
def test_lost_beginning_is_torn_not_the_end_of_data(lost: int) -> None:
    """A record may begin in the last bytes of a sector that never reached the disk."""
    data = record(message())
    segment = bytes(lost) + data[lost:] + ZEROS
    decoded = decode_record(memoryview(segment), 0, START)
    assert isinstance(decoded, StoredMessage if segment.startswith(data) else Torn | Corrupt)


def test_wrong_position_is_corrupt() -> None:
    """Bytes of another place, as a recycled or misplaced file would show them."""
    decoded = decode_record(memoryview(record(message(), at=4096)), 0, PhysicalOffset(8192))
    assert decoded == Corrupt(PhysicalOffset(8192), "the record states another offset: 4096")


def test_record_beyond_the_end_of_the_segment_is_torn() -> None:
    data = record(message())
    for cut in (1, 20, len(data) - 8):
        assert isinstance(decode_record(memoryview(data[:-cut]), 0, START), Torn), cut


def test_unknown_magic_is_named() -> None:
    data = bytearray(record(message()))
    data[4:8] = b"abcd"
    assert decode_record(memoryview(data), 0, START) == Corrupt(START, "magic code 61626364 is unknown")


@pytest.mark.parametrize(("offset", "field"), [(12, "queue number"), (20, "queue offset"), (56, "timestamp")])
def test_negative_numbers_where_none_can_be(offset: int, field: str) -> None:
    data = bytearray(record(message()))
    data[offset] |= 0x80
    decoded = decode_record(memoryview(data), 0, START)
    assert isinstance(decoded, Corrupt)
    assert field in decoded.reason


def test_a_queue_offset_that_none_can_follow() -> None:
    data = bytearray(record(message()))
    data[20:28] = (QUEUE_OFFSET_MAXIMUM + 1).to_bytes(8, "big")
    assert decode_record(memoryview(data), 0, START) == Corrupt(
        START, "queue offset 9223372036854775807 is the largest number and has no next one"
    )
    data[20:28] = QUEUE_OFFSET_MAXIMUM.to_bytes(8, "big")
    assert isinstance(decode_record(memoryview(data), 0, START), StoredMessage)


def test_reading_without_crc_check_looks_at_structure_only() -> None:
    data = bytearray(record(message(), crc_property=True))
    data[90] ^= 1
    assert isinstance(decode_record(memoryview(data), 0, START), Corrupt)
    assert isinstance(decode_record(memoryview(data), 0, START, check_crc=False), StoredMessage)


@settings(max_examples=200)
@given(data=st.binary(max_size=200), magic=st.sampled_from([b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"]))
def test_any_bytes_have_an_outcome(data: bytes, magic: bytes) -> None:
    for garbage in (data, b"\0\0\0" + bytes([len(data) & 0xFF]) + magic + data):
        decoded = decode_record(memoryview(garbage), 0, START)
        assert isinstance(decoded, StoredMessage | Blank | EndOfData | Torn | Corrupt)
