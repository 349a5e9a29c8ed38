"""Offsets by store time, in queues of every kind (docs/formats/consume-queue.md, "Lookup by time")."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.consumequeue.search import TimeBoundary, offset_at_time
from quarry_mq.store.errors import MessageGivenUp, StoreDamaged
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import QueueId
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.settings import StoreSettings
from tests.consumequeue.backings import BACKINGS, Backing
from tests.consumequeue.samples import A0, LITE, physical, put, request
from tests.store.assembly import message

GoldenStore = Callable[[str], Path]
LOWER, UPPER = TimeBoundary.LOWER, TimeBoundary.UPPER
SEGMENT_SIZE = 64 * 1024


class Times:
    """The store times of records 0, 1, … as a log would tell them."""

    def __init__(self, times: Sequence[int], given_up: Sequence[int] = (), damaged: Sequence[int] = ()) -> None:
        self.times = times
        self.given_up = {physical(number) for number in given_up}
        self.damaged = {physical(number) for number in damaged}
        self.reads = 0

    def __call__(self, entry: ConsumeQueueEntry) -> int:
        self.reads += 1
        if entry.physical_offset in self.given_up:
            raise MessageGivenUp("given up")
        if entry.physical_offset in self.damaged:
            raise StoreDamaged(Path("commitlog"), f"the record at offset {entry.physical_offset} is damaged")
        return self.times[entry.physical_offset // 100]


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backing]:
    made = BACKINGS[request.param](tmp_path)
    yield made
    made.close()


def filled(backing: Backing, times: Sequence[int], minimum: int = 0) -> Callable[[int, TimeBoundary], int]:
    """A queue with a message stored at each of the times, and the search in it."""
    queues = backing.open()
    queues.delete_topic(A0.topic)
    if times:
        put(queues, [request(n, A0, n)._replace(store_timestamp_ms=time) for n, time in enumerate(times)])
    queues.set_minimum_physical_offset(physical(minimum))
    in_log = Times(times)
    return lambda time_ms, boundary: offset_at_time(queues, in_log, A0, time_ms, boundary)


@pytest.mark.parametrize(
    ("asked", "lower", "upper"),
    [(5, 0, 0), (10, 0, 0), (15, 1, 0), (20, 1, 2), (25, 3, 2), (30, 3, 3), (31, 4, 3), (-1, 0, 0), (1 << 70, 4, 3)],
)
def test_the_table_of_the_format_page(backing: Backing, asked: int, lower: int, upper: int) -> None:
    """rmq#4890: of equal times the first or the last; rmq#8736: behind the last it is the end and not -1."""
    search = filled(backing, [10, 20, 20, 30])
    assert (search(asked, LOWER), search(asked, UPPER)) == (lower, upper)


def test_an_empty_queue_has_one_place(backing: Backing) -> None:
    search = filled(backing, [])
    assert (search(20, LOWER), search(20, UPPER)) == (0, 0)


@pytest.mark.parametrize(("asked", "lower", "upper"), [(5, 2, 2), (20, 2, 2), (25, 3, 2), (99, 4, 3)])
def test_what_the_log_has_let_go_of_is_not_found(backing: Backing, asked: int, lower: int, upper: int) -> None:
    search = filled(backing, [10, 20, 20, 30], minimum=2)
    assert (search(asked, LOWER), search(asked, UPPER)) == (lower, upper)


def test_a_queue_whose_messages_all_expired_answers_with_its_end(backing: Backing) -> None:
    search = filled(backing, [10, 20, 20, 30], minimum=4)
    assert {search(asked, boundary) for asked in (0, 20, 99) for boundary in TimeBoundary} == {4}


def test_holes_of_light_queues_are_passed_over(backing: Backing) -> None:
    queues = backing.open()
    named = [request(n, A0, n, ("%LMQ%lite", 3 * n))._replace(store_timestamp_ms=10 * n) for n in range(4)]
    put(queues, named)
    in_log = Times([0, 10, 20, 30])
    assert [offset_at_time(queues, in_log, LITE, time, LOWER) for time in (0, 5, 10, 30, 31)] == [0, 3, 3, 9, 10]
    assert [offset_at_time(queues, in_log, LITE, time, UPPER) for time in (0, 5, 10, 30, 31)] == [0, 0, 3, 9, 9]


