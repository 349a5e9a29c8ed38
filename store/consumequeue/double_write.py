"""Consume queues kept in files, in RocksDB, or in both, while a store moves from one to the other.

Which of the two is read and which assigns the next offset is chosen separately, as in RocketMQ's combined store:

    files ──► both, read and numbered by files ──► both, read by RocksDB ──► RocksDB

All of it may be changed while the store runs. A crash between the two writes is harmless: the watermark is the lower of
both, and putting the same entries again changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import merge
from threading import Condition

from quarry_mq.protocol.names import LIGHT_QUEUE_PREFIX
from quarry_mq.store.consumequeue.files.layout import is_file_name
from quarry_mq.store.consumequeue.files.store import FileConsumeQueues, topic_order
from quarry_mq.store.consumequeue.light_queues import LiteParentsStep
from quarry_mq.store.consumequeue.names import LastEntry, LightQueueStep, QueueEnd
from quarry_mq.store.consumequeue.protocol import OneByOne
from quarry_mq.store.consumequeue.rocks.store import RocksConsumeQueues
from quarry_mq.store.message import (
    ConsumeQueueEntry,
    DispatchRequest,
    PhysicalOffset,
    QueueBounds,
    QueueId,
    QueueOffset,
)


class InUse:
    """Counts the users of a resource. To close it, hide it from new users first, then wait for the current ones."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._users = 0  # guarded by _changed

    @contextmanager
    def using(self) -> Iterator[None]:
        """Count the block as a user. Enter it before looking the resource up, leave it after the last use."""
        with self._changed:
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def wait_for_users(self) -> None:
        """Block until the resource has no users."""
        with self._changed:
            self._changed.wait_for(lambda: self._users == 0)


Queues = FileConsumeQueues | RocksConsumeQueues


