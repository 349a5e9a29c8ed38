"""The number of lite topics is right, whatever comes and goes while they are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.errors import LiteTopicsFull
from quarry_mq.server.lite import counts
from quarry_mq.server.lite.counts import LiteTopicCounts
from quarry_mq.server.rpc.context import LimitsMet
from quarry_mq.server.tasks import Worker
from quarry_mq.server.wire.status import code_of
from quarry_mq.store.consumequeue import LightQueueStep, LiteParentsStep, RocksConsumeQueues, light_queues, names
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY
from quarry_mq.store.message import PhysicalOffset, QueueId
from quarry_mq.store.metadata.lite import light_queue_name, light_queue_prefix
from tests.consumequeue.samples import A0, put, queues_over, request

PARENTS = ("P", "Q", "PP")
LITES = [f"{letter}{'x' * length}" for length in range(3) for letter in "abc"]


class Queues:
    """Consume queues that tell before each step of a walk, which is when the rest of a broker may go on."""

    def __init__(self) -> None:
        self.rocks: RocksConsumeQueues = queues_over(MemoryEngine([ENTRIES_FAMILY, OFFSET_FAMILY]))
        self.counts: LiteTopicCounts | None = None
        self.before_step: Callable[[], None] = lambda: None
        self.after_step: Callable[[], None] = lambda: None
        self._next = 0

    def store(self, parent: str, lite: str) -> None:
        name = light_queue_name(parent, lite)
        offset = self.rocks.next_offset(QueueId(name, 0))
        put(self.rocks, [request(self._next, A0, self._next, (name, offset))])
        self._next += 1
        if offset == 0 and self.counts is not None:
            self.counts.born(parent, lite)

    def remove(self, parent: str, lite: str) -> None:
        name = light_queue_name(parent, lite)
        found = self.rocks.light_queues_ended(PhysicalOffset(1 << 62), b"", name).ended
        ended = [each for each in found if each.queue.topic == name]
        self.rocks.remove_ended(ended)
        if ended and self.counts is not None:
            self.counts.removed([name])

    def number(self, parent: str) -> int:
        prefix = light_queue_prefix(parent)
        return sum(queue.topic.startswith(prefix) for queue in self.rocks.queues())

    def light_queues_ended(self, below: PhysicalOffset, key: bytes, prefix: str = "") -> LightQueueStep:
        self.before_step()
        step = self.rocks.light_queues_ended(below, key, prefix)
        self.after_step()
        return step

    def lite_parents(self, key: bytes) -> LiteParentsStep:
        self.before_step()
        step = self.rocks.lite_parents(key)
        self.after_step()
        return step


def count(queues: Queues, limit: int = 0) -> LiteTopicCounts:
    queues.counts = counted = LiteTopicCounts(limit)

    async def count_all() -> None:
        worker = Worker("count")
        await counted.count_all(queues, worker)
        await worker.stop()

    asyncio.run(count_all())
    return counted


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "PAUSE_S", 0)
    monkeypatch.setattr(names, "LIGHT_ROWS_PER_STEP", 2)
    monkeypatch.setattr(light_queues, "LOOKS_PER_STEP", 2)


CHANGES = st.lists(st.tuples(st.booleans(), st.sampled_from(PARENTS), st.sampled_from(LITES)), max_size=4)


@given(before=CHANGES, during=st.lists(CHANGES, max_size=30), after=CHANGES, late=st.booleans())
@settings(max_examples=150)
def test_the_counts_are_those_of_the_queues(
    before: list[tuple[bool, str, str]],
    during: list[list[tuple[bool, str, str]]],
    after: list[tuple[bool, str, str]],
    late: bool,
) -> None:
    queues = Queues()

    def change(changes: list[tuple[bool, str, str]]) -> None:
        for is_store, parent, lite in changes:
            (queues.store if is_store else queues.remove)(parent, lite)

    for lite in LITES[:6]:
        queues.store("P", lite)
    change(before)
    waiting = iter(during)

    def go_on() -> None:
        change(next(waiting, []))

    if late:
        queues.after_step = go_on
    else:
        queues.before_step = go_on
    counted = count(queues)
    for changes in waiting:
        change(changes)
    change(after)
    assert {parent: counted.count_of(parent) for parent in PARENTS} == {
        parent: queues.number(parent) for parent in PARENTS
    }
    assert counted.total == sum(map(queues.number, PARENTS))


def test_until_they_are_counted_there_may_be_more() -> None:
    counted = LiteTopicCounts(1)
    counted.born("P", "a")
    assert counted.count_of("P") is None
    counted.admit("P")


def test_over_the_limit_no_more_is_let_in() -> None:
    queues = Queues()
    counted = count(queues, limit=2)
    for lite in ("a", "b"):
        counted.admit("P")
        queues.store("P", lite)
    with pytest.raises(LiteTopicsFull, match="topic P has 2 lite topics") as refusal:
        counted.admit("P")
    assert code_of(refusal.value) == definition.LITE_TOPIC_QUOTA_EXCEEDED
    met = LimitsMet()
    met.count(refusal.value)
    assert met["lite_topics_per_topic"] == 1
    counted.admit("Q")
    queues.remove("P", "a")
    counted.admit("P")
    counted.configure(1)
    with pytest.raises(LiteTopicsFull):
        counted.admit("P")
    counted.configure(0)
    counted.admit("P")


def test_one_that_is_told_twice_counts_once() -> None:
    counted = count(Queues())
    for _ in range(2):
        counted.born("P", "a")
    assert counted.count_of("P") == 1
    counted.removed([light_queue_name("P", "a"), "%LMQ%other"])
    counted.born("P", "a")
    assert counted.count_of("P") == 1


def test_what_is_remembered_of_births_is_bounded() -> None:
    counted = count(Queues())
    for number in range(counts.BORN_KEPT + 10):
        counted.born("P", f"s{number}")
    assert len(counted._born) == counts.BORN_KEPT
    assert counted.count_of("P") == counts.BORN_KEPT + 10
