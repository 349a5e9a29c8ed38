"""Every consume queue store keeps its contract (store/consumequeue/protocol.py).

Runs on the RocksDB layout over RocksDB and over the engine in memory, with and without what the native part remembers,
and on files.
"""

from __future__ import annotations

import errno
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarry_mq.kv import EngineFull, KvError
from quarry_mq.store.consumequeue import (
    ConsumeQueueEntry,
    ConsumeQueueStore,
    DoubleWriteConsumeQueues,
    FileConsumeQueues,
    RocksConsumeQueues,
)
from quarry_mq.store.fs.posix import PosixSparseFile
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueBounds, QueueId, QueueOffset
from tests.consumequeue.backings import Backing, EngineBacking
from tests.consumequeue.samples import A0, A1, B0, LITE, offsets, physical, put, request
from tests.consumequeue.samples import entry as timed_entry


def entries(queues: ConsumeQueueStore, queue: QueueId, start: int = 0, limit: int = 10) -> list[ConsumeQueueEntry]:
    """Return entries without the store times, which files do not have."""
    return [each._replace(store_timestamp_ms=None) for each in queues.entries(queue, QueueOffset(start), limit)]


def entry(number: int, at: int) -> ConsumeQueueEntry:
    return timed_entry(number, at)._replace(store_timestamp_ms=None)


def three_in_a0(queues: ConsumeQueueStore) -> None:
    put(queues, [request(0, A0, 0), request(1, B0, 0), request(2, A0, 1), request(3, A0, 2)])


def test_a_new_store_is_empty(queues: ConsumeQueueStore) -> None:
    assert queues.dispatched_up_to() is None
    assert queues.bounds(A0) == QueueBounds(QueueOffset(0), QueueOffset(0))
    assert queues.next_offset(A0) == 0
    assert entries(queues, A0, 0, 10) == []
    assert list(queues.queues()) == []


def test_a_query_makes_no_queue(backing: Backing, queues: ConsumeQueueStore) -> None:
    """rmq#9792: asking about a deleted topic brought it back."""
    queues.bounds(A0)
    entries(queues, A0, 0, 10)
    assert list(queues.queues()) == []
    assert list(backing.open().queues()) == []


def test_put_stores_entries_bounds_and_watermark(queues: ConsumeQueueStore) -> None:
    """rmq#8698: each round is visible when put returns, however few requests it has."""
    three_in_a0(queues)
    assert entries(queues, A0, 0, 10) == [entry(0, 0), entry(2, 1), entry(3, 2)]
    assert entries(queues, B0, 0, 10) == [entry(1, 0)]
    assert queues.bounds(A0) == (0, 3)
    assert queues.next_offset(B0) == 1
    assert queues.dispatched_up_to() == physical(4)


def test_what_was_put_is_there_after_reopening(backing: Backing, queues: ConsumeQueueStore) -> None:
    three_in_a0(queues)
    again = backing.open()
    assert again.bounds(A0) == (0, 3)
    assert offsets(again, A0) == [0, 1, 2]
    assert again.dispatched_up_to() == physical(4)


def test_put_is_idempotent(queues: ConsumeQueueStore) -> None:
    queues.put([request(0, A0, 0), request(0, A0, 0)], physical(1))
    queues.put([request(0, A0, 0)], physical(1))
    assert queues.bounds(A0) == (0, 1)
    assert entries(queues, A0, 0, 10) == [entry(0, 0)]


def test_repeating_an_old_request_does_not_lower_the_maximum(backing: Backing, queues: ConsumeQueueStore) -> None:
    three_in_a0(queues)
    put(queues, [request(0, A0, 0)])
    assert queues.bounds(A0) == (0, 3)
    assert backing.open().bounds(A0) == (0, 3)


def test_an_empty_batch_moves_the_watermark(queues: ConsumeQueueStore) -> None:
    queues.put([], physical(7))
    assert queues.dispatched_up_to() == physical(7)
    assert list(queues.queues()) == []


def test_light_queues_get_entries_of_the_same_record(queues: ConsumeQueueStore) -> None:
    put(queues, [request(0, A0, 0, ("%LMQ%lite", 0), ("%LMQ%other", 4)), request(1, A0, 1, ("%LMQ%lite", 1))])
    assert entries(queues, LITE, 0, 10) == [entry(0, 0), entry(1, 1)]
    assert queues.bounds(QueueId("%LMQ%other", 0)) == (4, 5)


