"""Records that RocketMQ may leave in the two families, made by hand: what Quarry reads from them."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.consumequeue import RocksConsumeQueues
from quarry_mq.store.consumequeue.rocks_layout import (
    BOUND,
    CHECKPOINT_KEY,
    ENTRIES_FAMILY,
    ENTRY,
    I64,
    OFFSET_FAMILY,
    entry_key,
    maximum_key,
    minimum_key,
)
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.native import NATIVE
from tests.consumequeue.samples import warm

QUEUE = QueueId("TopicA", 3)


KINDS: Final = ["plain"] if NATIVE is None else ["plain", "native", "warmed"]
"""Read without the native part, with it, or with it and all bounds in memory."""


class Database:
    def __init__(self, kind: str) -> None:
        self.engine = MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY])
        self._kind = kind

    def entries(self, physical_of: dict[int, int]) -> None:
        batch = self.engine.batch()
        for at, physical in physical_of.items():
            key = entry_key(QUEUE, QueueOffset(at))
            batch.put(self.engine.family(ENTRIES_FAMILY), key, ENTRY.pack(physical, 100, 0, 0))
        self.engine.write(batch)

    def bound(self, key: bytes, physical: int, at: int) -> None:
        batch = self.engine.batch()
        batch.put(self.engine.family(OFFSET_FAMILY), key, BOUND.pack(physical, at))
        self.engine.write(batch)

    def maximum(self, physical: int, at: int) -> None:
        self.bound(maximum_key(QUEUE), physical, at)

    def minimum(self, physical: int, at: int) -> None:
        self.bound(minimum_key(QUEUE), physical, at)

    def checkpoint(self, end: int) -> None:
        batch = self.engine.batch()
        batch.put(self.engine.family(OFFSET_FAMILY), CHECKPOINT_KEY, I64.pack(end))
        self.engine.write(batch)

    def stored_minimum(self) -> bytes | None:
        return self.engine.family(OFFSET_FAMILY).get(minimum_key(QUEUE))

    def queues(self, minimum: int) -> RocksConsumeQueues:
        queues = RocksConsumeQueues(self.engine, minimum_physical_offset=PhysicalOffset(minimum))
        if self._kind != "plain":
            assert NATIVE is not None
            queues.use(NATIVE)
        if self._kind == "warmed":
            warm(queues)
        return queues


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest) -> Database:
    return Database(request.param)


def offsets(queues: RocksConsumeQueues) -> list[int]:
    return [each.queue_offset for each in queues.entries(QUEUE, QueueOffset(0), 1_000)]


def request(at: int, physical: int) -> DispatchRequest:
    return DispatchRequest(QUEUE.topic, QUEUE.number, QueueOffset(at), PhysicalOffset(physical), 100, 0, 0, 0, {}, ())


@pytest.mark.parametrize("log_minimum", [0, 1, 5_000])
def test_a_queue_that_double_write_reinitialised_is_empty_at_its_number(database: Database, log_minimum: int) -> None:
    database.maximum(0, 41)
    database.minimum(0, 42)
    queues = database.queues(log_minimum)
    assert queues.bounds(QUEUE) == (42, 42)
    assert queues.next_offset(QUEUE) == 42
    assert offsets(queues) == []
    queues.put([request(42, 6_000)], PhysicalOffset(6_100))
    assert queues.bounds(QUEUE) == (42, 43)
    assert offsets(queues) == [42]


def test_entries_below_a_reinitialised_minimum_stay_hidden_until_it_is_forgotten(database: Database) -> None:
    database.entries({at: at * 100 for at in range(10)})
    database.maximum(0, 41)
    database.minimum(0, 42)
    queues = database.queues(0)
    assert queues.bounds(QUEUE) == (42, 42)
    assert offsets(queues) == []
    queues.delete_min_offsets()
    assert database.stored_minimum() is None
    queues.put_missing([request(at, at * 100) for at in range(42)])
    assert queues.bounds(QUEUE) == (0, 42)
    assert offsets(queues) == list(range(42))


@pytest.mark.parametrize("log_minimum", [0, 300, 10_000])
def test_a_stored_minimum_above_the_maximum_is_not_believed(database: Database, log_minimum: int) -> None:
    """rmq#10417: minimum above maximum after a truncation. rmq#9728, rmq#10108: it kept brokers from starting."""
    database.entries({at: at * 100 for at in range(5)})
    database.maximum(400, 4)
    database.minimum(900, 9)
    bounds = database.queues(log_minimum).bounds(QUEUE)
    assert bounds.minimum == bounds.maximum == 5


