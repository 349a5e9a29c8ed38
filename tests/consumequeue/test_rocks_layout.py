"""Keys and values of consume queues in RocksDB: worked examples, order, and both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.store.consumequeue import rocks_layout as layout
from quarry_mq.store.message import QueueId, QueueOffset

TOPICS = st.text(st.characters(codec="utf-8"), max_size=12)
QUEUES = st.builds(QueueId, TOPICS, st.integers(0, 2**31 - 1))
OFFSETS = st.integers(0, 2**63 - 1).map(QueueOffset)


def test_worked_example_of_an_entry_key() -> None:
    key = layout.entry_key(QueueId("TopicA", 1), QueueOffset(1))
    assert key.hex() == "00000006" + "01" + "546f70696341" + "01" + "00000001" + "01" + "0000000000000001"
    assert len(key) == 19 + len("TopicA")


def test_worked_example_of_a_maximum() -> None:
    key = layout.maximum_key(QueueId("TopicA", 1))
    assert key.hex() == "00000006" + "01" + "546f70696341" + "01" + "6d6178" + "01" + "00000001"
    assert len(key) == 14 + len("TopicA")
    assert layout.parse_bound(bytes.fromhex("00000000000000bd0000000000000001")) == (189, 1)


def test_worked_example_of_the_checkpoint() -> None:
    expected = "00000010" + "01" + b"CHECKPOINT_TOPIC".hex() + "01" + "6d6178" + "01" + "00000000"
    assert layout.CHECKPOINT_KEY.hex() == expected


def test_worked_example_of_an_entry() -> None:
    value = layout.ENTRY.pack(189, 189, 2598919, 1_700_000_000_000)
    assert value.hex() == "00000000000000bd" + "000000bd" + "000000000027a807" + "0000018bcfe56800"


@given(QUEUES, OFFSETS)
def test_an_entry_key_is_parsed_back(queue: QueueId, at: QueueOffset) -> None:
    assert layout.parse_entry_key(layout.entry_key(queue, at)) == (queue, at)


@given(QUEUES)
def test_bound_keys_are_parsed_back(queue: QueueId) -> None:
    assert layout.parse_maximum_key(layout.maximum_key(queue)) == queue
    assert layout.parse_maximum_key(layout.minimum_key(queue)) is None
    assert layout.minimum_key_beside(layout.maximum_key(queue)) == layout.minimum_key(queue)


@given(QUEUES, st.lists(OFFSETS, max_size=20))
def test_key_order_is_offset_order(queue: QueueId, offsets: list[QueueOffset]) -> None:
    keys = [layout.entry_key(queue, at) for at in sorted(offsets)]
    assert sorted(keys) == keys


@given(st.lists(st.tuples(QUEUES, OFFSETS), max_size=20))
def test_keys_of_one_queue_lie_together(entries: list[tuple[QueueId, QueueOffset]]) -> None:
    in_order = [layout.parse_entry_key(key)[0] for key in sorted(layout.entry_key(*entry) for entry in entries)]
    runs = [queue for at, queue in enumerate(in_order) if at == 0 or in_order[at - 1] != queue]
    assert len(runs) == len(set(runs))


@given(QUEUES, QUEUES, OFFSETS)
def test_a_range_holds_the_keys_of_its_queue_or_topic_and_no_others(
    queue: QueueId, other: QueueId, at: QueueOffset
) -> None:
    key = layout.entry_key(other, at)
    prefix = layout.entry_prefix(queue)
    assert (prefix <= key < layout.entries_end(prefix)) == (queue == other)
    start, end = layout.topic_range(queue.topic)
    assert end is not None
    same_topic = queue.topic == other.topic
    assert (start <= key < end) == same_topic
    assert (start <= layout.minimum_key(other) < end) == same_topic
    start, end = layout.max_offsets_range(queue.topic)
    assert end is not None
    assert (start <= layout.maximum_key(other) < end) == same_topic
    assert not start <= layout.minimum_key(other) < end


@given(st.binary(max_size=30))
def test_garbage_is_no_key(garbage: bytes) -> None:
    for parse in (layout.parse_entry_key, layout.parse_maximum_key):
        try:
            parse(garbage)
        except ValueError:
            continue
        assert len(garbage) >= 14


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"\xff\xff\xff\xff\x01\x01",
        layout.entry_key(QueueId("TopicA", 1), QueueOffset(1))[:-1],
        layout.entry_key(QueueId("TopicA", 1), QueueOffset(1)) + b"\x00",
        layout.maximum_key(QueueId("TopicA", 1)),
    ],
)
def test_a_cut_key_is_no_entry_key(key: bytes) -> None:
    with pytest.raises(ValueError, match="key"):
        layout.parse_entry_key(key)


@pytest.mark.parametrize(
    "key", [b"\x00\x00\x00\x01\x01T\x01mid\x01\x00\x00\x00\x00", layout.maximum_key(QueueId("T", 0))[:-1]]
)
def test_another_marker_is_no_bound(key: bytes) -> None:
    with pytest.raises(ValueError, match="max or min offset"):
        layout.parse_maximum_key(key)
