"""A broker with very many queues lives as one with few does: filled, started again, half of it expired, read.

Promise 6; rmq#8915, rmq#5091: brokers with hundreds of thousands of queues that took minutes to start, if they did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import TypeVar

import grpc
import pytest

from quarry_mq.kv import KeyRange
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.protocol.names import is_light_queue
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as admin
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, I64
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from tests.conformance.broker import RunningBroker, running_broker
from tests.conformance.client import Client, message

T = TypeVar("T")
SEED = 4711
NAMES_PER_MESSAGE = 400
QUEUES_PER_TOPIC = 1_000
AT_A_TIME = 64
ENTRIES = 2
"""Messages of each queue before the clock goes on, and as many after that."""

SAMPLE = 500
FILLER = bytes(60_000)
DAYS_S = 10 * 86_400
SEGMENT_SIZE = 1 << 20
DEADLINE_S = 1_500
"""Only a test that fails takes so long."""

GROUP = "readers"
PARENT = "parent"
Entries = dict[QueueId, list[ConsumeQueueEntry]]


@dataclass(frozen=True)
class Shape:
    """A tenth are queues of ordinary topics, the others light ones."""

    queues: int

    @property
    def topics(self) -> int:
        return max(1, self.queues // 10 // QUEUES_PER_TOPIC)

    @property
    def light(self) -> int:
        return self.queues - self.topics * QUEUES_PER_TOPIC

    def ordinary_queues(self) -> Iterator[QueueId]:
        for topic in range(self.topics):
            yield from (QueueId(f"topic-{topic}", number) for number in range(QUEUES_PER_TOPIC))

    def light_queues(self) -> Iterator[QueueId]:
        return (QueueId(light_name(number), 0) for number in range(self.light))


def light_name(number: int) -> str:
    return f"%LMQ%device-{number:07d}"


SHAPES = [
    pytest.param(Shape(4_000), id="4,000"),
    pytest.param(Shape(1_000_000), id="1,000,000", marks=[pytest.mark.slow, pytest.mark.timeout(DEADLINE_S + 100)]),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_broker_lives_on_with_very_many_queues(shape: Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(SEED)
    sample = random.sample([*shape.ordinary_queues(), *shape.light_queues()], SAMPLE)

    async def test() -> None:
        async with broker_on(tmp_path, monkeypatch) as broker, Client(broker.endpoint) as client:
            broker.topic(PARENT, queues=1)
            for topic in range(shape.topics):
                broker.topic(f"topic-{topic}", queues=QUEUES_PER_TOPIC)
            await fill(client, shape, random)
            await begin_a_segment(broker, client)
            broker.clock.push(DAYS_S)
            await fill(client, shape, random)
        async with broker_on(tmp_path, monkeypatch) as broker:
            assert broker.store.recovery.findings.records == 0, "nothing of the log has to be read at a start"
            broker.clock.push(DAYS_S)
            before = entries_of(broker, sample)
            assert {len(entries) for entries in before.values()} == {2 * ENTRIES}
            minimum = await expire(broker)
            left = {
                queue: [each for each in found if each.physical_offset >= minimum] for queue, found in before.items()
            }
            assert {len(entries) for entries in left.values()} == {ENTRIES}
            assert entries_of(broker, sample) == left, "what has expired is not seen any more, at once"
            await until_clean(broker)
            assert entries_of(broker, sample) == left
        async with broker_on(tmp_path, monkeypatch) as broker, Client(broker.endpoint) as client:
            assert entries_of(broker, sample) == left
            check_entries(broker, shape)
            assert await received(client, "topic-0") == QUEUES_PER_TOPIC * ENTRIES

    print(f"seed {SEED}")
    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))


def broker_on(directory: Path, patch: pytest.MonkeyPatch) -> AbstractAsyncContextManager[RunningBroker]:
    """Nothing expires by itself, and caches are far smaller than what there is to be cached."""
    half_a_day_from_now = (datetime.now().astimezone().hour + 12) % 24
    return running_broker(
        directory,
        patch,
        store={"segment_size": SEGMENT_SIZE, "durability": "async", "cached_queues_max": 1_000},
        delivery={"new_group_start": "earliest"},
        expiry={"delete_when": [half_a_day_from_now], "pause_ms": 0, "queue_pause_ms": 0},
    )


async def fill(client: Client, shape: Shape, random: Random) -> None:
    """The same number of messages into each queue; light ones in another order each time."""
    for _ in range(ENTRIES):
        numbers = list(range(shape.light))
        random.shuffle(numbers)
        parts = [numbers[begin : begin + NAMES_PER_MESSAGE] for begin in range(0, shape.light, NAMES_PER_MESSAGE)]
        await at_a_time(lambda part: send_to_light(client, part), parts)
    # one send after the other goes to the next queue of its topic
    sends = [f"topic-{topic}" for topic in range(shape.topics) for _ in range(QUEUES_PER_TOPIC)]
    await at_a_time(lambda topic: client.sent(*(message(topic) for _ in range(ENTRIES))), sends)


async def send_to_light(client: Client, numbers: Iterable[int]) -> None:
    made = message(PARENT)
    made.user_properties[LIGHT_QUEUES] = ",".join(map(light_name, numbers))
    await client.sent(made)


async def at_a_time(call: Callable[[T], Awaitable[object]], each: Sequence[T]) -> None:
    for begin in range(0, len(each), AT_A_TIME):
        await asyncio.gather(*map(call, each[begin : begin + AT_A_TIME]))


async def begin_a_segment(broker: RunningBroker, client: Client) -> None:
    """So that all that comes before is in segments that nothing else is in."""
    before = broker.store.messages.appended_up_to // SEGMENT_SIZE
    while broker.store.messages.appended_up_to // SEGMENT_SIZE == before:
        await client.sent(message(PARENT, FILLER))


def entries_of(broker: RunningBroker, queues: Iterable[QueueId]) -> Entries:
    """All entries that are seen, each with a record that says that it belongs there."""
    messages = broker.store.messages
    found = {queue: messages.entries(queue, QueueOffset(0), 100) for queue in queues}
    for queue, entries in found.items():
        bounds = messages.bounds(queue)
        assert [each.queue_offset for each in entries] == list(range(bounds.minimum, bounds.maximum))
        for entry in entries:
            record = messages.read(entry)
            if is_light_queue(queue.topic):
                assert queue.topic in record.properties[LIGHT_QUEUES].split(",")
            else:
                assert (record.topic, record.queue_number, record.queue_offset) == (*queue, entry.queue_offset)
    return found


async def expire(broker: RunningBroker) -> PhysicalOffset:
    """Let go what is old; returns where the log begins then."""
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        stub = AdminServiceStub(channel)
        assert (await stub.ExpireSegments(admin.ExpireSegmentsRequest())).segments
    return broker.store.expiry.minimum


async def until_clean(broker: RunningBroker) -> None:
    cleaning = broker.broker._maintenance.cleaning
    while cleaning.lag_bytes or cleaning.phase:
        await asyncio.sleep(0.05)


def check_entries(broker: RunningBroker, shape: Shape) -> None:
    """What is stored of all queues is what the log still has, no more and no less."""
    store = broker.store
    assert store.queues.engine is not None
    minimum = store.segments.minimum
    entries = 0
    for _, value in store.queues.engine.family(ENTRIES_FAMILY).iterate(KeyRange(b"", None)):
        assert I64.unpack_from(value)[0] >= minimum
        entries += 1
    parent = store.messages.bounds(QueueId(PARENT, 0))
    assert entries == shape.queues * ENTRIES + parent.maximum - parent.minimum
    assert len(store.messages.iterate_queues()) == shape.queues + 1


async def received(client: Client, topic: str) -> int:
    """How many messages a new group gets."""
    ids: set[str] = set()
    while (got := await client.receive(GROUP, topic)).messages:
        ids.update(got.ids)
    return len(ids)