def test_a_hole_is_passed_over(queues: ConsumeQueueStore) -> None:
    """A message naming a light queue twice leaves one number unused."""
    put(queues, [request(0, A0, 0, ("%LMQ%lite", 0)), request(1, A0, 1, ("%LMQ%lite", 2))])
    assert offsets(queues, LITE) == [0, 2]
    assert entries(queues, LITE, 1, 10) == entries(queues, LITE, 1, 1) == [entry(1, 2)]
    assert queues.bounds(LITE) == (0, 3)


@pytest.mark.parametrize(
    ("start", "limit", "expected"),
    [(0, 2, [0, 1]), (1, 10, [1, 2]), (2, 1, [2]), (3, 10, []), (99, 10, []), (0, 0, [])],
)
def test_entries_are_a_range(queues: ConsumeQueueStore, start: int, limit: int, expected: list[int]) -> None:
    three_in_a0(queues)
    assert [each.queue_offset for each in entries(queues, A0, start, limit)] == expected


def test_neighbouring_queues_do_not_mix(queues: ConsumeQueueStore) -> None:
    neighbours = [QueueId("T", 0), QueueId("T", 1), QueueId("T", 256), QueueId("U", 0), QueueId("TT", 0)]
    put(queues, [request(number, queue, 0) for number, queue in enumerate(neighbours)])
    for number, queue in enumerate(neighbours):
        assert entries(queues, queue, 0, 10) == [entry(number, 0)]


def test_queues_are_listed_in_key_order(queues: ConsumeQueueStore) -> None:
    given_in = [QueueId("Zebra", 0), QueueId("T", 1), QueueId("T", 0), QueueId("主题", 3), QueueId("%LMQ%x", 0)]
    put(queues, [request(number, queue, 0) for number, queue in enumerate(given_in)])
    expected = sorted(given_in, key=lambda queue: (len(queue.topic.encode()), queue.topic.encode(), queue.number))
    assert list(queues.queues()) == expected
    assert list(queues.queues("T")) == queues.queues_of("T") == [QueueId("T", 0), QueueId("T", 1)]
    assert list(queues.queues("Z")) == queues.queues_of("Z") == []


def test_where_queues_end_is_told_by_number(queues: ConsumeQueueStore) -> None:
    numbers = [7, 0, 300, 2]
    put(queues, [request(at, QueueId("TopicA", number), 0) for at, number in enumerate(numbers)])
    put(queues, [request(9, QueueId("TopicA", 2), 1), request(10, QueueId("TopicAA", 1), 0)])
    ends = [(0, physical(1)), (2, physical(9)), (7, physical(0)), (300, physical(2))]
    assert queues.ends("TopicA", -1, 10) == ends
    assert queues.ends("TopicA", -1, 2) == ends[:2]
    assert queues.ends("TopicA", 2, 1) == ends[2:3]
    assert queues.ends("TopicA", 300, 10) == queues.ends("TopicA", 2**31 - 1, 10) == queues.ends("Topic", -1, 10) == []
    queues.set_minimum_physical_offset(physical(5))
    assert queues.ends("TopicA", -1, 10) == ends, "also of what has expired"


# -- the log's minimum


def test_entries_below_the_logs_minimum_are_invisible_at_once(queues: ConsumeQueueStore) -> None:
    three_in_a0(queues)
    queues.set_minimum_physical_offset(physical(2))
    assert queues.bounds(A0) == (1, 3)
    assert entries(queues, A0, 0, 10) == [entry(2, 1), entry(3, 2)]
    assert entries(queues, A0, 0, 1) == [entry(2, 1)], "the limit counts visible entries"


def test_a_queue_whose_entries_all_expired_is_empty_at_its_maximum(queues: ConsumeQueueStore) -> None:
    """rmq#8753, rmq#4215: numbering goes on, consumers are not thrown back to 0."""
    three_in_a0(queues)
    queues.set_minimum_physical_offset(physical(4))
    assert queues.bounds(A0) == (3, 3)
    assert entries(queues, A0, 0, 10) == []
    assert queues.next_offset(A0) == 3
    put(queues, [request(4, A0, 3)])
    assert queues.bounds(A0) == (3, 4)
    assert offsets(queues, A0) == [3]


def test_the_minimum_between_two_records(queues: ConsumeQueueStore) -> None:
    three_in_a0(queues)
    queues.set_minimum_physical_offset(PhysicalOffset(physical(2) + 1))
    assert queues.bounds(A0) == (2, 3)


