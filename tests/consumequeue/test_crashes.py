"""Whenever a crash comes, the watermark on disk is never ahead of the entries on disk."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quarry_mq.kv import KeyRange
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.consumequeue.queue_offsets import LightFloor, QueueOffsets
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from tests.consumequeue.samples import A0, B0, offsets, physical, put, queues_over, request


@pytest.mark.parametrize("surviving", range(12))
@pytest.mark.parametrize("flush_at", [None, 3, 6])
@pytest.mark.parametrize("half", [False, True])
def test_after_a_crash_the_watermark_is_never_ahead_of_the_entries(
    surviving: int, flush_at: int | None, half: bool
) -> None:
    """rmq#8239 and the second trap of rocksdict: a flush of entries alone may be all that happened."""
    engine = MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY])
    queues = queues_over(engine)
    requests = [request(number, A0 if number % 2 else B0, number // 2) for number in range(10)]
    for number, each in enumerate(requests):
        if number == flush_at:
            queues.flush_entries() if half else queues.flush()
        put(queues, [each])
    engine.crash(surviving)
    recovered = queues_over(engine)
    end = recovered.dispatched_up_to() or PhysicalOffset(0)
    for each in requests:
        if each.physical_offset < end:
            queue = QueueId(each.topic, each.queue_number)
            assert recovered.next_offset(queue) > each.queue_offset
            assert each.queue_offset in offsets(recovered, queue)
    redispatch = [each for each in requests if each.physical_offset >= end]
    if redispatch:
        put(recovered, redispatch)
    assert offsets(recovered, A0) == offsets(recovered, B0) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("surviving", range(4))
@pytest.mark.parametrize("stop_at_flush", [1, 2, 3])
def test_truncation_cut_short_by_a_crash_can_be_repeated(
    surviving: int, stop_at_flush: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY])
    queues = queues_over(engine, physical(2))
    put(queues, [request(number, A0, number) for number in range(10)])
    queues.flush()
    put(queues, [request(number, A0, number) for number in range(10, 20)])
    flushes = 0
    flush = engine.flush

    def failing_flush(names: Sequence[str]) -> None:
        nonlocal flushes
        for name in names:
            flushes += 1
            if flushes == stop_at_flush:
                raise KeyboardInterrupt
            flush([name])

    with monkeypatch.context() as patched:
        patched.setattr(engine, "flush", failing_flush)
        with pytest.raises(KeyboardInterrupt):
            queues.truncate(physical(6))
    engine.crash(surviving)
    recovered = queues_over(engine, physical(2))
    dispatched = recovered.dispatched_up_to()
    assert dispatched is not None
    if dispatched > physical(6):
        recovered.truncate(physical(6))
    assert recovered.bounds(A0) == (2, 6)
    assert offsets(recovered, A0) == [2, 3, 4, 5]


def with_lost_entries(queue: QueueId, count: int) -> MemoryEngine:
    """A power cut took the records and the max offset, and RocksDB had flushed the entries alone."""
    engine = MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY])
    queues = queues_over(engine)
    put(queues, [request(number, queue, number) for number in range(count)])
    queues.flush_entries()
    engine.crash(0)
    assert queues_over(engine).next_offset(queue) == 0
    assert len(list(engine.family(ENTRIES_FAMILY).scan(KeyRange(b"", None)))) == count
    return engine


@pytest.mark.parametrize("surviving", range(4))
def test_a_queue_that_goes_on_at_the_position_of_a_group_shows_no_lost_entries(surviving: int) -> None:
    engine = with_lost_entries(A0, 3)
    queues_over(engine).reserve(A0, QueueOffset(2))
    engine.crash(surviving)
    queues = queues_over(engine)
    queues.reserve(A0, QueueOffset(2))
    assert (queues.bounds(A0), offsets(queues, A0)) == ((2, 2), [])
    put(queues, [request(0, A0, 2)])
    assert (queues.bounds(A0), offsets(queues, A0)) == ((2, 3), [2])


@pytest.mark.parametrize("surviving", range(4))
def test_a_light_queue_that_begins_at_the_floor_shows_no_lost_entries(surviving: int) -> None:
    light = QueueId("%LMQ%lite", 0)
    engine = with_lost_entries(light, 3)
    floor = LightFloor(QueueOffset(5), lambda _: None)
    assert QueueOffsets(queues_over(engine), cached_max=10, light_floor=floor).next_of(light) == 5
    put(queues_over(engine), [request(0, light, 5)])
    engine.crash(surviving)
    queues = queues_over(engine)
    put(queues, [request(0, light, 5)])
    assert (queues.bounds(light), offsets(queues, light)) == ((5, 6), [5])


def test_a_queue_that_goes_on_higher_in_the_log_shows_no_lost_entries() -> None:
    """The log of a primary is copied: its queue was reserved, or began at the floor, which no record shows."""
    engine = with_lost_entries(A0, 3)
    queues = queues_over(engine, cached=1)
    queues.put_again([request(0, A0, 5), request(1, B0, 0), request(2, A0, 6)], physical(3))
    assert (queues.bounds(A0), offsets(queues, A0)) == ((5, 7), [5, 6])
    assert (queues.bounds(B0), offsets(queues, B0)) == ((0, 1), [0])
