"""Every cut, every hole and every flipped bit of a record."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.store.record import Corrupt, EndOfData, StoredMessage, Torn, decode_record
from quarry_mq.store.record.layout import SECTOR_SIZE
from quarry_mq.store.scan.segment import scan_segment
from tests.record.records import HOST_V6, START, message, record, whole

ZEROS = bytes(4096)

RECORDS = {
    "plain": record(message()),
    "no properties": record(message(properties={})),
    "no body": record(message(body=b"")),
    "zeros in the body": record(message(body=b"\0" * 40)),
    "version 2": record(message(topic="%RETRY%" + "g" * 140)),
    "IPv6 hosts": record(message(born_host=HOST_V6, store_host=HOST_V6)),
    "CRC property": record(message(), crc_property=True),
    "CRC property alone": record(message(properties={}), crc_property=True),
}

FIELDS = {
    "size": 4,
    "magic": 4,
    "body CRC": 4,
    "queue number": 4,
    "flag": 4,
    "queue offset": 8,
    "physical offset": 8,
    "system flag": 4,
    "born timestamp": 8,
    "born address": 4,
    "born port": 4,
    "store timestamp": 8,
    "store address": 4,
    "store port": 4,
    "reconsume times": 4,
    "prepared transaction offset": 8,
    "body length": 4,
    "body": 20,
    "topic length": 1,
    "topic": 6,
    "properties length": 2,
    "properties": len(record(message())) - 117,
}

UNNOTICED_BITS = {
    "queue number": 31,  # a negative number is noticed
    "flag": 32,
    "queue offset": 63,
    "system flag": 30,  # the two host bits move every later field
    "born timestamp": 64,
    "born address": 32,
    "born port": 16,  # above 65,535 is noticed
    "store timestamp": 63,
    "store address": 32,
    "store port": 16,
    "reconsume times": 32,
    "prepared transaction offset": 64,
    "topic": 42,  # the top bit of an ASCII letter makes it no UTF-8
    "properties": 8 * (len(record(message())) - 117) - 1,  # a zero as the last byte is noticed
}
"""How many of a field's bits can flip unnoticed in a record without a CRC property: the table in the docs."""


def flips(data: bytes) -> list[tuple[int, bytes]]:
    flipped = []
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        flipped.append((bit // 8, bytes(changed)))
    return flipped


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("check_crc", [True, False])
def test_cut_record_is_no_message(name: str, check_crc: bool) -> None:
    """A preallocated segment shows zeros where the rest of the record never arrived.

    The body CRC alone would let a record pass whose topic or properties are cut; so would no check at all.
    """
    data = RECORDS[name]
    for cut in range(len(data)):
        segment = data[:cut] + ZEROS
        decoded = decode_record(memoryview(segment), 0, START, check_crc=check_crc)
        if segment.startswith(data):
            assert isinstance(decoded, StoredMessage)
        elif not any(segment):
            assert decoded == EndOfData(START)
        else:
            assert isinstance(decoded, Torn | Corrupt), (cut, decoded)
            assert isinstance(decoded, Torn) or cut < 8, (cut, decoded)


@pytest.mark.parametrize("name", RECORDS)
def test_flipped_bit_never_gives_the_same_message(name: str) -> None:
    data = RECORDS[name]
    original = whole(data)
    for at, changed in flips(data):
        assert decode_record(memoryview(changed + ZEROS), 0, START) != original, at


def test_bits_without_a_check() -> None:
    """RocketMQ's format has no checksum over most of the head, the topic and the properties."""
    data = RECORDS["plain"]
    assert sum(FIELDS.values()) == len(data)
    field_of = [name for name, length in FIELDS.items() for _ in range(length)]
    unnoticed = Counter(
        field_of[at]
        for at, changed in flips(data)
        if isinstance(decode_record(memoryview(changed + ZEROS), 0, START), StoredMessage)
    )
    assert unnoticed == UNNOTICED_BITS


@pytest.mark.parametrize("name", ["CRC property", "CRC property alone"])
def test_required_crc_property_notices_every_bit(name: str) -> None:
    for at, changed in flips(RECORDS[name]):
        decoded = decode_record(memoryview(changed + ZEROS), 0, START, require_crc_property=True)
        assert isinstance(decoded, Torn | Corrupt), at


@pytest.mark.parametrize("name", ["CRC property", "CRC property alone"])
def test_optional_crc_property_notices_every_bit(name: str) -> None:
    """Also one in its name, or in the 0x02 before it, that would turn it into a property like any other."""
    for at, changed in flips(RECORDS[name]):
        assert isinstance(decode_record(memoryview(changed + ZEROS), 0, START), Torn | Corrupt), at
        (batch,) = scan_segment(memoryview(changed + ZEROS), START)
        assert isinstance(batch.ended_by, Torn | Corrupt), at
        assert len(batch.columns) == 0


@settings(max_examples=300)
@given(
    body=st.integers(0, 2000),
    properties=st.integers(0, 2000),
    position=st.integers(0, 2 * SECTOR_SIZE),
    first=st.integers(0, 10),
    count=st.integers(1, 10),
    crc=st.booleans(),
)
def test_sectors_that_never_reached_the_disk(
    body: int, properties: int, position: int, first: int, count: int, crc: bool
) -> None:
    """Mapped pages reach the disk in any order, so a crash leaves holes of whole sectors inside records."""
    data = record(message(body=b"b" * body, properties={"p": "v" * properties} if properties else {}), crc_property=crc)
    segment = bytearray(position) + data + ZEROS
    untouched = bytes(segment)
    hole = slice(first * SECTOR_SIZE, min((first + count) * SECTOR_SIZE, len(segment)))
    segment[hole] = bytes(hole.stop - hole.start) if hole.stop > hole.start else b""
    decoded = decode_record(memoryview(segment), position, START)
    assert isinstance(decoded, StoredMessage) == (bytes(segment) == untouched), decoded


def test_short_run_of_zeros_in_a_foreign_property_is_no_hole() -> None:
    """Quarry refuses zero bytes in properties, but another writer's are read."""
    data = RECORDS["plain"].replace(b"TagA", b"T\0\0A")
    assert whole(data).properties["TAGS"] == "T\0\0A"
