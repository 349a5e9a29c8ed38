"""Consumer offsets, over both engines and against a model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import ConsumerOffsetTable
from quarry_mq.store.metadata.offsets import INDEXED_MAX, PAGE_ROWS
from quarry_mq.store.state.identity import FAMILIES

ALL = KeyRange(b"", None)


def put(engine: KeyValueEngine, offsets: ConsumerOffsetTable, group: str, queue: QueueId, offset: int) -> None:
    batch = engine.batch()
    offsets.stage(batch, group, queue, QueueOffset(offset))
    engine.write(batch)


def test_an_offset_is_kept_per_group_topic_and_queue(engine: KeyValueEngine) -> None:
    offsets = ConsumerOffsetTable(engine)
    put(engine, offsets, "g", QueueId("t", 0), 7)
    put(engine, offsets, "g", QueueId("t", 1), 2**63 - 1)
    put(engine, offsets, "h", QueueId("t", 0), 0)
    put(engine, offsets, "g", QueueId("t", 0), 8)
    assert offsets.get("g", QueueId("t", 0)) == 8
    assert offsets.get("g", QueueId("t", 1)) == 2**63 - 1
    assert offsets.get("h", QueueId("t", 0)) == 0
    assert offsets.get("h", QueueId("t", 1)) is None
    assert offsets.get("g", QueueId("u", 0)) is None
    assert dict(offsets.of_group("g")) == {QueueId("t", 0): 8, QueueId("t", 1): 2**63 - 1}


def test_the_topics_of_a_group_are_listed_once_each(engine: KeyValueEngine) -> None:
    offsets = ConsumerOffsetTable(engine)
    for topic in ("b", "a", "%LMQ%1", "%LMQ%2", "orders", "zzzzzz", "%LMQ%33", "%LMQ%"):
        for number in range(3):
            put(engine, offsets, "g", QueueId(topic, number), 7)
    put(engine, offsets, "gg", QueueId("c", 0), 7)
    put(engine, offsets, "f", QueueId("a", 0), 7)
    topics = list(offsets.topics_of("g"))
    assert topics == ["a", "b", "%LMQ%", "%LMQ%1", "%LMQ%2", "orders", "zzzzzz", "%LMQ%33"]
    assert list(offsets.topics_of("g", light_queues=False)) == ["a", "b", "orders", "zzzzzz"]
    assert list(offsets.topics_of("nobody")) == []
    assert list(offsets.readers_of("a")) == ["f", "g"]


def test_golden_rows(engine: KeyValueEngine) -> None:
    put(engine, ConsumerOffsetTable(engine), "billing", QueueId("Orders", 258), 4660)
    assert engine.family("offsets").scan(ALL) == [
        (
            b"\x01\x00\x00\x00\x07billing\x00\x00\x00\x06Orders\x00\x00\x01\x02",
            b"\x00\x00\x00\x00\x00\x00\x12\x34",
        ),
        (b"\x02\x00\x00\x00\x06Orders\x00\x00\x00\x07billing", b""),
    ]


def test_a_read_never_creates_anything(engine: KeyValueEngine) -> None:
    """rmq#9792."""
    offsets = ConsumerOffsetTable(engine)
    assert offsets.get("g", QueueId("t", 0)) is None
    assert list(offsets.of_group("g")) == []
    batch = engine.batch()
    offsets.delete_topic(batch, "t")
    offsets.delete_group(batch, "g")
    engine.write(batch)
    assert engine.family("offsets").scan(ALL) == []


def test_staged_offsets_count_once_they_are_written(engine: KeyValueEngine) -> None:
    offsets = ConsumerOffsetTable(engine)
    batch = engine.batch()
    offsets.stage(batch, "g", QueueId("t", 0), QueueOffset(1))
    offsets.stage(batch, "g", QueueId("t", 0), QueueOffset(2))
    assert offsets.get("g", QueueId("t", 0)) is None
    engine.write(batch)
    assert offsets.get("g", QueueId("t", 0)) == 2


