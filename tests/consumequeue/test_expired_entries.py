"""Entries whose records the log no longer has leave RocksDB, as RocketMQ's compaction filter would have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.consumequeue import RocksConsumeQueues, open_consume_queue_engine
from quarry_mq.store.consumequeue.rocks.expired_entries import ExpiredEntries
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, ENTRY, ENTRY_SIZE, OFFSET_FAMILY
from quarry_mq.store.message import PhysicalOffset, QueueId
from tests.consumequeue.samples import A0, A1, B0, LITE, offsets, physical, put, queues_over, request

ALL = KeyRange(b"", None)


def memory() -> MemoryEngine:
    return MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY])


@pytest.fixture(params=["memory", "rocks"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValueEngine]:
    made: KeyValueEngine = memory() if request.param == "memory" else open_consume_queue_engine(tmp_path, create=True)
    yield made
    made.close()


def run_sweep(queues: RocksConsumeQueues, rows_max: int = 3) -> tuple[int, int]:
    """All steps of a round; returns how many queues were looked at and how many units went."""
    search, key, seen, gone = queues.expired_entries(), b"", 0, 0
    while True:
        found = search.step(key, rows_max=rows_max)
        drop(queues, found)
        seen, gone = seen + found.queues, gone + found.entries
        if found.next_key is None:
            return seen, gone
        key = found.next_key


def drop(queues: RocksConsumeQueues, found: ExpiredEntries) -> None:
    assert queues.drop(found.ranges, removals=queues.removals)
    assert queues.store_min_offsets(found.min_offsets, removals=queues.removals)


def by_filter(entries: list[tuple[bytes, bytes]], minimum: int) -> list[tuple[bytes, bytes]]:
    """RocketMQ's rule, asked about every key: dropped if it is a unit of a record below the minimum."""
    return [(key, value) for key, value in entries if len(value) < ENTRY_SIZE or ENTRY.unpack(value)[0] >= minimum]


QUEUES = [A0, A1, B0, LITE, QueueId("%LMQ%other", 0), QueueId("A", 7)]


@given(
    log=st.lists(st.sampled_from(QUEUES), max_size=120),
    min_offsets=st.lists(st.integers(0, 130), min_size=1, max_size=4).map(sorted),
    rows_max=st.integers(2, 9),
)
@settings(max_examples=150)
def test_key_by_key_what_a_compaction_filter_leaves(log: list[QueueId], min_offsets: list[int], rows_max: int) -> None:
    engine = memory()
    queues = queues_over(engine)
    for number, queue in enumerate(log):
        put(queues, [request(number, queue, queues.next_offset(queue))])
    before = {queue: queues.bounds(queue).maximum for queue in QUEUES}
    for minimum in min_offsets:
        entries = engine.family(ENTRIES_FAMILY).scan(ALL)
        queues.set_minimum_physical_offset(physical(minimum))
        visible = {queue: offsets(queues, queue) for queue in QUEUES}
        seen, gone = run_sweep(queues, rows_max)
        left = engine.family(ENTRIES_FAMILY).scan(ALL)
        assert left == by_filter(entries, physical(minimum))
        assert (seen, gone) == (len(set(log)), len(entries) - len(left))
        for fresh in (queues, queues_over(engine, physical(minimum))):
            for queue in QUEUES:
                assert offsets(fresh, queue) == visible[queue]
                assert fresh.bounds(queue).maximum == before[queue]


def test_a_second_sweep_finds_nothing_to_do(engine: KeyValueEngine) -> None:
    queues = queues_over(engine)
    put(queues, [request(number, QUEUES[number % 6], number // 6) for number in range(60)])
    queues.set_minimum_physical_offset(physical(30))
    assert run_sweep(queues) == (6, 30)
    search = queues.expired_entries().step(rows_max=100)
    assert (search.ranges, search.min_offsets) == ([], [])
    assert run_sweep(queues) == (6, 0)


def test_a_long_queue_is_searched_and_an_expired_one_is_not(engine: KeyValueEngine) -> None:
    queues = queues_over(engine)
    put(queues, [request(number, A0, number) for number in range(5_000)] + [request(5_000, B0, 0)])
    queues.set_minimum_physical_offset(physical(4_321))
    assert run_sweep(queues) == (2, 4_321)
    assert queues.bounds(A0) == (4_321, 5_000)
    queues.set_minimum_physical_offset(physical(9_000))
    assert run_sweep(queues) == (2, 680)
    assert engine.family(ENTRIES_FAMILY).scan(ALL) == []
    assert queues.bounds(A0) == (5_000, 5_000)
    put(queues, [request(9_000, A0, 5_000)])
    assert queues_over(engine, physical(9_000)).bounds(A0) == (5_000, 5_001)


def test_entries_put_between_search_and_removal_stay(engine: KeyValueEngine) -> None:
    queues = queues_over(engine)
    put(queues, [request(number, A0, number) for number in range(4)])
    queues.set_minimum_physical_offset(physical(4))
    found = queues.expired_entries().step(rows_max=100)
    put(queues, [request(4, A0, 4)])
    drop(queues, found)
    assert offsets(queues, A0) == [4]
    assert queues_over(engine, physical(4)).bounds(A0) == (4, 5)


@pytest.mark.parametrize("what", ["delete", "truncate"])
def test_what_was_found_before_a_removal_is_not_dropped_after_it(engine: KeyValueEngine, what: str) -> None:
    """A topic that is deleted and made anew numbers from 0: its entries must not fall to what its forerunner left."""
    queues = queues_over(engine)
    put(queues, [request(number, A0, number) for number in range(4)])
    queues.set_minimum_physical_offset(physical(2))
    removals = queues.removals
    found = queues.expired_entries().step(rows_max=100)
    if what == "delete":
        queues.delete_topic("TopicA")
    else:
        queues.truncate(PhysicalOffset(0))
    put(queues, [request(number, A0, number - 4) for number in range(4, 6)])
    assert not queues.drop(found.ranges, removals=removals)
    assert not queues.store_min_offsets(found.min_offsets, removals=removals)
    assert offsets(queues, A0) == [0, 1]
    assert queues_over(engine, physical(2)).bounds(A0) == (0, 2)


def test_the_space_comes_back(tmp_path: Path) -> None:
    engine = open_consume_queue_engine(tmp_path, create=True)
    queues = queues_over(engine)
    for start in range(0, 40_000, 1_000):
        put(queues, [request(n, QueueId("TopicA", n % 500), n // 500) for n in range(start, start + 1_000)])
    queues.flush()
    engine.compact(engine.family(ENTRIES_FAMILY), ALL)
    before = engine.statistics()["default.table_bytes"]
    queues.set_minimum_physical_offset(physical(20_000))
    assert run_sweep(queues, 100) == (500, 20_000)
    queues.flush()
    engine.compact(engine.family(ENTRIES_FAMILY), ALL)
    assert engine.statistics()["default.table_bytes"] <= 0.55 * before
    engine.close()
