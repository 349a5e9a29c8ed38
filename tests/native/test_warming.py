"""Bounds of queues are read into memory after a start, so that sends and reads need not ask RocksDB for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from quarry_mq.kv import KeyValueEngine
from quarry_mq.store.consumequeue import RocksConsumeQueues, open_consume_queue_engine
from quarry_mq.store.consumequeue.rocks import bounds
from quarry_mq.store.consumequeue.rocks_layout import minimum_key, parse_bound
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.native import Native
from tests.consumequeue.samples import physical, put, queues_over, request, warm

QUEUES = [QueueId(f"topic-{number // 4:03d}", number % 4) for number in range(100)]
MIDDLE = physical(2_500)
"""Of about half as many messages as the queues have."""
LIGHTS = [f"%LMQ%lite-{number}" for number in range(10)]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[KeyValueEngine]:
    """Queues with as many messages as their place says, and light queues of one."""
    engine = open_consume_queue_engine(tmp_path / "db", create=True)
    queues = queues_over(engine)
    record = 0
    for place, queue in enumerate(QUEUES):
        for offset in range(place + 1):
            put(queues, [request(record, queue, offset)])
            record += 1
    for name in LIGHTS:
        put(queues, [request(record, QUEUES[-1], len(QUEUES), (name, 0))])
        record += 1
    yield engine
    engine.close()


def expire_below(
    engine: KeyValueEngine, minimum: PhysicalOffset, queues: RocksConsumeQueues | None = None
) -> dict[QueueId, int]:
    """Drop the entries of a log that begins there. Returns where queues begin then, by their stored minima."""
    queues = queues or queues_over(engine, minimum)
    queues.set_minimum_physical_offset(minimum)
    found = queues.expired_entries().step()
    assert found.next_key is None
    assert queues.drop(found.ranges, removals=queues.removals)
    assert queues.store_min_offsets(found.min_offsets, removals=queues.removals)
    stored = dict(found.min_offsets)
    return {queue: parse_bound(stored.get(minimum_key(queue), bytes(16))).queue_offset for queue in QUEUES}


def noting_reads(queues: RocksConsumeQueues, patch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys that RocksDB is asked for, as they come."""
    asked: list[bytes] = []
    read = queues._bounds._read

    def noted(keys: list[bytes]) -> dict[bytes, bytes]:
        asked.extend(keys)
        return read(keys)

    patch.setattr(queues._bounds, "_read", noted)
    return asked


def test_of_where_queues_begin_nobody_asks(
    engine: KeyValueEngine, native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may end between the maxima of a topic and its minima, which come behind them."""
    begins = expire_below(engine, MIDDLE)
    assert sum(begin > 0 for begin in begins.values()) > len(QUEUES) // 2
    for rows_per_page in range(1, 12):
        monkeypatch.setattr(bounds, "ROWS_PER_PAGE", rows_per_page)
        queues, plain = queues_over(engine, MIDDLE), queues_over(engine, MIDDLE)
        queues.use(native)
        warm(queues)
        table = queues._bounds._table
        assert table is not None
        monkeypatch.setattr(queues._bounds, "_find_begins", lambda found: pytest.fail(f"asked for {len(found)}"))
        for queue, begin in begins.items():
            assert queues._bounds.find(queue).begin == begin
            assert table.place(queue, 0, 200, MIDDLE) is not None
            assert queues.entries(queue, QueueOffset(0), 200) == plain.entries(queue, QueueOffset(0), 200)


def test_min_offsets_that_are_stored_later_are_known(engine: KeyValueEngine, native: Native) -> None:
    queues = queues_over(engine)
    queues.use(native)
    warm(queues)
    assert {queues._bounds.find(queue).begin for queue in QUEUES} == {0}
    begins = expire_below(engine, MIDDLE, queues)
    queues._bounds._cache.rotate()
    queues._bounds._cache.rotate()
    assert {queue: queues._bounds.find(queue).begin for queue in QUEUES} == begins


def asked_for(queues: RocksConsumeQueues, wanted: Sequence[QueueId], patch: pytest.MonkeyPatch) -> int:
    """Return the number of queues that RocksDB has to be asked for to number the next messages."""
    asked = noting_reads(queues, patch)
    ends = queues.next_offsets(wanted)
    assert ends == [queues.next_offset(queue) for queue in wanted]
    assert ends[:-10] == [place + 1 for place in range(len(QUEUES) - 1)] + [len(QUEUES) + 1]
    assert ends[-10:] == [1] * len(LIGHTS)
    return len(asked)


def test_of_queues_that_are_warm_nobody_asks(
    engine: KeyValueEngine, native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [*QUEUES, *(QueueId(name, 0) for name in LIGHTS)]
    monkeypatch.setattr(bounds, "ROWS_PER_PAGE", 7)
    cold, warmed = queues_over(engine), queues_over(engine)
    cold.use(native)
    warmed.use(native)
    assert warm(warmed) >= len(wanted) // 7
    assert asked_for(cold, wanted, monkeypatch) == len(wanted)
    assert asked_for(warmed, wanted, monkeypatch) == 0


def test_once_all_is_warm_nobody_asks_for_queues_that_never_had_a_message(
    engine: KeyValueEngine, native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = queues_over(engine)
    queues.use(native)
    warm(queues)
    new = [QueueId("new", number) for number in range(20)]
    asked = noting_reads(queues, monkeypatch)
    assert queues.next_offsets(new) == [0] * len(new)
    queues.delete_topic(QUEUES[0].topic)
    assert queues.next_offsets([*new, *QUEUES[:4]]) == [0] * (len(new) + 4)
    assert not asked
    queues.restart_at(QUEUES[10], QueueOffset(3))
    assert queues.next_offsets([QUEUES[10]]) == [3]
    assert not asked
    put(queues, [request(200_000, QUEUES[10], 3), request(200_001, new[0], 0)])
    assert queues.next_offsets([QUEUES[10], *new[:2]]) == [4, 1, 0]
    assert queues_over(engine).next_offsets([QUEUES[10], *new[:2]]) == [4, 1, 0]


def test_no_more_is_read_than_there_is_room_for(
    engine: KeyValueEngine, native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "ROWS_PER_PAGE", 7)
    monkeypatch.setattr(bounds, "TABLE_QUEUES", 50)
    queues = queues_over(engine)
    queues.use(native)
    assert 50 // 7 <= warm(queues) <= 50 // 7 + 3


def test_what_is_written_meanwhile_is_what_counts(
    engine: KeyValueEngine, native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "ROWS_PER_PAGE", 7)
    queues = queues_over(engine)
    queues.use(native)
    after: bytes | None = b""
    record, ends = 100_000, {queue: int(queues.next_offset(queue)) for queue in QUEUES}
    while after is not None:
        after = queues.warm(after)
        for queue in QUEUES[::3]:
            put(queues, [request(record, queue, ends[queue])])
            ends[queue] += 1
            record += 1
    assert queues.next_offsets(QUEUES) == list(ends.values())
    assert queues_over(engine).next_offsets(QUEUES) == list(ends.values())


def test_without_the_native_part_nothing_is_read(engine: KeyValueEngine) -> None:
    assert queues_over(engine).warm(b"") is None