def test_a_group_of_many_queues_is_read_across_page_borders() -> None:
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    offsets = ConsumerOffsetTable(engine)
    batch = engine.batch()
    expected = {QueueId(f"t{number % 7}", number // 7): QueueOffset(number) for number in range(PAGE_ROWS + 1)}
    for queue, offset in expected.items():
        offsets.stage(batch, "g", queue, offset)
    engine.write(batch)
    rows = list(offsets.of_group("g"))
    assert dict(rows) == expected
    assert rows == sorted(rows), "by topic and queue"


@pytest.mark.parametrize("restarted", [False, True])
def test_deleting_a_topic_takes_every_group_and_no_other_topic(engine: KeyValueEngine, restarted: bool) -> None:
    """rmq#9454, rmq#9457: after a restart RocketMQ left data of a deleted topic behind."""
    offsets = ConsumerOffsetTable(engine)
    groups = [f"g{number}" for number in range(30)]
    for group in groups:
        put(engine, offsets, group, QueueId("gone", 0), 1)
        put(engine, offsets, group, QueueId("gone", 3), 2)
        put(engine, offsets, group, QueueId("gone2", 0), 3)
        put(engine, offsets, group, QueueId("gon", 0), 4)
    if restarted:
        offsets = ConsumerOffsetTable(engine)
    batch = engine.batch()
    offsets.delete_topic(batch, "gone")
    engine.write(batch)
    for group in groups:
        assert dict(offsets.of_group(group)) == {QueueId("gone2", 0): 3, QueueId("gon", 0): 4}
    assert not [key for key, _ in engine.family("offsets").scan(ALL) if b"\x04gone" in key]


@pytest.mark.parametrize("restarted", [False, True])
def test_deleting_a_group_takes_every_topic_and_no_other_group(engine: KeyValueEngine, restarted: bool) -> None:
    offsets = ConsumerOffsetTable(engine)
    for number in range(30):
        for group in ("gone", "gone2", "gon"):
            put(engine, offsets, group, QueueId(f"t{number}", number), number)
    if restarted:
        offsets = ConsumerOffsetTable(engine)
    batch = engine.batch()
    offsets.delete_group(batch, "gone")
    engine.write(batch)
    assert list(offsets.of_group("gone")) == []
    assert len(list(offsets.of_group("gone2"))) == len(list(offsets.of_group("gon"))) == 30
    assert not [key for key, _ in engine.family("offsets").scan(ALL) if b"\x04gone" in key], "its index rows too"


def test_offsets_staged_before_a_deletion_in_the_same_batch_are_deleted(engine: KeyValueEngine) -> None:
    offsets = ConsumerOffsetTable(engine)
    batch = engine.batch()
    offsets.stage(batch, "g", QueueId("t", 0), QueueOffset(1))
    offsets.stage(batch, "h", QueueId("u", 0), QueueOffset(1))
    offsets.delete_topic(batch, "t")
    offsets.delete_group(batch, "h")
    engine.write(batch)
    assert engine.family("offsets").scan(ALL) == []


def test_a_topic_that_came_back_after_its_deletion_can_be_deleted_again(engine: KeyValueEngine) -> None:
    offsets = ConsumerOffsetTable(engine)
    put(engine, offsets, "g", QueueId("t", 0), 1)
    batch = engine.batch()
    offsets.delete_topic(batch, "t")
    offsets.stage(batch, "g", QueueId("t", 0), QueueOffset(5))
    engine.write(batch)
    assert offsets.get("g", QueueId("t", 0)) == 5
    batch = engine.batch()
    ConsumerOffsetTable(engine).delete_topic(batch, "t")
    engine.write(batch)
    assert engine.family("offsets").scan(ALL) == []


def test_a_committed_offset_costs_one_row_once_its_pair_is_known() -> None:
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    offsets = ConsumerOffsetTable(engine)
    put(engine, offsets, "g", QueueId("t", 0), 1)
    batch = engine.batch()
    offsets.stage(batch, "g", QueueId("t", 5), QueueOffset(2))
    assert len(batch) == 1


def test_what_is_remembered_of_pairs_is_bounded() -> None:
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    offsets = ConsumerOffsetTable(engine)
    batch = engine.batch()
    for number in range(INDEXED_MAX + 10):
        offsets.stage(batch, f"g{number % 100}", QueueId(f"t{number // 100}", 0), QueueOffset(1))
    known = sum(len(groups) for groups in offsets._indexed.values())
    assert known == offsets._indexed_count
    assert INDEXED_MAX - 100 < known <= INDEXED_MAX


@pytest.mark.parametrize("written", [True, False])
def test_a_light_queue_goes_by_its_keys(monkeypatch: pytest.MonkeyPatch, written: bool) -> None:
    """They go by the hundred thousand, and range deletes in a memtable make each read slower."""
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    offsets = ConsumerOffsetTable(engine)
    batch = engine.batch()
    for topic in ("%LMQ%$P$a", "%LMQ%$P$b"):
        for group in ("g", "h"):
            offsets.stage(batch, group, QueueId(topic, 0), QueueOffset(1))
    if written:
        engine.write(batch)
        batch = engine.batch()
    with monkeypatch.context() as patch:
        patch.delattr(type(batch), "delete_range")
        offsets.delete_topic(batch, "%LMQ%$P$a")
    engine.write(batch)
    assert {queue.topic for _, queue, _ in offsets.all_rows()} == {"%LMQ%$P$b"}
    assert offsets.groups_of("%LMQ%$P$a") == set()
    assert offsets.groups_of("%LMQ%$P$b") == {"g", "h"}
    assert not offsets.reads("g", "%LMQ%$P$a")


NAMES = st.sampled_from(["a", "b", "ab", "a\x00", "ä", "x" * 120])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("stage"), NAMES, NAMES, st.integers(0, 3), st.integers(0, 2**63 - 1)),
        st.tuples(st.just("delete group"), NAMES),
        st.tuples(st.just("delete topic"), NAMES),
        st.tuples(st.just("write")),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(OPERATIONS)
def test_agrees_with_a_dict(operations: list[tuple[object, ...]]) -> None:
    """Whatever is staged, deleted and written in whatever order, also across a restart between batches."""
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    offsets = ConsumerOffsetTable(engine)
    model: dict[tuple[str, QueueId], QueueOffset] = {}
    batch = engine.batch()
    for operation in operations:
        match operation:
            case ("stage", str(group), str(topic), int(number), int(offset)):
                offsets.stage(batch, group, QueueId(topic, number), QueueOffset(offset))
                model[group, QueueId(topic, number)] = QueueOffset(offset)
            case ("delete group", str(group)):
                offsets.delete_group(batch, group)
                model = {key: value for key, value in model.items() if key[0] != group}
            case ("delete topic", str(topic)):
                offsets.delete_topic(batch, topic)
                model = {key: value for key, value in model.items() if key[1].topic != topic}
            case (("write" | "restart") as what,):
                engine.write(batch)
                batch = engine.batch()
                if what == "restart":
                    offsets = ConsumerOffsetTable(engine)
    engine.write(batch)
    assert {(group, queue): offsets.get(group, queue) for group, queue in model} == model
    found = {
        (group, queue): offset
        for group in {"a", "b", "ab", "a\x00", "ä", "x" * 120}
        for queue, offset in offsets.of_group(group)
    }
    assert found == model
