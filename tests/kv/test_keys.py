"""Key fields sort as their values do, and can be read back."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.kv import keys

U32 = st.integers(0, 2**32 - 1)


@given(st.lists(U32))
def test_u32_order_is_number_order(numbers: list[int]) -> None:
    assert sorted(map(keys.u32, numbers)) == [keys.u32(number) for number in sorted(numbers)]


@given(st.lists(st.binary(max_size=6)))
def test_counted_order_is_length_then_bytes(values: list[bytes]) -> None:
    expected = sorted(values, key=lambda value: (len(value), value))
    assert sorted(map(keys.counted, values)) == [keys.counted(value) for value in expected]


@given(st.binary(max_size=20), U32, U32)
def test_fields_are_read_back_in_turn(name: bytes, number: int, offset: int) -> None:
    key = keys.counted(name) + keys.u32(number) + keys.u32(offset)
    found_name, at = keys.read_counted(key, 0)
    found_number, at = keys.read_u32(key, at)
    found_offset, at = keys.read_u32(key, at)
    assert (found_name, found_number, found_offset, at) == (name, number, offset, len(key))


@given(st.lists(st.tuples(st.binary(max_size=3), U32)))
def test_a_key_of_fields_sorts_by_its_first_field_first(values: list[tuple[bytes, int]]) -> None:
    made = sorted(keys.counted(name) + keys.u32(number) for name, number in values)
    expected = sorted(values, key=lambda value: (len(value[0]), value))
    assert made == [keys.counted(name) + keys.u32(number) for name, number in expected]


@pytest.mark.parametrize("number", [-1, 2**32])
def test_u32_has_limits(number: int) -> None:
    with pytest.raises(struct.error):
        keys.u32(number)


@pytest.mark.parametrize("number", [-(2**63) - 1, 2**63])
def test_i64_has_limits(number: int) -> None:
    with pytest.raises(struct.error):
        keys.u32(number)


@pytest.mark.parametrize("key", [b"\x00\x00\x00\x05four", b"\x00\x00\x00\x01"])
def test_a_field_that_the_key_cuts_short_is_no_field(key: bytes) -> None:
    with pytest.raises(ValueError, match="ends inside"):
        keys.read_counted(key, 0)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"a", b"b"), (b"a\xff", b"b"), (b"a\xff\xff", b"b"), (b"\x00", b"\x01")],
)
def test_prefix_end(prefix: bytes, end: bytes) -> None:
    assert keys.prefix_end(prefix) == end


@pytest.mark.parametrize("prefix", [b"", b"\xff\xff"])
def test_nothing_is_greater_than_all_keys_with_a_prefix_of_only_ff(prefix: bytes) -> None:
    with pytest.raises(ValueError, match="0xFF"):
        keys.prefix_end(prefix)
    assert keys.prefix_range(prefix).end is None


@given(st.binary(max_size=4), st.binary(max_size=5))
def test_prefix_range_holds_exactly_the_keys_with_the_prefix(prefix: bytes, key: bytes) -> None:
    start, end = keys.prefix_range(prefix)
    assert (start <= key and (end is None or key < end)) == key.startswith(prefix)
