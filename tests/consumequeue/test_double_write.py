"""Queues kept twice: who is read, who numbers, and what a difference between the two means."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.kv import EngineFull
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.consumequeue import DoubleWriteConsumeQueues
from quarry_mq.store.message import QueueId
from tests.consumequeue.backings import DoubleBacking, files_of, rocks_of
from tests.consumequeue.samples import A0, B0, LITE, offsets, physical, put, request

SLASH = QueueId("%LMQ%a/b", 0)


@pytest.fixture
def backing(tmp_path: Path) -> DoubleBacking:
    return DoubleBacking(tmp_path, read_rocks=False)


def test_recovery_begins_at_the_older_watermark(backing: DoubleBacking) -> None:
    queues = backing.open()
    files, rocks = files_of(queues), rocks_of(queues)
    assert queues.dispatched_up_to() is None
    put(rocks, [request(0, A0, 0)])
    assert queues.dispatched_up_to() is None, "the files have nothing yet: all of the log is to come"
    put(files, [request(0, A0, 0), request(1, A0, 1)])
    assert queues.dispatched_up_to() == physical(1)


def test_the_one_that_is_read_answers_and_the_one_that_assigns_gives_offsets(backing: DoubleBacking) -> None:
    queues = backing.open()
    files, rocks = files_of(queues), rocks_of(queues)
    put(files, [request(number, A0, number) for number in range(3)])
    put(rocks, [request(2, A0, 2)])
    assert (offsets(queues, A0), queues.bounds(A0)) == ([0, 1, 2], (0, 3))
    queues.read_rocks = True
    assert (offsets(queues, A0), queues.bounds(A0)) == ([2], (2, 3))
    put(files, [request(3, A0, 3)])
    assert queues.next_offset(A0) == 4
    queues.assign_rocks = True
    assert queues.next_offset(A0) == 3


def test_queues_that_only_one_can_have(backing: DoubleBacking) -> None:
    """rmq#10450: double write for some topics; names with a slash are light queues of RocksDB alone."""
    both = backing.open()
    queues = DoubleWriteConsumeQueues(
        both.files, both.rocks, read_rocks=True, assign_rocks=True, doubled=lambda topic: topic != "TopicB"
    )
    files, rocks = files_of(queues), rocks_of(queues)
    put(queues, [request(0, A0, 0, (SLASH.topic, 0), (LITE.topic, 0)), request(1, B0, 0)])
    assert list(files.queues()) == [A0, B0, LITE]
    assert list(rocks.queues()) == [A0, SLASH, LITE]
    assert list(queues.queues()) == [A0, B0, SLASH, LITE]
    for queue in (A0, B0, SLASH, LITE):
        assert offsets(queues, queue) == [0]
        assert queues.next_offset(queue) == 1
    queues.read_rocks = queues.assign_rocks = False
    for queue in (A0, B0, SLASH, LITE):
        assert offsets(queues, queue) == [0]
        assert queues.next_offset(queue) == 1


@pytest.mark.parametrize("read_rocks", [False, True])
def test_a_put_that_the_second_refuses_is_put_again(
    backing: DoubleBacking, monkeypatch: pytest.MonkeyPatch, read_rocks: bool
) -> None:
    queues = backing.open()
    queues.read_rocks = queues.assign_rocks = read_rocks
    put(queues, [request(0, A0, 0)])

    def refuse(*_: object, **__: object) -> None:
        raise EngineFull("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryEngine, "write", refuse)
        with pytest.raises(EngineFull):
            put(queues, [request(1, A0, 1)])
    assert queues.dispatched_up_to() == physical(1)
    put(queues, [request(1, A0, 1)])
    assert queues.dispatched_up_to() == physical(2)
    assert [offsets(each, A0) for each in (files_of(queues), rocks_of(queues))] == [[0, 1], [0, 1]]