def test_a_minimum_that_goes_back_shows_entries_again(queues: ConsumeQueueStore) -> None:
    three_in_a0(queues)
    queues.set_minimum_physical_offset(physical(3))
    assert queues.bounds(A0) == (2, 3)
    queues.set_minimum_physical_offset(physical(0))
    assert queues.bounds(A0) == (0, 3)


# -- deletion and truncation


def test_a_deleted_topic_is_gone_with_all_its_queues(backing: Backing, queues: ConsumeQueueStore) -> None:
    """rmq#9454, rmq#9457: queues not touched since the start kept their data."""
    put(queues, [request(0, A0, 0), request(1, A1, 0), request(2, B0, 0), request(3, QueueId("TopicAA", 0), 0)])
    fresh = backing.open()
    fresh.delete_topic("TopicA")
    assert list(fresh.queues()) == [B0, QueueId("TopicAA", 0)]
    for queue in (A0, A1):
        assert fresh.bounds(queue) == (0, 0)
        assert offsets(fresh, queue) == []
    assert offsets(fresh, B0) == [0]
    assert fresh.dispatched_up_to() == physical(4)


def test_a_deleted_topic_begins_again(queues: ConsumeQueueStore) -> None:
    three_in_a0(queues)
    assert queues.bounds(A0) == (0, 3)
    queues.delete_topic("TopicA")
    assert queues.next_offset(A0) == 0
    put(queues, [request(9, A0, 0)])
    assert entries(queues, A0, 0, 10) == [entry(9, 0)]


def test_the_checkpoint_is_no_topic(queues: ConsumeQueueStore) -> None:
    three_in_a0(queues)
    for use in (
        lambda: queues.delete_topic("CHECKPOINT_TOPIC"),
        lambda: put(queues, [request(9, QueueId("CHECKPOINT_TOPIC", 0), 0)]),
        lambda: queues.bounds(QueueId("CHECKPOINT_TOPIC", 0)),
    ):
        with pytest.raises(ValueError, match="CHECKPOINT_TOPIC"):
            use()
    assert queues.dispatched_up_to() == physical(4)
    assert all(queue.topic != "CHECKPOINT_TOPIC" for queue in queues.queues())


@pytest.mark.parametrize(("end", "expected"), [(0, 0), (1, 1), (2, 1), (3, 2), (4, 3), (9, 3)])
def test_truncate_keeps_what_lies_below(backing: Backing, queues: ConsumeQueueStore, end: int, expected: int) -> None:
    """rmq#10417, and RocketMQ's own search, which let the maximum fall to the minimum when it met `end` itself."""
    three_in_a0(queues)
    queues.truncate(physical(end))
    for store in (queues, backing.open()):
        assert store.bounds(A0) == (0, expected)
        assert offsets(store, A0) == list(range(expected))
        assert store.bounds(B0) == (0, 1 if end > 1 else 0)
        assert store.dispatched_up_to() == physical(min(end, 4))


def test_truncate_in_the_middle_of_a_long_queue(queues: ConsumeQueueStore) -> None:
    put(queues, [request(number, A0, number) for number in range(500)])
    queues.truncate(physical(123))
    assert queues.bounds(A0) == (0, 123)
    put(queues, [request(number, A0, number) for number in range(123, 130)])
    assert offsets(queues, A0) == list(range(130))


def test_truncate_of_a_queue_whose_beginning_expired_keeps_its_next_offset(queues: ConsumeQueueStore) -> None:
    put(queues, [request(number, A0, number) for number in range(10)])
    queues.set_minimum_physical_offset(physical(4))
    queues.truncate(physical(6))
    assert queues.bounds(A0) == (4, 6)
    queues.truncate(physical(4))
    assert queues.bounds(A0) == (4, 4)
    assert queues.next_offset(A0) == 4


