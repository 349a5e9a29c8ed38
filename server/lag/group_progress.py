"""How far one group is behind, counted when it is asked for: also for what has long left memory.

`server.lag.consumer_lag` knows the same of all groups that are in memory, as of its last round. A number here is right,
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
from quarry_mq.server.tasks.pacing import Pace
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
"""Of one request."""

ROWS_PER_STEP: Final = 500


class Accumulation(NamedTuple):
    """What a group has before it in some queues, without regard to its filter.

    `in_flight` messages were handed out and are not acknowledged, those that wait for their next delivery among them;
    `ready` ones were never handed out. What has expired is neither: nobody gets it any more.
    `delay_ms` is how long the oldest ready one has been there, 0 when none is;
    `passed_ms` when the last one that the group has gone past was stored. None: no record tells.
    """

    in_flight: int
    ready: int
    delay_ms: int | None
    passed_ms: int | None

    def with_more(self, other: Accumulation) -> Accumulation:
        """Of both: the longer delay, and the later time. A delay that is not known of one of them is not known."""
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
    """Where a group stands in a queue: all below `next_offset` was handed out, or passed over at the group's start."""

    queue: QueueId
    bounds: QueueBounds
    next_offset: QueueOffset

    @property
    def ready(self) -> int:
        return self.bounds.maximum - self.next_offset


class ReadTopics(NamedTuple):
    """What a group reads; the light queues of lite topics are named beside the topics."""

    topics: list[str]
    light_queues: list[str]


@dataclass(slots=True)
class Budget:
    """How many queues a request may still look at."""

    left: int = QUEUES_MAX

    def take(self) -> None:
        """Raises Invalid."""
        self.left -= 1
        if self.left < 0:
            raise Invalid(f"topics: those that are asked for have more than {QUEUES_MAX} queues, name fewer")


class GroupProgress:
    """Lives on the event loop's thread."""

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
        """Whether the group has ever read the topic, or light queue."""
        return self._offsets.reads(group, topic)

    async def read_topics(self, group: str, pace: Pace, budget: Budget, *, light_queues: bool = True) -> ReadTopics:
        """All that the group reads; its retry topics are part of the topics that they belong to.

        Of lite topics also those that a client wants and has got nothing of so far.
        """
        topics: dict[str, None] = {}
        light: dict[str, None] = {}
        for name in self._offsets.topics_of(group, light_queues=light_queues):
            await pace.pause()
            budget.take()
            if is_light_queue(name):
                light[name] = None
            elif self._topics.get(name) is not None and not self._is_retry(group, name):
                topics[name] = None
        for name in self._lite_wanted.of(group) if light_queues else ():
            await pace.pause()
            if name not in light:
                budget.take()
                light[name] = None
        return ReadTopics(list(topics), list(light))

    def reads_lite(self, group: str, parent: str, lite_topic: str) -> bool:
        """Whether the group has ever read the lite topic, or a client of it wants it."""
        return self.reads(group, light_queue_name(parent, lite_topic)) or self._lite_wanted.has(
            group, parent, lite_topic
        )

    def _is_retry(self, group: str, name: str) -> bool:
        """Whether it is beside a topic of the group: all that it holds counts there."""
        topic = topic_beside(group, name)
        return topic is not None and self.reads(group, topic)

    async def of_topic(self, group: str, topic: Topic, pace: Pace, budget: Budget) -> Accumulation:
        """In all queues of a topic that the group has read, and in its retry topics.

        Raises Invalid for too many queues, and Unavailable while it cannot be known how many are in flight.
        """
        beside = [each.name for each in retry_topics(group, topic.name)]
        retry_queues = (queue for name in beside for queue in self._messages.iterate_queues(name))
        return await self._count(group, [topic.name, *beside], chain(self.queues(topic), retry_queues), pace, budget)

    async def of_light_queue(self, group: str, name: str, pace: Pace) -> Accumulation:
        """The same of a light queue."""
        return await self._count(group, [name], iter([QueueId(name, 0)]), pace, Budget(1))

    def queues(self, topic: Topic) -> list[QueueId]:
        """Those of the topic, also such as hold messages from when it had more."""
        return queues_of_topic(self._messages, topic.name, topic.queue_count)

    def stand(self, group: str, queue: QueueId) -> QueueStand:
        """A queue that comes to a topic which the group reads is read from its first message.

        What lies outside of the queue is brought back into it, as delivery does: a stored offset may be below the
        first message that is still there, or behind the last one that a recovery has found.
        """
        bounds = self._messages.bounds(queue)
        stored = self._delivery.next_offset(group, queue)
        next_offset = bounds.minimum if stored is None else stored
        return QueueStand(queue, bounds, QueueOffset(min(max(next_offset, bounds.minimum), bounds.maximum)))

    def stored_ms(self, queue: QueueId, offset: int) -> int | None:
        """When a message of the queue was stored; None if its record cannot be read."""
        return self._time_of(self._entry(queue, offset))

    async def _count(
        self, group: str, names: list[str], queues: Iterator[QueueId], pace: Pace, budget: Budget
    ) -> Accumulation:
        ready = 0
        oldest: ConsumeQueueEntry | None = None
        passed: ConsumeQueueEntry | None = None
        for queue in queues:
            await pace.pause()
            budget.take()
            stand = self.stand(group, queue)
            if stand.ready:
                ready += stand.ready
                oldest = _outer(oldest, self._entry(queue, stand.next_offset), newest=False)
            if stand.next_offset > stand.bounds.minimum:
                passed = _outer(passed, self._entry(queue, stand.next_offset - 1), newest=True)
        in_flight = 0
        for name in names:
            in_flight += await self._in_flight(group, name, pace)
        stored_ms = self._time_of(oldest)
        delay_ms = None if stored_ms is None else max(0, self._clock.wall_ms() - stored_ms)
        return Accumulation(in_flight, ready, delay_ms if ready else 0, self._time_of(passed))

    async def _in_flight(self, group: str, topic: str, pace: Pace) -> int:
        """How many rows there are of messages that have not expired.

        A message that is handed out meanwhile counts twice rather than not at all.
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
            await pace.pause()

    def _require_written(self) -> None:
        """From here on the rows tell. Raises Unavailable, or StorePoisoned where they never will again."""
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
            with suppress(OSError, KvError, BrokerError):  # who receives it hears what is wrong with it
                return self._messages.read(entry).store_timestamp_ms
        return None


def _outer(one: ConsumeQueueEntry | None, other: ConsumeQueueEntry | None, *, newest: bool) -> ConsumeQueueEntry | None:
    """What lies further back in the log is older: store times never go back."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=_place) if newest else min(one, other, key=_place)


def _place(entry: ConsumeQueueEntry) -> int:
    return entry.physical_offset
