"""Offsets of a stream: what a batch takes, how it is shared out, what is written down."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.pipeline.source import InvalidOption
from quarry_mq.pipeline.stream.reader import limited, of_json, parts, to_json

OFFSETS = st.dictionaries(st.integers(0, 20), st.integers(0, 10_000), max_size=8)


def waiting(start: dict[int, int], end: dict[int, int]) -> int:
    return sum(end[queue] - start.get(queue, 0) for queue in end)


@given(OFFSETS, OFFSETS, st.integers(1, 500))
def test_a_limit_is_kept_and_used_up(start: dict[int, int], more: dict[int, int], limit: int) -> None:
    ends = {queue: start.get(queue, 0) + more.get(queue, 0) for queue in start | more}
    taken = limited(start, ends, limit)
    assert taken.keys() == ends.keys()
    assert all(start.get(queue, 0) <= taken[queue] <= ends[queue] for queue in ends)
    assert waiting(start, taken) == min(limit, waiting(start, ends))


@pytest.mark.parametrize("limit", [2, 3, 50])
def test_no_queue_waits_for_ever(limit: int) -> None:
    """One of them gets a hundred times as many messages as the others, and fewer are read than come."""
    at, ends = {0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0}
    for _ in range(40):
        ends = {queue: end + (100 if queue == 0 else 1) for queue, end in ends.items()}
        at = limited(at, ends, limit)
    assert min(at.values()) > 20


@given(OFFSETS, OFFSETS, st.integers(1, 3_000))
def test_parts_are_all_that_lies_between_each_once(start: dict[int, int], end: dict[int, int], most: int) -> None:
    found = [(each.queue, offset) for part in parts(start, end, most) for each in part for offset in range(*each[1:])]
    expected = [(queue, offset) for queue in sorted(end) for offset in range(start.get(queue, 0), end[queue])]
    assert found == expected
    sizes = [sum(each.end - each.begin for each in part) for part in parts(start, end, most)]
    assert all(size == most for size in sizes[:-1])
    assert all(0 < size <= most for size in sizes)


def test_what_is_written_down_is_the_same_text_for_the_same_offsets() -> None:
    """Spark compares the texts to see whether anything is new."""
    text = json.dumps(to_json("orders", {10: 7, 9: 1}))
    assert text == '{"orders": {"9": 1, "10": 7}}'
    assert json.dumps(to_json("orders", of_json("orders", json.loads(text)))) == text


def test_a_checkpoint_of_another_topic_is_refused() -> None:
    with pytest.raises(InvalidOption, match="option 'topic': the checkpoint is of orders, not of bills"):
        of_json("bills", {"orders": {"0": 1}})