def test_truncate_of_more_queues_than_a_batch_takes(queues: ConsumeQueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarry_mq.store.consumequeue.rocks.store.QUEUES_PER_BATCH", 3)
    put(queues, [request(number, QueueId("TopicA", number % 20), number // 20) for number in range(40)])
    queues.truncate(physical(20))
    assert [queues.bounds(queue) for queue in queues.queues()] == [(0, 1)] * 20
    assert queues.dispatched_up_to() == physical(20)


# -- completing a database that began in the middle of the log


def test_put_missing_fills_in_below_and_leaves_the_watermark(queues: ConsumeQueueStore) -> None:
    put(queues, [request(5, A0, 5), request(6, A0, 6)])
    assert queues.bounds(A0) == (5, 7)
    queues.put_missing([request(number, A0, number) for number in range(5)] + [request(4, A1, 0)])
    assert queues.bounds(A0) == (0, 7)
    assert offsets(queues, A0) == list(range(7))
    assert queues.bounds(A1) == (0, 1)
    assert queues.dispatched_up_to() == physical(7)
    queues.put_missing([])
    assert queues.dispatched_up_to() == physical(7)


def test_last_entry_below(queues: ConsumeQueueStore) -> None:
    put(queues, [request(0, A0, 0), request(2, A0, 1), request(4, A0, 3), request(6, A0, 4)])

    def last_below(number: int) -> ConsumeQueueEntry | None:
        found = queues.last_entry_below(A0, physical(number))
        return None if found is None else found._replace(store_timestamp_ms=None)

    found = {number: last_below(number) for number in (0, 1, 3, 4, 5, 6, 99)}
    assert found == {
        0: None,
        1: entry(0, 0),
        3: entry(2, 1),
        4: entry(2, 1),
        5: entry(4, 3),
        6: entry(4, 3),
        99: entry(6, 4),
    }
    queues.set_minimum_physical_offset(physical(4))
    assert queues.last_entry_below(A0, physical(4)) is None
    assert queues.last_entry_below(B0, physical(4)) is None


# -- bounded memory


def cached(queues: ConsumeQueueStore) -> int:
    """Return the number of queues that are known in memory, in the larger of both caches where there are two."""
    if isinstance(queues, DoubleWriteConsumeQueues):
        return max(cached(each) for each in (queues.files, queues.rocks) if each is not None)
    if isinstance(queues, RocksConsumeQueues):
        return len(list(queues._bounds))
    assert isinstance(queues, FileConsumeQueues)
    return len(list(queues._cache))


def test_the_cache_is_bounded_and_forgets_nothing_that_matters(backing: Backing) -> None:
    small = backing.open(cached=4)
    for round_number in range(3):
        put(small, [request(round_number * 50 + n, QueueId("TopicA", n), round_number) for n in range(50)])
    assert cached(small) <= 4 + 1
    assert [small.bounds(QueueId("TopicA", n)) for n in range(50)] == [(0, 3)] * 50
    assert cached(small) <= 4 + 1


def test_a_failed_write_leaves_cache_and_store_agreeing(
    backing: Backing, queues: ConsumeQueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_in_a0(queues)

    def refuse(*_: object, **__: object) -> None:
        if isinstance(backing, EngineBacking):
            raise EngineFull("disk full")
        raise OSError(errno.ENOSPC, "disk full", "a file")

    with monkeypatch.context() as patched:
        writer = type(backing.engine) if isinstance(backing, EngineBacking) else PosixSparseFile
        patched.setattr(writer, "write", refuse)
        with pytest.raises(KvError, match="full"):
            put(queues, [request(4, A0, 3)])
    assert queues.bounds(A0) == (0, 3)
    put(queues, [request(4, A0, 3)])
    assert queues.bounds(A0) == (0, 4)


# -- a model


class Model:
    """The model does the same operations on a list of requests."""

    def __init__(self) -> None:
        self.log: list[tuple[int, QueueId]] = []
        self.next: dict[QueueId, int] = defaultdict(int)
        self.entries: dict[QueueId, dict[int, int]] = defaultdict(dict)
        self.minimum = 0

    def visible(self, queue: QueueId) -> list[int]:
        return sorted(at for at, number in self.entries[queue].items() if number >= self.minimum)

    def bounds(self, queue: QueueId) -> tuple[int, int]:
        visible = self.visible(queue)
        return (visible[0] if visible else self.next[queue], self.next[queue])


QUEUES = [A0, A1, B0, LITE]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.sampled_from(QUEUES), min_size=1, max_size=8)),
        st.tuples(st.just("minimum"), st.integers(0, 60)),
        st.tuples(st.just("truncate"), st.integers(0, 60)),
        st.tuples(st.just("delete"), st.sampled_from(["TopicA", "TopicB"])),
        st.tuples(st.just("replay"), st.integers(1, 10)),
        st.tuples(st.sampled_from(["flush", "reopen"]), st.just(0)),
    ),
    max_size=25,
)


@given(steps=STEPS)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_agrees_with_the_model(backing: Backing, steps: list[tuple[str, object]]) -> None:
    queues = backing.open()
    for queue in list(queues.queues()):
        queues.delete_topic(queue.topic)
    queues.put([], physical(0))
    model = Model()
    number = 0
    recent: list[DispatchRequest] = []
    for kind, value in steps:
        match kind, value:
            case "put", list(touched):
                batch_requests: list[DispatchRequest] = []
                for queue in touched:
                    at = queues.next_offset(queue) + sum(
                        (each.topic, each.queue_number) == queue for each in batch_requests
                    )
                    assert at == model.next[queue]
                    batch_requests.append(request(number, queue, at))
                    model.entries[queue][at] = number
                    model.next[queue] = at + 1
                    number += 1
                put(queues, batch_requests)
                recent += batch_requests
            case "replay", int(count):
                if recent[-count:]:
                    put(queues, recent[-count:])
            case "minimum", int(minimum):
                model.minimum = max(model.minimum, min(minimum, number))
                queues.set_minimum_physical_offset(physical(model.minimum))
            case "truncate", int(end):
                end = max(end, model.minimum)
                queues.truncate(physical(end))
                number = min(number, end)
                recent = [each for each in recent if each.physical_offset < physical(end)]
                for queue in QUEUES:
                    gone = [at for at, each in model.entries[queue].items() if each >= end]
                    model.entries[queue] = {at: each for at, each in model.entries[queue].items() if each < end}
                    if gone:
                        model.next[queue] = min(gone)
            case "delete", str(topic):
                queues.delete_topic(topic)
                recent = [each for each in recent if each.topic != topic]
                for queue in QUEUES:
                    if queue.topic == topic:
                        model.entries.pop(queue, None)
                        model.next.pop(queue, None)
            case "flush", _:
                queues.flush_entries()
                queues.flush()
            case _:
                queues = backing.open(physical(model.minimum), cached=2)
        for queue in QUEUES:
            assert queues.bounds(queue) == model.bounds(queue)
            assert offsets(queues, queue) == model.visible(queue)
        assert sorted(queues.queues()) == sorted(queue for queue in QUEUES if model.next[queue])


def test_a_queue_that_was_deleted_and_began_again_is_told_by_the_log(queues: ConsumeQueueStore) -> None:
    """A crash can take the deletion back; the entries from before it must not stand among those from after it."""
    put(queues, [request(number, A0, number, ("%LMQ%lite", number)) for number in range(5)])
    again = [request(5, A0, 5), request(6, B0, 0), request(7, A0, 0), request(8, A0, 1), request(9, B0, 1)]
    queues.put_again(again, physical(10))
    assert [each.physical_offset for each in queues.entries(A0, QueueOffset(0), 10)] == [physical(7), physical(8)]
    assert queues.bounds(A0) == QueueBounds(QueueOffset(0), QueueOffset(2))
    assert offsets(queues, B0) == [0, 1]
    assert offsets(queues, LITE) == [0, 1, 2, 3, 4]
    assert queues.dispatched_up_to() == physical(10)
    queues.put_again(again, physical(10))
    assert offsets(queues, A0) == [0, 1]


@pytest.mark.parametrize("stored", [1, 3, 5])
def test_entries_from_further_on_in_the_log_do_not_stand_among_those_put_again(
    queues: ConsumeQueueStore, stored: int
) -> None:
    """The queue was deleted and began anew; a power cut took the log's end, and with it what the queue got then.

    Its older records are put again, since the log does not tell of the deletion.
    """
    put(queues, [request(20 + number, A0, number, ("%LMQ%lite", number)) for number in range(stored)])
    queues.put_again([request(5, A0, 3), request(6, A0, 4), request(7, B0, 0)], physical(8))
    assert [each.physical_offset for each in queues.entries(A0, QueueOffset(0), 10)] == [physical(5), physical(6)]
    assert queues.next_offset(A0) == 5
    assert offsets(queues, LITE) == list(range(stored))
    queues.truncate(physical(8))
    assert offsets(queues, A0) == [3, 4]
    assert offsets(queues, B0) == [0]


def test_requests_that_are_put_again_in_their_order_change_nothing(queues: ConsumeQueueStore) -> None:
    requests = [request(number, A0, number, ("%LMQ%lite", 2 * number)) for number in range(6)]
    put(queues, requests)
    for begin in range(6):
        queues.put_again(requests[begin:], physical(6))
        assert offsets(queues, A0) == [0, 1, 2, 3, 4, 5]
        assert offsets(queues, LITE) == [0, 2, 4, 6, 8, 10]
