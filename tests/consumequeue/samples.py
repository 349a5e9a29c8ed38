"""Requests and entries for tests of consume queues, whatever stores them. Record n of the log lies at 100 * n."""

from __future__ import annotations

from collections.abc import Sequence

from quarry_mq.kv import KeyValueEngine
from quarry_mq.store.consumequeue import ConsumeQueueEntry, ConsumeQueueStore, RocksConsumeQueues
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueId, QueueOffset

RECORD_SIZE = 100
A0, A1 = QueueId("TopicA", 0), QueueId("TopicA", 1)
B0 = QueueId("TopicB", 0)
LITE = QueueId("%LMQ%lite", 0)


def physical(number: int) -> PhysicalOffset:
    """Where record `number` of the log lies."""
    return PhysicalOffset(number * RECORD_SIZE)


def request(number: int, queue: QueueId, at: int, *lights: tuple[str, int]) -> DispatchRequest:
    return DispatchRequest(
        topic=queue.topic,
        queue_number=queue.number,
        queue_offset=QueueOffset(at),
        physical_offset=physical(number),
        size=RECORD_SIZE,
        tags_code=-number,
        store_timestamp_ms=1_700_000_000_000 + number,
        system_flag=0,
        properties={},
        light_queues=tuple((name, QueueOffset(offset)) for name, offset in lights),
    )


def entry(number: int, at: int) -> ConsumeQueueEntry:
    return ConsumeQueueEntry(QueueOffset(at), physical(number), RECORD_SIZE, -number, 1_700_000_000_000 + number)


def put(queues: ConsumeQueueStore, requests: Sequence[DispatchRequest]) -> None:
    end = max(each.physical_offset + each.size for each in requests)
    queues.put(requests, PhysicalOffset(end))


def offsets(queues: ConsumeQueueStore, queue: QueueId) -> list[int]:
    return [each.queue_offset for each in queues.entries(queue, QueueOffset(0), 10_000)]


def warm(queues: RocksConsumeQueues) -> int:
    """Read all ends of queues into memory; how many pages there were behind the first."""
    pages, after = 0, queues.warm(b"")
    while after is not None:
        pages, after = pages + 1, queues.warm(after)
    return pages


def queues_over(engine: KeyValueEngine, minimum: int = 0, cached: int = 100) -> RocksConsumeQueues:
    return RocksConsumeQueues(engine, minimum_physical_offset=PhysicalOffset(minimum), cached_queues_max=cached)
