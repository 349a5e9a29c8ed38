"""Whenever a crash comes, the watermark on disk is never ahead of the entries on disk."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY
from quarry_mq.store.message import PhysicalOffset, QueueId
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