def test_messages_are_read_that_come_below_a_minimum_that_expiry_has_put_right(database: Database) -> None:
    """rmq#10417: a minimum above the maximum."""
    database.entries({0: 0})
    database.maximum(0, 0)
    database.minimum(0, 2)
    queues = database.queues(0)
    assert queues.bounds(QUEUE) == (1, 1)
    queues.set_minimum_physical_offset(PhysicalOffset(100))
    found = queues.expired_entries().step()
    assert queues.store_min_offsets(found.min_offsets, removals=queues.removals)
    queues.put([request(1, 5_000)], PhysicalOffset(5_100))
    assert queues.bounds(QUEUE) == (1, 2)
    assert offsets(queues) == [1]


@pytest.mark.parametrize(("last", "minimum", "expected"), [(0, 2, 1), (0, 9, 1), (None, 2, 1), (4, 5, 0), (4, 2, 0)])
def test_min_offsets_above_their_max_offsets_are_forgotten(
    database: Database, last: int | None, minimum: int, expected: int
) -> None:
    """rmq#10417: what came into such a queue was hidden below its minimum. Double write stores one at its end."""
    if last is not None:
        database.entries({at: 100 * at for at in range(last + 1)})
        database.maximum(100 * last, last)
    database.minimum(0, minimum)
    database.checkpoint(1_000)
    queues = database.queues(0)
    first, begin = queues.bounds(QUEUE)[1], 0 if expected else minimum
    assert queues.delete_inverted_min_offsets() == expected
    assert (database.stored_minimum() is None) == bool(expected)
    for count in range(1, 4):
        queues.put([request(queues.next_offset(QUEUE), 5_000 + count)], PhysicalOffset(5_000 + count))
        assert queues.bounds(QUEUE) == (begin, first + count)
        assert offsets(queues) == list(range(begin, first + count))
    assert queues.dispatched_up_to() == 5_003


def test_inverted_min_offsets_are_found_among_many_rows(database: Database) -> None:
    """Maxima and minima of a topic lie on different pages."""
    batch = database.engine.batch()
    for number in range(1_500):
        queue = QueueId(QUEUE.topic, number)
        batch.put(database.engine.family(OFFSET_FAMILY), maximum_key(queue), BOUND.pack(0, 6))
        batch.put(database.engine.family(OFFSET_FAMILY), minimum_key(queue), BOUND.pack(0, number % 10))
    batch.put(database.engine.family(OFFSET_FAMILY), b"a stranger's row", BOUND.pack(0, 100))
    database.engine.write(batch)
    queues = database.queues(0)
    assert queues.delete_inverted_min_offsets() == 1_500 // 10 * 2
    assert database.engine.family(OFFSET_FAMILY).get(b"a stranger's row") is not None
    assert queues.delete_inverted_min_offsets() == 0


def test_the_search_begins_at_the_stored_minimum_and_moves_up(database: Database) -> None:
    database.entries({at: at * 100 for at in range(20)})
    database.maximum(1_900, 19)
    database.minimum(700, 7)
    queues = database.queues(0)
    assert queues.bounds(QUEUE) == (7, 20)
    queues.set_minimum_physical_offset(PhysicalOffset(1_201))
    assert queues.bounds(QUEUE) == (13, 20)
    assert offsets(queues) == list(range(13, 20))


@pytest.mark.parametrize("missing", [{0, 1, 2}, {5, 6, 7, 8}, {0, 3, 4, 9, 10}, set(range(19))])
@pytest.mark.parametrize("log_minimum", [0, 450, 1_900])
def test_missing_entries_count_as_too_small(database: Database, missing: set[int], log_minimum: int) -> None:
    database.entries({at: at * 100 for at in range(20) if at not in missing})
    database.maximum(1_900, 19)
    expected = [at for at in range(20) if at not in missing and at * 100 >= log_minimum]
    queues = database.queues(log_minimum)
    assert queues.bounds(QUEUE) == (expected[0], 20)
    assert offsets(queues) == expected


def test_a_maximum_without_its_entries_is_an_empty_queue(database: Database) -> None:
    database.maximum(500, 5)
    assert database.queues(0).bounds(QUEUE) == (6, 6)