@given(steps=st.lists(st.integers(0, 3), max_size=40), minimum=st.integers(0, 40), asked=st.integers(-2, 125))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_agrees_with_a_sorted_list(backing: Backing, steps: list[int], minimum: int, asked: int) -> None:
    times = [sum(steps[: n + 1]) for n in range(len(steps))]
    minimum = min(minimum, len(times))
    search = filled(backing, times, minimum)
    assert search(asked, LOWER) == bisect_left(times, asked, minimum)
    assert search(asked, UPPER) == max(minimum, min(bisect_right(times, asked, minimum) - 1, len(times)))


def test_a_damaged_record_is_named_and_one_given_up_passed_over(tmp_path: Path) -> None:
    queues = BACKINGS["files"](tmp_path).open()
    put(queues, [request(n, A0, n) for n in range(9)])
    times = [10 * n for n in range(9)]
    assert offset_at_time(queues, Times(times, given_up=[3, 4, 5]), A0, 40, LOWER) == 6
    assert offset_at_time(queues, Times(times, given_up=range(9)), A0, 40, LOWER) == 9
    with pytest.raises(StoreDamaged, match="offset 400 "):
        offset_at_time(queues, Times(times, damaged=[4]), A0, 40, LOWER)


def test_a_long_queue_costs_few_reads_of_the_log(tmp_path: Path) -> None:
    queues = BACKINGS["files"](tmp_path).open()
    put(queues, [request(n, A0, n) for n in range(5_000)])
    in_log = Times(range(5_000))
    assert offset_at_time(queues, in_log, A0, 4_321, LOWER) == 4_321
    assert in_log.reads <= 15


@pytest.mark.parametrize("mode", list(QueueMode))
def test_a_store_tells_in_every_mode(tmp_path: Path, mode: QueueMode) -> None:
    clock = ManualClock()
    store = opened(tmp_path, clock, mode)
    began_ms = clock.wall_ms()
    for _ in range(10):
        store.messages.append([message(), message()])
        clock.advance(60)
    store.messages.dispatch(store.messages.flush())
    queue = QueueId("orders", 0)
    found = [store.messages.offset_at_time(queue, began_ms + 60_000 * minute, LOWER) for minute in range(11)]
    assert found == [2 * minute for minute in range(10)] + [20]
    assert store.messages.offset_at_time(queue, began_ms + 60_000, UPPER) == 3
    assert store.messages.offset_at_time(QueueId("nobody", 3), began_ms, LOWER) == 0
    assert store.messages.iterate_queues() == [queue], "asking makes no queue (rmq#9792)"
    store.close()


@pytest.mark.parametrize("mode", [QueueMode.FILE, QueueMode.ROCKSDB])
def test_a_store_of_rocketmq_tells_what_its_records_say(golden_copy: GoldenStore, mode: QueueMode) -> None:
    root = golden_copy("file-clean") / "store"
    with OfflineStore.open(PosixDisk(), root) as offline:
        queue = max(offline.queues(), key=lambda each: each[1].maximum - each[1].minimum)[0]
        found = [(each, offline.record_of(each, queue)) for each in offline.entries(queue)]
    stored = [
        (entry.queue_offset, record.store_timestamp_ms) for entry, record in found if isinstance(record, StoredMessage)
    ]
    assert len(stored) == len(found) > 100
    store = opened(root, ManualClock(), mode)
    for asked in sorted({time + shift for _, time in stored for shift in (-1, 0, 1)})[::7]:
        later = [offset for offset, time in stored if time >= asked]
        assert store.messages.offset_at_time(queue, asked, LOWER) == (later[0] if later else stored[-1][0] + 1)
        before = [offset for offset, time in stored if time <= asked]
        assert store.messages.offset_at_time(queue, asked, UPPER) == (before[-1] if before else stored[0][0])
    store.close()


def opened(root: Path, clock: ManualClock, mode: QueueMode) -> OpenStore:
    settings = StoreSettings(root=root, segment_size=SEGMENT_SIZE, queue_mode=mode, units_per_file=16)
    return open_store(settings, disk=PosixDisk(), clock=clock, report=lambda _: None)
