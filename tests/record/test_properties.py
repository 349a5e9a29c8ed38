"""Properties, their encoding and what may be stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.store.errors import Invalid
from quarry_mq.store.record import decode_properties, encode_properties
from tests.record.records import property_maps


def test_bytes() -> None:
    assert encode_properties({}) == b""
    assert encode_properties({"TAGS": "é", "a": "b"}) == b"TAGS\x01\xc3\xa9\x02a\x01b\x02"


@given(property_maps)
def test_round_trip(properties: dict[str, str]) -> None:
    decoded = decode_properties(encode_properties(properties))
    assert decoded == properties
    assert list(decoded) == list(properties)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", {}),
        (b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),
        (b"\x01b\x02a\x01\x02ab\x02\x02\x01\x02", {}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x01\xff\x02", {"a": "�"}),
    ],
    ids=["empty", "last 0x02 missing", "repeated", "no name or no value", "0x01 in a value", "no UTF-8"],
)
def test_reading_what_others_stored(raw: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(raw) == expected


@given(st.binary(max_size=100))
def test_any_bytes_can_be_read_and_what_was_read_can_be_stored(raw: bytes) -> None:
    decoded = decode_properties(raw)
    storable = {n: v for n, v in decoded.items() if not {"\0", "\1"} & {*n, *v} and n != "__CRC32#"}
    assert decode_properties(encode_properties(storable)) == storable


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"": "b"}, "a name is empty"),
        ({"ok": "v", "k": "a\x01b"}, "property 'k': its value"),
        ({"k": "a\x02b"}, "property 'k': its value"),
        ({"k": "a\x00"}, "property 'k': its value"),
        ({"n\x01m": "v"}, r"property 'n\\x01m': its name"),
        ({"k": "\ud800"}, "property 'k': its value is not valid Unicode"),
    ],
)
def test_what_cannot_be_stored_is_named(properties: dict[str, str], named: str) -> None:
    with pytest.raises(Invalid, match=named):
        encode_properties(properties)


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3))
def test_any_mapping_is_stored_or_refused(properties: dict[str, str]) -> None:
    try:
        encoded = encode_properties(properties)
    except Invalid:
        return
    assert decode_properties(encoded) == {name: value for name, value in properties.items() if value}


def test_longest_properties() -> None:
    longest = {"n": "v" * 32_764}
    assert len(encode_properties(longest)) == 32_767
    with pytest.raises(Invalid, match="properties: 32768 bytes when encoded, at most 32767 are allowed"):
        encode_properties({"n": "v" * 32_765})


def test_length_is_counted_in_bytes() -> None:
    with pytest.raises(Invalid, match="48003 bytes"):
        encode_properties({"n": "支" * 16_000})


def test_properties_that_are_never_stored() -> None:
    properties = {"__CRC32#": "1", "a": "b", "__RMQ.TRANSIENT.x": "1", "c": "__RMQ.TRANSIENT."}
    assert encode_properties(properties) == b"a\x01b\x02c\x01__RMQ.TRANSIENT.\x02"


def test_empty_value_vanishes_for_the_reader() -> None:
    encoded = encode_properties({"a": "", "b": "c"})
    assert encoded == b"a\x01\x02b\x01c\x02"
    assert decode_properties(encoded) == {"b": "c"}