def test_entries_left_above_a_lowered_maximum_are_not_read(database: Database) -> None:
    """RocketMQ lowers the maximum and lets later appends overwrite the units."""
    database.entries({at: at * 100 for at in range(10)})
    database.maximum(300, 3)
    queues = database.queues(0)
    assert queues.bounds(QUEUE) == (0, 4)
    assert offsets(queues) == [0, 1, 2, 3]
    queues.put([request(4, 400)], PhysicalOffset(500))
    assert offsets(queues) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("at", "physical", "kept"), [(9, 900, False), (6, 600, False), (5, 500, True), (2, 200, True)])
def test_truncation_removes_a_minimum_that_it_leaves_after(
    database: Database, at: int, physical: int, kept: bool
) -> None:
    database.entries({each: each * 100 for each in range(10)})
    database.maximum(900, 9)
    database.minimum(physical, at)
    database.checkpoint(1_000)
    queues = database.queues(0)
    queues.truncate(PhysicalOffset(600))
    assert (database.stored_minimum() is not None) == kept
    bounds = queues.bounds(QUEUE)
    assert bounds == (at if kept else 0, 6)
    assert queues.dispatched_up_to() == 600


def test_truncation_on_the_boundary_of_an_entry(database: Database) -> None:
    """RocketMQ's search finds nothing when it meets the offset itself; the maximum then falls to the minimum."""
    database.entries({each: each * 100 for each in range(10)})
    database.maximum(900, 9)
    for end, left in ((700, 7), (401, 5), (400, 4), (1, 1), (0, 0)):
        queues = database.queues(0)
        queues.truncate(PhysicalOffset(end))
        assert queues.bounds(QUEUE) == (0, left)


def test_a_database_without_a_checkpoint_was_never_dispatched_to(database: Database) -> None:
    database.maximum(900, 9)
    assert database.queues(0).dispatched_up_to() is None


@pytest.mark.parametrize("kind", KINDS)
@given(
    written=st.sets(st.integers(0, 30)),
    last=st.integers(0, 35),
    minimum=st.none() | st.tuples(st.integers(0, 5_000), st.integers(0, 40)),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("log begins"), st.integers(0, 50)),
            st.tuples(st.just("put"), st.integers(1, 3)),
            st.tuples(st.just("truncate"), st.integers(0, 50)),
            st.tuples(st.sampled_from(["expire", "reopen"]), st.just(0)),
        ),
        max_size=12,
    ),
)
@settings(max_examples=300)
def test_bounds_are_never_inverted_nor_below_the_log(
    kind: str, written: set[int], last: int, minimum: tuple[int, int] | None, steps: list[tuple[str, int]]
) -> None:
    """rmq#10417, whatever lies in the database and happens to it. Unit n points at 100 * n."""
    database = Database(kind)
    database.entries({at: 100 * at for at in written})
    if written:
        database.maximum(100 * max(written), max(last, *written))
    if minimum is not None:
        database.minimum(*minimum)
    begin, number = 0, 50
    sent: set[int] = set()
    queues = database.queues(begin)
    for step, value in [("reopen", 0), *steps]:
        match step:
            case "log begins":
                begin = max(begin, 100 * value)
                queues.set_minimum_physical_offset(PhysicalOffset(begin))
            case "put":
                for _ in range(value):
                    number += 1
                    at = queues.next_offset(QUEUE)
                    queues.put([request(at, 100 * number)], PhysicalOffset(100 * number + 100))
                    sent.add(at)
            case "truncate":
                sent.clear()  # they lie above all that it may cut at
                queues.truncate(PhysicalOffset(max(begin, 100 * value)))
            case "expire":
                found = queues.expired_entries().step()
                queues.drop(found.ranges, removals=queues.removals)
                queues.store_min_offsets(found.min_offsets, removals=queues.removals)
            case _:
                queues = database.queues(begin)
                queues.delete_inverted_min_offsets()
        bounds = queues.bounds(QUEUE)
        assert 0 <= bounds.minimum <= bounds.maximum == queues.next_offset(QUEUE)
        entries = queues.entries(QUEUE, QueueOffset(0), 1_000)
        assert all(each.physical_offset >= begin for each in entries)
        assert [each.queue_offset for each in entries] == sorted({each.queue_offset for each in entries})
        assert (entries[0].queue_offset if entries else bounds.maximum) == bounds.minimum
        assert sent <= {each.queue_offset for each in entries}
