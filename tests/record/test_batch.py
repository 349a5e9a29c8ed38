"""Batches taken apart."""

from __future__ import annotations

from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import Message
from quarry_mq.store.record import encode_properties, split_batch
from tests.record.records import int32, message, property_maps


def inner(flag: int, body: bytes, properties: dict[str, str]) -> bytes:
    raw = encode_properties(properties)
    size = 22 + len(body) + len(raw)
    return pack(">iiiii", size, 0, 0, flag, len(body)) + body + pack(">h", len(raw)) + raw


def batch(data: bytes) -> Message:
    return message(body=data, properties={"outer": "ignored"})


@given(st.lists(st.tuples(int32, st.binary(max_size=50), property_maps), min_size=1, max_size=5))
def test_inner_messages(expected: list[tuple[int, bytes, dict[str, str]]]) -> None:
    outer = batch(b"".join(inner(*each) for each in expected))
    assert split_batch(outer) == [
        outer._replace(flag=flag, body=body, properties=properties, prepared_transaction_offset=0)
        for flag, body, properties in expected
    ]


def test_empty_batch() -> None:
    with pytest.raises(Invalid, match="holds no message"):
        split_batch(batch(b""))


def test_every_cut_of_a_batch_is_refused() -> None:
    first = inner(1, b"body", {"a": "b"})
    data = first + inner(2, b"", {})
    for cut in range(1, len(data)):
        if cut == len(first):
            assert len(split_batch(batch(data[:cut]))) == 1
            continue
        with pytest.raises(Invalid, match="at byte 0" if cut < len(first) else f"at byte {len(first)}"):
            split_batch(batch(data[:cut]))


@pytest.mark.parametrize("position", [0, 3, 16, 19, 24, 25])
@pytest.mark.parametrize("change", [1, 0x80, 0xFF])
def test_wrong_lengths_are_refused(position: int, change: int) -> None:
    data = bytearray(inner(1, b"body", {"a": "b"}))
    data[position] ^= change
    with pytest.raises(Invalid, match="batch: at byte 0"):
        split_batch(batch(bytes(data)))


@given(st.binary(min_size=1, max_size=80))
def test_any_bytes_are_split_or_refused(data: bytes) -> None:
    with suppress(Invalid):
        assert sum(len(each.body) + 22 for each in split_batch(batch(data))) <= len(data)
