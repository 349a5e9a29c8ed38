"""Consume queues kept twice, in files and in RocksDB, while a store moves from one to the other.

Which of the two is read and which says what offset comes next is chosen separately, as in RocketMQ's combined store:

    files ──► both, read and numbered by files ──► both, read by RocksDB ──► RocksDB

A crash between the two writes is harmless: the watermark is the lower of both, and putting again changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import merge

from store.consumequeue.file_store import FileConsumeQueues, is_file_name, topic_order
from store.consumequeue.names import LastEntry, LightQueueStep
from store.consumequeue.protocol import ConsumeQueueEntry
from store.consumequeue.rocks_store import RocksConsumeQueues
from store.message import DispatchRequest
from store.offsets import PhysicalOffset, QueueBounds, QueueId, QueueOffset

Queues = FileConsumeQueues | RocksConsumeQueues


class DoubleWriteConsumeQueues:
    """See `store.consumequeue.protocol.ConsumeQueueStore`.

    `read_rocks` and `assign_rocks` choose who answers and who numbers; both may be changed while the store runs.
    Queues that only one of the two can have are read and numbered by that one: names that are no file names, and
    topics that are not `doubled` (rmq#10450: double write for some topics only; None: all are). The first are in
    RocksDB alone, the second in files alone.
    """

    may_hold_more = True

    def __init__(
        self,
        files: FileConsumeQueues,
        rocks: RocksConsumeQueues,
        *,
        read_rocks: bool,
        assign_rocks: bool,
        doubled: Callable[[str], bool] | None = None,
    ) -> None:
        self.files = files
        self.rocks = rocks
        self.read_rocks = read_rocks
        self.assign_rocks = assign_rocks
        self.removals = 0
        """Grows before and after topics are deleted or the log is truncated: odd while that is under way."""
        self._doubled = doubled

    # -- writing

    def put(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
        self.files.put(requests, dispatched_up_to)
        self.rocks.put(self._for_rocks(requests), dispatched_up_to)

    def put_missing(self, requests: Sequence[DispatchRequest]) -> None:
        self.files.put_missing(requests)
        self.rocks.put_missing(self._for_rocks(requests))

    def put_again(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
        self.files.put_again(requests, dispatched_up_to)
        self.rocks.put_again(self._for_rocks(requests), dispatched_up_to)

    def is_doubled(self, topic: str) -> bool:
        """Whether both are written for the topic."""
        return is_file_name(topic) and (self._doubled is None or self._doubled(topic))

    def _for_rocks(self, requests: Sequence[DispatchRequest]) -> Sequence[DispatchRequest]:
        doubled = self._doubled
        if doubled is None:
            return requests
        return [request for request in requests if doubled(request.topic)]

    # -- reading

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]:
        return self._reader(queue).entries(queue, start, limit)

    def last_entry_below(self, queue: QueueId, at: PhysicalOffset) -> ConsumeQueueEntry | None:
        return self._reader(queue).last_entry_below(queue, at)

    def unread_below(self, queue: QueueId, start: QueueOffset, at: PhysicalOffset) -> int:
        return self._reader(queue).unread_below(queue, start, at)

    def bounds(self, queue: QueueId) -> QueueBounds:
        return self._reader(queue).bounds(queue)

    def next_offset(self, queue: QueueId) -> QueueOffset:
        return self._one_of(queue, prefer_rocks=self.assign_rocks).next_offset(queue)

    def dispatched_up_to(self) -> PhysicalOffset | None:
        """The older of the two: recovery starts there."""
        files, rocks = self.files.dispatched_up_to(), self.rocks.dispatched_up_to()
        return None if files is None or rocks is None else min(files, rocks)

    def queues(self, topic: str | None = None) -> Iterator[QueueId]:
        """Those of either, in key order."""
        return merge_queues(self.files.queues(topic), self.rocks.queues(topic))

    def _reader(self, queue: QueueId) -> Queues:
        return self._one_of(queue, prefer_rocks=self.read_rocks)

    def _one_of(self, queue: QueueId, *, prefer_rocks: bool) -> Queues:
        if not is_file_name(queue.topic):
            return self.rocks
        return self.rocks if prefer_rocks and self.is_doubled(queue.topic) else self.files

    # -- changes of many queues

    def topics_behind(self, behind: str, limit: int) -> list[str]:
        topics = {*self.files.topics_behind(behind, limit), *self.rocks.topics_behind(behind, limit)}
        return sorted(topics, key=topic_order)[:limit]

    def light_queues_ended(self, below: PhysicalOffset, key: bytes) -> LightQueueStep:
        return self.files.light_queues_ended(below, key)

    def still_ended(self, found: Sequence[LastEntry]) -> list[LastEntry]:
        return self.files.still_ended(found)

    def remove_ended(self, found: Sequence[LastEntry]) -> None:
        self.files.remove_ended(found)

    def delete_topic(self, topic: str) -> None:
        with self._removing():
            self.files.delete_topic(topic)
            self.rocks.delete_topic(topic)

    def truncate(self, end: PhysicalOffset) -> None:
        with self._removing():
            self.files.truncate(end)
            self.rocks.truncate(end)

    @contextmanager
    def _removing(self) -> Iterator[None]:
        self.removals += 1
        try:
            yield
        finally:
            self.removals += 1

    def set_minimum_physical_offset(self, minimum: PhysicalOffset) -> None:
        self.files.set_minimum_physical_offset(minimum)
        self.rocks.set_minimum_physical_offset(minimum)

    # -- life

    def flush_entries(self) -> None:
        self.files.flush_entries()
        self.rocks.flush_entries()

    def flush(self) -> None:
        self.files.flush()
        self.rocks.flush()

    def close(self) -> None:
        self.files.close()
        self.rocks.close()


def merge_queues(*listings: Iterator[QueueId]) -> Iterator[QueueId]:
    """Several listings in key order as one, each queue once."""
    last: QueueId | None = None
    for queue in merge(*listings, key=_key_order):
        if queue != last:
            yield queue
        last = queue


def _key_order(queue: QueueId) -> tuple[int, bytes, int]:
    return *topic_order(queue.topic), queue.number
