"""New messages write the same into RocksDB with the native part, and queues are known the same afterwards."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarry_mq.kv import KeyRange
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.names import CHECKPOINT_TOPIC
from quarry_mq.store.consumequeue import RocksConsumeQueues
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY, keys_of
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.native import Native
from tests.consumequeue.samples import A0, A1, B0, LITE, entry, put, queues_over, request

QUEUES = [A0, A1, B0, QueueId("é", 2**31 - 1), QueueId("x" * 255, 0)]
LIGHTS = [LITE, QueueId("%LMQ%é", 0), QueueId("%LMQ%" + "y" * 250, 0), QueueId("%LMQ%" + "z" * 251, 0)]
"""The last one's name is one that no topic can have, so a round with it is left to Python."""

NEW_MESSAGES = st.tuples(
    st.sampled_from(QUEUES),
    st.integers(0, 6),
    st.lists(st.tuples(st.sampled_from(LIGHTS), st.integers(0, 6)), max_size=3, unique_by=lambda light: light[0]),
)
BATCHES = st.lists(st.lists(NEW_MESSAGES, min_size=1, max_size=12), max_size=6)


def families() -> MemoryEngine:
    return MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY])


def contents(engine: MemoryEngine) -> list[list[tuple[bytes, bytes]]]:
    return [engine.family(name).scan(KeyRange(b"", None)) for name in (ENTRIES_FAMILY, OFFSET_FAMILY)]


@given(
    batches=BATCHES,
    looked_at=st.sets(st.sampled_from([*QUEUES, *LIGHTS])),
    forgotten=st.sets(st.sampled_from([*QUEUES, *LIGHTS])),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_writes_what_python_writes(
    native: Native,
    batches: list[list[tuple[QueueId, int, list[tuple[QueueId, int]]]]],
    looked_at: set[QueueId],
    forgotten: set[QueueId],
) -> None:
    """Offsets go up and down as where a stretch of the log is dispatched again."""
    engines = families(), families()
    plain, helped = queues_over(engines[0]), queues_over(engines[1])
    helped.use(native)
    table = helped._bounds._table
    assert table is not None
    number = 0
    for each in batches:
        for queues in (plain, helped):
            # as an append does it
            assert queues.next_offsets([queue for queue, _, _ in each]) == [
                plain.next_offset(queue) for queue, _, _ in each
            ]
        requests = []
        for queue, offset, lights in each:
            requests.append(request(number, queue, offset, *((light.topic, at) for light, at in lights)))
            number += 1
        for queues in (plain, helped):
            put(queues, requests)
        for queue in looked_at:
            assert helped.bounds(queue) == plain.bounds(queue)
        for queue in forgotten:
            table.remove(keys_of(queue)[1])
        assert contents(engines[0]) == contents(engines[1])
    for queue in [*QUEUES, *LIGHTS]:
        assert helped.bounds(queue) == plain.bounds(queue)
        assert helped.next_offset(queue) == plain.next_offset(queue)
        assert helped.last_entry_below(queue, PhysicalOffset(2**40)) == plain.last_entry_below(
            queue, PhysicalOffset(2**40)
        )


def test_of_the_max_offsets_those_that_would_go_back_are_left_out_and_unknown_ones_named(native: Native) -> None:
    table = native.MaxOffsetTable(8)
    known = keys_of(A0)[1]
    table.put_all([(known, bytes(8) + (5).to_bytes(8, "big"))])
    staged = table.stage([request(1, A0, 4), request(2, B0, 7), request(3, B0, 8)])
    assert staged is not None
    entries, max_offsets, last, unknown = staged
    assert [len(key) - len(keys_of(queue)[0]) for (key, _), queue in zip(entries, (A0, B0, B0), strict=True)] == [8] * 3
    assert (max_offsets, unknown) == ([], [1])
    assert last == [(A0, 4, 100), (B0, 8, 300)]
    assert table.ends([A0, B0]) == [6, None]
    staged = table.stage([request(1, A0, 5)])
    assert staged is not None
    assert staged[1] == [(known, (100).to_bytes(8, "big") + (5).to_bytes(8, "big"))]


@pytest.mark.parametrize("topic", [CHECKPOINT_TOPIC, "x" * 256, "\ud800"])
def test_names_that_no_topic_can_have_are_left_to_python(native: Native, topic: str) -> None:
    table = native.MaxOffsetTable(8)
    assert table.stage([request(1, A0, 0), request(2, QueueId(topic, 0), 0)]) is None
    assert table.ends([A0, (topic, 0)]) is None


def test_a_message_has_an_entry_in_each_of_its_light_queues(native: Native) -> None:
    table, other = native.MaxOffsetTable(8), QueueId("%LMQ%other", 0)
    staged = table.stage(
        [request(1, A0, 4, (LITE.topic, 7), (other.topic, 2)), request(2, A0, 5, (LITE.topic, 8)), request(3, B0, 0)]
    )
    assert staged is not None
    entries, max_offsets, last, unknown = staged
    queues = [A0, LITE, other, A0, LITE, B0]
    assert [key[:-8] for key, _ in entries] == [keys_of(queue)[0] for queue in queues]
    assert [int.from_bytes(key[-8:], "big") for key, _ in entries] == [4, 7, 2, 5, 8, 0]
    assert [int.from_bytes(entry[:8], "big") for _, entry in entries] == [100, 100, 100, 200, 200, 300]
    assert last == [(A0, 5, 200), (LITE, 8, 200), (other, 2, 100), (B0, 0, 300)]
    assert (max_offsets, unknown) == ([], [0, 1, 2, 3])


@pytest.mark.parametrize("name", [CHECKPOINT_TOPIC, "x" * 256, "\ud800"])
def test_light_queues_that_no_topic_can_be_called_as_are_left_to_python(native: Native, name: str) -> None:
    assert native.MaxOffsetTable(8).stage([request(1, A0, 0, (LITE.topic, 0), (name, 0))]) is None


def test_a_queue_without_a_message_is_looked_for_once(native: Native) -> None:
    engine = families()
    queues = queues_over(engine)
    queues.use(native)
    assert queues.next_offsets([A0, B0]) == [0, 0]
    table = queues._bounds._table
    assert table is not None
    assert table.ends([A0, B0, A1]) == [0, 0, None]
    put(queues, [request(0, A0, 0)])
    assert queues.next_offsets([A0, B0]) == [1, 0]
    assert queues.entries(A0, QueueOffset(0), 8) == [entry(0, 0)]


def test_a_put_that_fails_changes_nothing_that_is_known(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = families()
    queues: RocksConsumeQueues = queues_over(engine)
    queues.use(native)
    put(queues, [request(0, A0, 0)])
    requests: list[DispatchRequest] = [request(1, A0, 1)]

    def fail(*_: object, **__: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(engine, "write", fail)
        with pytest.raises(OSError, match="no room"):
            put(queues, requests)
    assert queues.next_offsets([A0]) == [1]
    assert queues.next_offset(A0) == 1
    put(queues, requests)
    assert queues.next_offsets([A0]) == [2]
