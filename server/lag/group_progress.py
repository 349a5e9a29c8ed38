"""Compute the consumer lag of one group on request, also of topics that left memory long ago.

`server.lag.consumer_lag` knows the same of all groups that are in memory, as of its last sweep. A number here is right,
or there is none: what cannot be known raises (pains of RocketMQ: rmq#8764, rmq#10953, rocketmq-dashboard#4516).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from quarry_mq.kv import EngineFull, KeyRange, KvError
from quarry_mq.kv.keys import prefix_range
from quarry_mq.server.delivery import Delivery, StateWriter
from quarry_mq.server.delivery.retry_topics import retry_topics, topic_beside
from quarry_mq.server.lite.wanted import WantedLiteTopics
from quarry_mq.server.metadata import queues_of_topic
from quarry_mq.server.tasks.time_slice import TimeSlice
from quarry_mq.store.clock import Clock
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import BrokerError, Invalid, Unavailable
from quarry_mq.store.metadata import Topic
from quarry_mq.store.metadata.lite import light_queue_name
from quarry_mq.store.metadata.lite_subscriptions import LiteSubscriptionTable
from quarry_mq.store.metadata.names import is_light_queue
from quarry_mq.store.offsets import QueueBounds, QueueId, QueueOffset
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.state.families import INFLIGHT
from quarry_mq.store.state.in_flight_key import parse_position, subscription_prefix

QUEUES_MAX: Final = 65_536
"""Queues that one request may look at."""

ROWS_PER_STEP: Final = 500


class Accumulation(NamedTuple):
    """The number of messages in some queues that a group has not consumed yet, regardless of its filter.

    `in_flight` messages were handed out and are not acknowledged, those that wait for redelivery among them;
    `ready` ones were never handed out. Expired messages are in neither: no consumer gets them any more.
    `delay_ms` is the age of the oldest ready message, 0 without one.
    `passed_ms` is when the last message before the group's next offset was stored. None: no record could be read.
    """

    in_flight: int
    ready: int
    delay_ms: int | None
    passed_ms: int | None

    def with_more(self, other: Accumulation) -> Accumulation:
        """Add up two results. The longer delay and the later time are taken; the delay is unknown if one of both is."""
        delays = [each.delay_ms for each in (self, other) if each.delay_ms is not None]
        passed = [each.passed_ms for each in (self, other) if each.passed_ms is not None]
        return Accumulation(
            self.in_flight + other.in_flight,
            self.ready + other.ready,
            max(delays) if len(delays) == 2 else None,
            max(passed, default=None),
        )


NOTHING: Final = Accumulation(0, 0, 0, None)


class QueueStand(NamedTuple):
    """A group's next offset in a queue: all below `next_offset` was handed out, or skipped when the group began."""

    queue: QueueId
    bounds: QueueBounds
    next_offset: QueueOffset

    @property
    def ready(self) -> int:
        return self.bounds.maximum - self.next_offset


class ReadTopics(NamedTuple):
    """The topics that a group reads, and the light queues of the lite topics that it reads."""

    topics: list[str]
    light_queues: list[str]


@dataclass(slots=True)
class Budget:
    """The number of queues that a request may still look at."""

    left: int = QUEUES_MAX

    def take(self) -> None:
        """Use up one queue. Raises Invalid when none is left."""
        self.left -= 1
        if self.left < 0:
            raise Invalid(f"topics: those that are asked for have more than {QUEUES_MAX} queues, name fewer")


