"""Lite topics among the light queues, and how light queues leave: together where they are neighbours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.kv import KeyRange
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.consumequeue import LastEntry, RocksConsumeQueues, light_queues, names
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata.lite import light_queue_name, light_queue_prefix, parse_light_queue_name
from tests.consumequeue.samples import A0, physical, put, queues_over, request

PARENTS = ["P", "Q", "PP", "orders", "%LMQ%", "P|Q"]
LITES = ["a", "b", "ab", "zz", "a-1", "session_7"]
OTHERS = ["P", "%LMQ%client", "%LMQ%$P", "%LMQ%$share%x", "%LMQ%$$a", "%LMR%a"]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "LIGHT_ROWS_PER_STEP", 3)
    monkeypatch.setattr(light_queues, "LOOKS_PER_STEP", 2)


@pytest.fixture
def engine() -> MemoryEngine:
    return MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY])


def filled(engine: MemoryEngine, *queue_names: str) -> RocksConsumeQueues:
    queues = queues_over(engine)
    for number, name in enumerate(queue_names):
        put(queues, [request(number, A0, number, (name, queues.next_offset(QueueId(name, 0))))])
    return queues


def all_ended(queues: RocksConsumeQueues, below: int, prefix: str) -> tuple[list[LastEntry], int]:
    found: list[LastEntry] = []
    looked_at = 0
    key: bytes | None = b""
    while key is not None:
        step = queues.light_queues_ended(physical(below), key, prefix)
        found += step.ended
        looked_at += step.looked_at
        key = step.next_key
    return found, looked_at


def all_parents(queues: RocksConsumeQueues) -> set[str]:
    parents: set[str] = set()
    key: bytes | None = b""
    while key is not None:
        step = queues.lite_parents(key)
        parents.update(step.parents)
        key = step.next_key
    return parents


def rows(engine: MemoryEngine) -> list[tuple[str, bytes, bytes]]:
    return [
        (name, *row)
        for name in (ENTRIES_FAMILY, OFFSET_FAMILY)
        for row in engine.family(name).scan(KeyRange(b"", None))
    ]


LITE_NAMES = st.builds(light_queue_name, st.sampled_from(PARENTS), st.sampled_from(LITES))


@given(chosen=st.lists(st.one_of(LITE_NAMES, st.sampled_from(OTHERS[1:5])), max_size=30), below=st.integers(0, 30))
@settings(max_examples=150)
def test_the_walks_find_what_a_full_scan_finds(chosen: list[str], below: int) -> None:
    """rmq#10929: no lite topic of another parent is looked at. rmq#11163: one with a single message counts, too."""
    queues = filled(MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY]), *chosen)
    last = {name: number for number, name in enumerate(chosen)}
    named = {name: parsed for name in last if (parsed := parse_light_queue_name(name)) is not None}
    assert all_parents(queues) == {parent for parent, _ in named.values()}
    for wanted in PARENTS:
        found, looked_at = all_ended(queues, below, light_queue_prefix(wanted))
        mine = {name for name, (parent, _) in named.items() if parent == wanted}
        assert {each.queue.topic for each in found} == {name for name in mine if last[name] < below}
        assert looked_at == len(mine)


def test_a_prefix_of_names_narrows_the_walk(engine: MemoryEngine) -> None:
    queues = filled(engine, *(light_queue_name("P", name) for name in LITES))
    found, looked_at = all_ended(queues, 99, light_queue_name("P", "a"))
    assert [each.queue.topic for each in found] == [light_queue_name("P", name) for name in ("a", "ab", "a-1")]
    assert looked_at == 3


def test_the_last_entry_tells_when_it_was_stored(engine: MemoryEngine) -> None:
    queues = filled(engine, *[light_queue_name("P", "a")] * 3)
    [found], _ = all_ended(queues, 99, light_queue_prefix("P"))
    [entry] = queues.entries(found.queue, QueueOffset(2), 1)
    assert entry.store_timestamp_ms is not None
    gone = LastEntry(QueueId("%LMQ%$P$gone", 0), found.last)
    assert queues.last_times_ms([gone, found]) == [None, entry.store_timestamp_ms]


class CountedDeletes:
    """Which deletions were added to batches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, engine: MemoryEngine) -> None:
        self.ranges = self.keys = 0
        batch_type = type(engine.batch())
        delete, delete_range = batch_type.delete, batch_type.delete_range

        def counted_delete(batch: Any, *arguments: Any) -> None:
            self.keys += 1
            delete(batch, *arguments)

        def counted_range(batch: Any, *arguments: Any) -> None:
            self.ranges += 1
            delete_range(batch, *arguments)

        monkeypatch.setattr(batch_type, "delete", counted_delete)
        monkeypatch.setattr(batch_type, "delete_range", counted_range)


def test_neighbours_go_by_one_range_delete(engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    names_of_p = [light_queue_name("P", f"session-{number:04}") for number in range(300)]
    queues = filled(engine, *names_of_p, light_queue_name("O", "session-0000"), light_queue_name("Q", "session-0000"))
    found, _ = all_ended(queues, 999, light_queue_prefix("P"))
    deletes = CountedDeletes(monkeypatch, engine)
    queues.remove_ended(queues.still_ended(found))
    assert (deletes.ranges, deletes.keys) == (2, 0)
    assert {queue.topic for queue in queues.queues()} == {
        A0.topic,
        light_queue_name("O", "session-0000"),
        light_queue_name("Q", "session-0000"),
    }


def test_what_stands_alone_and_holds_little_goes_key_by_key(
    engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Range deletes in a memtable make each read of it slower."""
    queues = filled(engine, *(light_queue_name("P", f"s{number:02}") for number in range(40)))
    found, _ = all_ended(queues, 99, light_queue_prefix("P"))
    deletes = CountedDeletes(monkeypatch, engine)
    queues.remove_ended(found[::2])
    assert deletes.ranges == 0
    left, _ = all_ended(queues, 99, light_queue_prefix("P"))
    assert left == found[1::2]


@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=20),
    removed=st.sets(st.integers(0, 19)),
    by_key_max=st.sampled_from([0, 2, 32]),
    expired=st.integers(0, 30),
)
@settings(max_examples=150)
def test_a_removal_leaves_what_was_never_there(
    counts: list[int], removed: set[int], by_key_max: int, expired: int
) -> None:
    """Whichever go together: the rows are those of a store that never had the removed ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(light_queues, "ENTRIES_BY_KEY_MAX", by_key_max)
        chosen = [light_queue_name(PARENTS[n % 2], LITES[n % 6] + str(n)) for n, count in enumerate(counts)]
        named = [name for name, count in zip(chosen, counts, strict=True) for _ in range(count)]
        gone = {name for number, name in enumerate(chosen) if number in removed}
        engines = []
        for skipped in (set[str](), gone):
            engine = MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY])
            queues = queues_over(engine)
            for number, name in enumerate(named):
                light = () if name in skipped else ((name, queues.next_offset(QueueId(name, 0))),)
                put(queues, [request(number, A0, number, *light)])
            queues.set_minimum_physical_offset(physical(expired))
            search = queues.expired_entries().step()
            queues.drop(search.ranges, removals=queues.removals)
            queues.store_min_offsets(search.min_offsets, removals=queues.removals)
            engines.append(engine)
            if not skipped:
                found, _ = all_ended(queues, 999, "%LMQ%$")
                queues.remove_ended([each for each in found if each.queue.topic in gone])
    assert rows(engines[0]) == rows(engines[1])
