"""Names of topics and light queues, walked over in steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.kv import KeyRange
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.consumequeue import LastEntry, RocksConsumeQueues, names
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY, StoredBound, minimum_key
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from tests.consumequeue.samples import A0, A1, B0, LITE, physical, put, queues_over, request

NAMES = [
    "T",
    "U",
    "TT",
    "%LMQ%",
    "%LMQ%a",
    "%LMQ%b",
    "%RETRY%g",
    "%LMQ",
    "%LMR%a",
    "%LMP%a",
    "Zzzzzz",
    "主题",
    "%LMQ%主",
]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "ROWS_PER_SCAN", 3)
    monkeypatch.setattr(names, "LIGHT_ROWS_PER_STEP", 3)


@pytest.fixture
def engine() -> MemoryEngine:
    return MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY])


def topics(queues: RocksConsumeQueues, limit: int) -> Iterator[str]:
    after = ""
    while page := queues.topics_after(after, limit):
        assert len(page) <= limit
        yield from page
        after = page[-1]


def ended(queues: RocksConsumeQueues, below: int) -> list[LastEntry]:
    found: list[LastEntry] = []
    key: bytes | None = b""
    looked_at = 0
    while key is not None:
        step = queues.light_queues_ended(physical(below), key)
        assert step.looked_at <= 5, "a step is small"
        found += step.ended
        looked_at += step.looked_at
        key = step.next_key
    assert looked_at == sum(queue.topic.startswith("%LMQ%") for queue in queues.queues())
    return found


@given(
    chosen=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9)), max_size=40),
    limit=st.integers(1, 5),
    below=st.integers(0, 40),
)
@settings(max_examples=150)
def test_both_walks_find_what_a_full_scan_finds(chosen: list[tuple[str, int]], limit: int, below: int) -> None:
    engine = MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY])
    queues = queues_over(engine)
    last: dict[QueueId, int] = {}
    for number, (name, queue_number) in enumerate(chosen):
        queue = QueueId(name, 0 if name.startswith("%LMQ%") else queue_number)
        put(queues, [request(number, queue, queues.next_offset(queue))])
        last[queue] = number
    ordinary = dict.fromkeys(queue.topic for queue in queues.queues() if not queue.topic.startswith("%LMQ%"))
    assert list(topics(queues, limit)) == list(ordinary)
    expected = [queue for queue in queues.queues() if queue.topic.startswith("%LMQ%") and last[queue] < below]
    assert [each.queue for each in ended(queues, below)] == expected


def test_min_offsets_and_strangers_are_passed_over(engine: MemoryEngine) -> None:
    queues = queues_over(engine)
    put(queues, [request(0, A0, 0, (LITE.topic, 0)), request(1, B0, 0)])
    batch = engine.batch()
    bounds = engine.family(OFFSET_FAMILY)
    for stranger in (
        b"",
        b"\x00",
        b"\x00\x00\x00\x06\x01Topic",
        b"\x00\x00\x00\x01\x01\xff\x01max\x01\x00\x00\x00\x00",
        b"\xff" * 9,
    ):
        batch.put(bounds, stranger, bytes(16))
    batch.put(bounds, minimum_key(LITE), bytes(16))
    engine.write(batch)
    assert list(topics(queues, 2)) == ["TopicA", "TopicB"]
    step = queues.light_queues_ended(physical(9), b"")
    assert (step.ended, step.next_key) == ([LastEntry(LITE, StoredBound(physical(0), QueueOffset(0)))], None)


def test_a_light_queue_is_removed_with_all_its_rows(engine: MemoryEngine) -> None:
    queues = queues_over(engine)
    put(queues, [request(n, A0, n, (LITE.topic, n)) for n in range(4)])
    put(queues, [request(4, A1, 0, ("%LMQ%litf", 0))])
    queues.set_minimum_physical_offset(physical(5))
    found = ended(queues, 5)
    assert [each.queue for each in found] == [LITE, QueueId("%LMQ%litf", 0)]
    queues.remove_ended(queues.still_ended(found[:1]))
    assert list(queues.queues()) == [A0, A1, QueueId("%LMQ%litf", 0)]
    assert queues.bounds(LITE) == (0, 0)
    left = [key for name in (ENTRIES_FAMILY, OFFSET_FAMILY) for key, _ in engine.family(name).scan(KeyRange(b"", None))]
    assert not any(LITE.topic.encode() in key for key in left)
    assert queues.still_ended(found) == found[1:]


def test_a_light_queue_that_got_a_message_since_it_was_found_stays(engine: MemoryEngine) -> None:
    queues = queues_over(engine)
    put(queues, [request(0, A0, 0, (LITE.topic, 0))])
    found = ended(queues, 1)
    put(queues, [request(1, A0, 1, (LITE.topic, 1))])
    assert queues.still_ended(found) == []


def test_what_an_expiry_took_away_needs_no_tombstone(engine: MemoryEngine) -> None:
    """Many range deletes in a memtable make reads slow."""
    queues = queues_over(engine)
    put(queues, [request(0, A0, 0, (LITE.topic, 0))])
    queues.set_minimum_physical_offset(physical(1))
    found = queues.expired_entries().step()
    assert queues.drop(found.ranges, removals=queues.removals)
    assert queues.store_min_offsets(found.min_offsets, removals=queues.removals)
    deleted: list[KeyRange] = []
    batch_type = type(engine.batch())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_type, "delete_range", lambda _self, _family, keys: deleted.append(keys))
        queues.remove_ended(queues.still_ended(ended(queues, 1)))
    assert deleted == []
    assert list(queues.queues()) == [A0]


def test_a_deleted_topic_leaves_no_cached_queue_after(engine: MemoryEngine) -> None:
    queues = queues_over(engine)
    put(queues, [request(n, QueueId("TopicA", n), 0) for n in range(5)])
    assert queues.bounds(QueueId("TopicA", 7)) == (0, 0)
    queues.delete_topic("TopicA")
    assert {queues.next_offset(QueueId("TopicA", n)) for n in range(8)} == {0}
    put(queues, [request(9, QueueId("TopicA", 3), 0)])
    assert queues.bounds(QueueId("TopicA", 3)) == (0, 1)
    assert PhysicalOffset(900) == queues.entries(QueueId("TopicA", 3), QueueOffset(0), 1)[0].physical_offset
