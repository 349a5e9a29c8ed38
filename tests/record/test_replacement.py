"""Records that stand in place of damaged ones fill their stretch exactly, and are told wherever an entry points."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quarry_mq.store.consumequeue.dispatch import is_queued
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import Blank, StoredMessage, decode_record, encode_replacement, is_replaced
from quarry_mq.store.record.layout import BLANK_SIZE, MESSAGE_SIZE_MAXIMUM, RECORD_SIZE_MINIMUM

BASE = PhysicalOffset(1 << 30)
STORED_MS = 1_700_000_000_000


def filled(size: int, *, closes_segment: bool) -> bytearray:
    content = bytearray(size)
    for at, record in encode_replacement(BASE, size, STORED_MS, closes_segment=closes_segment):
        content[at - BASE : at - BASE + len(record)] = record
    return content


def walk(content: bytearray) -> list[StoredMessage | Blank]:
    found: list[StoredMessage | Blank] = []
    at = 0
    while at < len(content):
        each = decode_record(memoryview(content), at, PhysicalOffset(BASE + at))
        assert isinstance(each, StoredMessage | Blank), each
        found.append(each)
        at += each.size
    assert at == len(content)
    return found


@given(st.integers(RECORD_SIZE_MINIMUM, 9_000))
@example(MESSAGE_SIZE_MAXIMUM)
@example(MESSAGE_SIZE_MAXIMUM + 1)
@example(MESSAGE_SIZE_MAXIMUM + RECORD_SIZE_MINIMUM)
@example(3 * MESSAGE_SIZE_MAXIMUM - 1)
def test_a_stretch_between_records_is_filled_with_records(size: int) -> None:
    records = walk(filled(size, closes_segment=False))
    for record in records:
        assert isinstance(record, StoredMessage)
        assert not is_queued(record.system_flag), "neither broker makes an entry of it"
        assert record.store_timestamp_ms == STORED_MS
        assert RECORD_SIZE_MINIMUM <= record.size <= MESSAGE_SIZE_MAXIMUM


@given(st.integers(BLANK_SIZE, 9_000))
@example(RECORD_SIZE_MINIMUM + BLANK_SIZE - 1)
@example(RECORD_SIZE_MINIMUM + BLANK_SIZE)
@example(MESSAGE_SIZE_MAXIMUM + BLANK_SIZE + 1)
def test_a_stretch_up_to_the_end_of_a_segment_is_closed_by_a_blank(size: int) -> None:
    *records, blank = walk(filled(size, closes_segment=True))
    assert isinstance(blank, Blank)
    assert all(isinstance(record, StoredMessage) for record in records)


@pytest.mark.parametrize("size", [0, 1, RECORD_SIZE_MINIMUM - 1])
def test_what_is_too_small_for_a_record_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} bytes"):
        list(encode_replacement(BASE, size, STORED_MS, closes_segment=False))


@given(st.lists(st.integers(RECORD_SIZE_MINIMUM, 700), min_size=1, max_size=8), st.booleans())
@example([RECORD_SIZE_MINIMUM], True)
@example([MESSAGE_SIZE_MAXIMUM - 50, RECORD_SIZE_MINIMUM, RECORD_SIZE_MINIMUM, 500], False)
@example([MESSAGE_SIZE_MAXIMUM - RECORD_SIZE_MINIMUM - 1, 2 * RECORD_SIZE_MINIMUM, 99], False)
@example([MESSAGE_SIZE_MAXIMUM - 1, RECORD_SIZE_MINIMUM], False)
def test_every_place_where_a_record_began_tells_that_it_was_replaced(sizes: list[int], closes_segment: bool) -> None:
    size = sum(sizes) + (BLANK_SIZE if closes_segment else 0)
    content = memoryview(bytes(300) + filled(size, closes_segment=closes_segment) + bytes(300))
    if closes_segment:
        content = content[:-300]
    at = 0
    for each in sizes:
        assert is_replaced(content, 300 + at, PhysicalOffset(BASE + at)), at
        at += each


def test_other_places_are_not_taken_for_replaced() -> None:
    around = bytes(range(200)) + bytes(200)
    assert not any(is_replaced(memoryview(around), at, PhysicalOffset(BASE + at)) for at in range(300))
