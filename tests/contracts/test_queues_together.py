"""A read of several consume queues at once gives what reads of each give (store/consumequeue/protocol.py)."""

from __future__ import annotations

import pytest

from quarry_mq.store.consumequeue import ConsumeQueueStore
from quarry_mq.store.message import QueueExtent, QueueId, QueueOffset
from tests.consumequeue.backings import Backing
from tests.consumequeue.samples import A0, A1, B0, physical, put, request


def extent_of(store: ConsumeQueueStore, queue: QueueId) -> QueueExtent:
    """Asked for alone."""
    minimum, maximum = store.bounds(queue)
    entries = store.entries(queue, minimum, 1)
    return QueueExtent(minimum, maximum, entries[0].physical_offset if entries else None)


@pytest.mark.parametrize("minimum", [0, 1, 2, 3])
def test_extents_of_many_queues_are_those_of_each(backing: Backing, minimum: int) -> None:
    asked = [A0, A1, B0, QueueId("never", 3)]
    first = backing.open()
    put(first, [request(0, A0, 0), request(1, B0, 0), request(2, A0, 1), request(3, A0, 2), request(4, B0, 1)])
    together = backing.open(minimum=physical(minimum))
    found = together.extents_of_all(asked)
    assert found == [extent_of(together, queue) for queue in asked]
    assert found == [extent_of(backing.open(minimum=physical(minimum)), queue) for queue in asked]
    first_record = physical([0, 2, 2, 3][minimum])
    assert found[0] == QueueExtent(QueueOffset((minimum + 1) // 2), QueueOffset(3), first_record)
    together.set_minimum_physical_offset(physical(3))
    assert together.extents_of_all([A0]) == [QueueExtent(QueueOffset(2), QueueOffset(3), physical(3))]
    together.set_minimum_physical_offset(physical(5))
    assert together.extents_of_all(asked) == [extent_of(together, queue) for queue in asked]
    assert together.extents_of_all([A0]) == [QueueExtent(QueueOffset(3), QueueOffset(3), None)]


def test_next_offsets_of_many_queues_are_those_of_each(queues: ConsumeQueueStore) -> None:
    put(queues, [request(0, A0, 0), request(1, B0, 0), request(2, A0, 1), request(3, A0, 2)])
    asked = [B0, QueueId("unknown", 3), A0, B0]
    for _ in range(2):
        assert queues.next_offsets(asked) == [queues.next_offset(queue) for queue in asked] == [1, 0, 3, 1]
    assert queues.next_offsets([]) == []
    assert QueueId("unknown", 3) not in list(queues.queues())


@pytest.mark.parametrize("count", [15, 16, 17, 40])
def test_all_queues_of_a_topic_are_told_however_many(backing: Backing, count: int) -> None:
    put(backing.open(), [request(number, QueueId("orders", number), 0) for number in range(count)])
    queues = backing.open()
    assert queues.queues_of("orders") == [QueueId("orders", number) for number in range(count)]
    put(queues, [request(count, QueueId("orders", 3), 1)])
    queues.queues_of("orders")
    assert queues.next_offset(QueueId("orders", 3)) == 2