class DoubleWriteConsumeQueues(OneByOne):
    """Implements `store.consumequeue.protocol.ConsumeQueueStore` on files, RocksDB, or both.

    `files` or `rocks` may be None, not both. If both are set, `read_rocks` chooses which one is read and `assign_rocks`
    which one assigns offsets. Some queues can exist in only one of the two and are read and numbered there: queues
    whose names are not valid file names are in RocksDB alone; queues of topics that are not `doubled` are in files
    alone (rmq#10450: double write for some topics only; None: all are).

    The thread that puts may set any of these fields between two calls. It may close what it has removed from a field
    once `in_use` has no more users: other threads may be in the middle of a flush or a count.
    """

    may_hold_more = True

    def __init__(
        self,
        files: FileConsumeQueues | None,
        rocks: RocksConsumeQueues | None,
        *,
        read_rocks: bool = False,
        assign_rocks: bool = False,
        doubled: Callable[[str], bool] | None = None,
    ) -> None:
        self.files = files
        self.rocks = rocks
        self.read_rocks = read_rocks
        self.assign_rocks = assign_rocks
        self.in_use = InUse()
        self.removals = 0
        """Incremented before and after topics are deleted or the log is truncated: odd while that is under way."""
        self._doubled = doubled

    # -- writing

    def put(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
        if self.files is not None:
            self.files.put(requests, dispatched_up_to)
        if self.rocks is not None:
            self.rocks.put(self._for_rocks(requests), dispatched_up_to)

    def put_missing(self, requests: Sequence[DispatchRequest]) -> None:
        if self.files is not None:
            self.files.put_missing(requests)
        if self.rocks is not None:
            self.rocks.put_missing(self._for_rocks(requests))

    def put_again(self, requests: Sequence[DispatchRequest], dispatched_up_to: PhysicalOffset) -> None:
        if self.files is not None:
            self.files.put_again(requests, dispatched_up_to)
        if self.rocks is not None:
            self.rocks.put_again(self._for_rocks(requests), dispatched_up_to)

    def reserve(self, queue: QueueId, next_offset: QueueOffset) -> None:
        if self.files is not None:
            self.files.reserve(queue, next_offset)
        if self.rocks is not None and (self.files is None or self.is_doubled(queue.topic)):
            self.rocks.reserve(queue, next_offset)

    def remove_lost_entries(self, queue: QueueId, end: QueueOffset) -> None:
        if self.rocks is not None:
            self.rocks.remove_lost_entries(queue, end)

    def is_doubled(self, topic: str) -> bool:
        """Return whether the topic is double-written, given that both stores are set."""
        return is_file_name(topic) and (self._doubled is None or self._doubled(topic))

    @property
    def doubles_all(self) -> bool:
        """True if all topics are double-written; else RocksDB has the entries of a light queue from some of them."""
        return self._doubled is None

    def may_have(self, topic: str) -> bool:
        return self.rocks is not None or is_file_name(topic)

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
        with self.in_use.using():
            return self._reader(queue).unread_below(queue, start, at)

    def bounds(self, queue: QueueId) -> QueueBounds:
        return self._reader(queue).bounds(queue)

    def next_offset(self, queue: QueueId) -> QueueOffset:
        return self._one_of(queue, prefer_rocks=self.assign_rocks).next_offset(queue)

    def next_offsets(self, queues: Sequence[tuple[str, int]]) -> list[QueueOffset]:
        if self.rocks is not None:
            self.rocks.next_offsets(queues)  # RocksDB is written next in any case, whichever store assigns the offsets
        return super().next_offsets(queues)

    def dispatched_up_to(self) -> PhysicalOffset | None:
        """Return the lower of the two watermarks: recovery starts there."""
        return min_or_none([each.dispatched_up_to() for each in self._both()])

    def queues(self, topic: str | None = None) -> Iterator[QueueId]:
        """Yield the queues of both stores, in key order."""
        return merge_queues(*(each.queues(topic) for each in self._both()))

    def ends(self, topic: str, after: int, limit: int) -> list[QueueEnd]:
        """Return the last positions from both stores; where both have the queue, the later position."""
        found: dict[int, PhysicalOffset] = {}
        for each in self._both():
            for number, last in each.ends(topic, after, limit):
                found[number] = max(last, found.get(number, last))
        return [QueueEnd(*each) for each in sorted(found.items())[:limit]]

    def _reader(self, queue: QueueId) -> Queues:
        return self._one_of(queue, prefer_rocks=self.read_rocks)

    def _one_of(self, queue: QueueId, *, prefer_rocks: bool) -> Queues:
        files, rocks = self.files, self.rocks
        if rocks is None:
            assert files is not None
            return files
        if files is None or not is_file_name(queue.topic):
            return rocks
        return rocks if prefer_rocks and self.is_doubled(queue.topic) else files

    def _both(self) -> list[Queues]:
        return [each for each in (self.files, self.rocks) if each is not None]

    # -- changes of many queues

    def topics_after(self, after: str, limit: int) -> list[str]:
        with self.in_use.using():
            topics = {topic for each in self._both() for topic in each.topics_after(after, limit)}
        return sorted(topics, key=topic_order)[:limit]

    def light_queues_ended(self, below: PhysicalOffset, key: bytes, prefix: str = LIGHT_QUEUE_PREFIX) -> LightQueueStep:
        with self.in_use.using():
            return self._keeper_of_light_queues().light_queues_ended(below, key, prefix)

    def lite_parents(self, key: bytes) -> LiteParentsStep:
        with self.in_use.using():
            return self._keeper_of_light_queues().lite_parents(key)

    def last_times_ms(self, found: Sequence[LastEntry]) -> list[int | None]:
        with self.in_use.using():
            return self._keeper_of_light_queues().last_times_ms(found)

    def still_ended(self, found: Sequence[LastEntry]) -> list[LastEntry]:
        return self._keeper_of_light_queues().still_ended(found)

    def remove_ended(self, found: Sequence[LastEntry]) -> None:
        with self._removing():
            self._keeper_of_light_queues().remove_ended(found)

    def _keeper_of_light_queues(self) -> Queues:
        """Return files where there are any: files never remove light queues, so the queues must stay in both."""
        return self._both()[0]

    def delete_topic(self, topic: str) -> None:
        with self._removing():
            for each in self._both():
                each.delete_topic(topic)

    def truncate(self, end: PhysicalOffset) -> None:
        with self._removing():
            for each in self._both():
                each.truncate(end)

    @contextmanager
    def _removing(self) -> Iterator[None]:
        self.removals += 1
        try:
            yield
        finally:
            self.removals += 1

    def set_minimum_physical_offset(self, minimum: PhysicalOffset) -> None:
        for each in self._both():
            each.set_minimum_physical_offset(minimum)

    # -- life

    def flush_entries(self) -> None:
        with self.in_use.using():
            for each in self._both():
                each.flush_entries()

    def flush(self) -> None:
        with self.in_use.using():
            for each in self._both():
                each.flush()

    def close(self) -> None:
        for each in self._both():
            each.close()


def min_or_none(watermarks: Sequence[PhysicalOffset | None]) -> PhysicalOffset | None:
    """Return the lowest watermark; None when any of them is None."""
    known = [each for each in watermarks if each is not None]
    return min(known) if len(known) == len(watermarks) else None


def merge_queues(*listings: Iterator[QueueId]) -> Iterator[QueueId]:
    """Merge listings in key order into one in which each queue appears once."""
    last: QueueId | None = None
    for queue in merge(*listings, key=_key_order):
        if queue != last:
            yield queue
        last = queue


def _key_order(queue: QueueId) -> tuple[int, bytes, int]:
    return *topic_order(queue.topic), queue.number
