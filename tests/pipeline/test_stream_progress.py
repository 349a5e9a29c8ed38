"""Offsets of a stream: what a batch takes, how it is shared out, what is written down."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.pipeline.source import InvalidOption
from quarry_mq.pipeline.stream.offsets import Offsets, Queue, limited, parts, queue_named, to_json, waiting

QUEUES = st.builds(Queue, st.sampled_from(["bills", "orders"]), st.sampled_from(["a", "b"]), st.integers(0, 20))
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 10_000), max_size=8)


@given(OFFSETS, OFFSETS, st.integers(1, 500))
def test_a_limit_is_kept_and_used_up(start: Offsets, more: Offsets, limit: int) -> None:
    ends = {queue: start.get(queue, 0) + more.get(queue, 0) for queue in start | more}
    taken = limited(start, ends, limit)
    assert taken.keys() == ends.keys()
    assert all(start.get(queue, 0) <= taken[queue] <= ends[queue] for queue in ends)
    assert waiting(start, taken) == min(limit, waiting(start, ends))


@pytest.mark.parametrize("limit", [2, 3, 50])
def test_no_queue_waits_for_ever(limit: int) -> None:
    """One of them gets a hundred times as many messages as the others, and fewer are read than come."""
    at: Offsets = {Queue("orders", "quarry", number): 0 for number in range(3)}
    ends = at
    for _ in range(40):
        ends = {queue: end + (100 if queue.number == 0 else 1) for queue, end in ends.items()}
        at = limited(at, ends, limit)
    assert min(at.values()) > 20


@given(OFFSETS, OFFSETS, st.integers(1, 3_000), st.integers(1, 50))
def test_parts_are_all_that_lies_between_each_once(start: Offsets, end: Offsets, most: int, count_min: int) -> None:
    made = list(parts(start, end, messages_max=most, count_min=count_min))
    found = [(each.queue, offset) for part in made for each in part for offset in range(*each[1:])]
    expected = [(queue, offset) for queue in sorted(end) for offset in range(start.get(queue, 0), end[queue])]
    assert found == expected
    sizes = [sum(each.end - each.begin for each in part) for part in made]
    assert all(0 < size <= most for size in sizes)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1, "no task has more to do than the others"
    assert len(made) >= min(count_min, waiting(start, end))
    assert len(made) <= max(count_min, -(-waiting(start, end) // most)), "no more tasks than needed"


def test_what_is_written_down_is_the_same_text_for_the_same_offsets() -> None:
    """Spark compares the texts to see whether anything is new."""
    offsets = {Queue("orders", "quarry", 10): 7, Queue("orders", "quarry", 9): 1, Queue("bills", "quarry", 0): 4}
    text = json.dumps(to_json(offsets))
    assert text == '{"bills": {"quarry/0": 4}, "orders": {"quarry/9": 1, "quarry/10": 7}}'
    assert json.dumps(to_json(dict(reversed(offsets.items())))) == text


def test_a_queue_is_named_by_number_where_one_broker_has_the_topic() -> None:
    assert queue_named("assign", "orders", "3", ["quarry"]) == Queue("orders", "quarry", 3)
    assert queue_named("assign", "orders", "b/3", ["a", "b"]) == Queue("orders", "b", 3)
    with pytest.raises(InvalidOption, match=r"option 'assign': topic orders: '3' names no broker; .* a, b: write a/3"):
        queue_named("assign", "orders", "3", ["a", "b"])
    with pytest.raises(InvalidOption, match="'three' is neither a queue number nor broker/number"):
        queue_named("assign", "orders", "three", ["a"])