class GroupProgress:
    """Computes the consumer lag of single groups. Lives on the event loop's thread."""

    def __init__(self, store: OpenStore, delivery: Delivery, writer: StateWriter, clock: Clock) -> None:
        self._topics = store.topics
        self._messages = store.messages
        self._offsets = store.offsets
        self._rows = store.state_engine.family(INFLIGHT)
        self._lite_wanted = WantedLiteTopics(
            LiteSubscriptionTable(store.state_engine), groups=store.groups, topics=store.topics, queues=store.messages
        )
        self._delivery = delivery
        self._writer = writer
        self._clock = clock

    def reads(self, group: str, topic: str) -> bool:
        """Return whether the group has ever read the topic, or light queue."""
        return self._offsets.reads(group, topic)

    async def read_topics(
        self, group: str, time_slice: TimeSlice, budget: Budget, *, light_queues: bool = True
    ) -> ReadTopics:
        """Return all that the group reads; its retry topics are part of the topics that they belong to.

        Lite topics that a client is subscribed to, and has received nothing from yet, are included.
        """
        topics: dict[str, None] = {}
        light: dict[str, None] = {}
        for name in self._offsets.topics_of(group, light_queues=light_queues):
            await time_slice.pause()
            budget.take()
            if is_light_queue(name):
                light[name] = None
            elif self._topics.get(name) is not None and not self._is_retry(group, name):
                topics[name] = None
        for name in self._lite_wanted.of(group) if light_queues else ():
            await time_slice.pause()
            if name not in light:
                budget.take()
                light[name] = None
        return ReadTopics(list(topics), list(light))

    def reads_lite(self, group: str, parent: str, lite_topic: str) -> bool:
        """Return whether the group has ever read the lite topic, or one of its clients is subscribed to it."""
        return self.reads(group, light_queue_name(parent, lite_topic)) or self._lite_wanted.has(
            group, parent, lite_topic
        )

    def _is_retry(self, group: str, name: str) -> bool:
        """Return whether the topic is a retry topic of the group, whose messages count in the topic that it retries."""
        topic = topic_beside(group, name)
        return topic is not None and self.reads(group, topic)

    async def of_topic(self, group: str, topic: Topic, time_slice: TimeSlice, budget: Budget) -> Accumulation:
        """Compute the lag in all queues of a topic, and in the group's retry topics for it.

        Raises Invalid for too many queues, and Unavailable while it cannot be known how many are in flight.
        """
        beside = [each.name for each in retry_topics(group, topic.name)]
        retry_queues = (queue for name in beside for queue in self._messages.iterate_queues(name))
        return await self._count(
            group, [topic.name, *beside], chain(self.queues(topic), retry_queues), time_slice, budget
        )

    async def of_light_queue(self, group: str, name: str, time_slice: TimeSlice) -> Accumulation:
        """Compute the lag of a group in one light queue. Raises as `of_topic`."""
        return await self._count(group, [name], iter([QueueId(name, 0)]), time_slice, Budget(1))

    def queues(self, topic: Topic) -> list[QueueId]:
        """Return the queues of the topic, including those that still hold messages from when it had more queues."""
        return queues_of_topic(self._messages, topic.name, topic.queue_count)

    def stand(self, group: str, queue: QueueId) -> QueueStand:
        """Return the group's next offset in a queue. A queue added to a topic is read from its first message.

        An offset outside of the queue is clamped to its bounds, as delivery does it: a stored offset may be below the
        min offset, or above the max offset that a recovery has found.
        """
        bounds = self._messages.bounds(queue)
        stored = self._delivery.next_offset(group, queue)
        next_offset = bounds.minimum if stored is None else stored
        return QueueStand(queue, bounds, QueueOffset(min(max(next_offset, bounds.minimum), bounds.maximum)))

    def stored_ms(self, queue: QueueId, offset: int) -> int | None:
        """Return when a message of the queue was stored; None if its record cannot be read."""
        return self._time_of(self._entry(queue, offset))

    async def _count(
        self, group: str, names: list[str], queues: Iterator[QueueId], time_slice: TimeSlice, budget: Budget
    ) -> Accumulation:
        ready = 0
        oldest: ConsumeQueueEntry | None = None
        passed: ConsumeQueueEntry | None = None
        for queue in queues:
            await time_slice.pause()
            budget.take()
            stand = self.stand(group, queue)
            if stand.ready:
                ready += stand.ready
                oldest = _outer(oldest, self._entry(queue, stand.next_offset), newest=False)
            if stand.next_offset > stand.bounds.minimum:
                passed = _outer(passed, self._entry(queue, stand.next_offset - 1), newest=True)
        in_flight = 0
        for name in names:
            in_flight += await self._in_flight(group, name, time_slice)
        stored_ms = self._time_of(oldest)
        delay_ms = None if stored_ms is None else max(0, self._clock.wall_ms() - stored_ms)
        return Accumulation(in_flight, ready, delay_ms if ready else 0, self._time_of(passed))

    async def _in_flight(self, group: str, topic: str, time_slice: TimeSlice) -> int:
        """Count the rows in flight whose messages have not expired.

        A message that is handed out during the count may count twice, but is never missed.
        """
        self._require_written()
        prefix = subscription_prefix(group, topic)
        keys, count = prefix_range(prefix), 0
        minima: dict[int, QueueOffset] = {}
        while True:
            page = self._rows.scan(keys, limit=ROWS_PER_STEP)
            for key, _ in page:
                number, offset = parse_position(key, len(prefix))
                if number not in minima:
                    minima[number] = self._messages.bounds(QueueId(topic, number)).minimum
                count += offset >= minima[number]
            if len(page) < ROWS_PER_STEP:
                return count
            keys = KeyRange(page[-1][0] + b"\0", keys.end)
            await time_slice.pause()

    def _require_written(self) -> None:
        """Write pending changes, so that the rows in flight are complete.

        Raises Unavailable, or StorePoisoned if they can never be written again.
        """
        outcome: list[Exception | None] = []
        self._writer.when_written(outcome.append)
        self._writer.write_now()
        error = outcome.pop()
        try:
            if isinstance(error, EngineFull):
                raise Unavailable(f"how many messages are in flight is not known: {error}") from error
            if error is not None:
                raise error
        finally:
            del error  # it refers to this frame

    def _entry(self, queue: QueueId, offset: int) -> ConsumeQueueEntry | None:
        found = self._messages.entries(queue, QueueOffset(offset), 1)
        return found[0] if found else None

    def _time_of(self, entry: ConsumeQueueEntry | None) -> int | None:
        if entry is not None:
            with suppress(OSError, KvError, BrokerError):  # the client that receives the message gets the error
                return self._messages.read(entry).store_timestamp_ms
        return None


def _outer(one: ConsumeQueueEntry | None, other: ConsumeQueueEntry | None, *, newest: bool) -> ConsumeQueueEntry | None:
    """Return the newest or the oldest of two entries by log position, because store times never go back."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=_place) if newest else min(one, other, key=_place)


def _place(entry: ConsumeQueueEntry) -> int:
    return entry.physical_offset
