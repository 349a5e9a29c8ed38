"""Compute the consumer lag of one group on request, also of topics that left memory long ago.

`server.lag.consumer_lag` knows the same of all groups that are in memory, as of its last sweep. A number here is right,
or there is none: what cannot be known raises (pains of RocketMQ: rmq#8764, rmq#10953, rocketmq-dashboard#4516).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from quarry_mq.kv import EngineFull
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.names import is_light_queue
from quarry_mq.server.delivery import Delivery, StateWriter
from quarry_mq.server.delivery.retry_topics import retry_topics, topic_beside
from quarry_mq.server.lag.measurement import GroupTopic, LagMeasurement, Measured
from quarry_mq.server.lite.subscriptions import WantedLiteTopics
from quarry_mq.server.metadata import queues_of_topic
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.errors import Invalid, Unavailable
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import Topic
from quarry_mq.store.metadata.lite import LiteSubscriptionTable, light_queue_name
from quarry_mq.store.opening.open_store import OpenStore

QUEUES_MAX: Final = 65_536
"""Queues that one request may look at."""


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
            raise Invalid(f"topics: the requested topics have more than {QUEUES_MAX} queues: name fewer topics")


class GroupProgress(LagMeasurement):
    """Computes the consumer lag of single groups. Lives on the event loop's thread."""

    def __init__(self, store: OpenStore, delivery: Delivery, writer: StateWriter, clock: Clock) -> None:
        super().__init__(delivery, store.messages)
        self._topics = store.topics
        self._offsets = store.offsets
        self._lite_wanted = WantedLiteTopics(
            LiteSubscriptionTable(store.state_engine), groups=store.groups, topics=store.topics, queues=store.messages
        )
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
        retry_queues = ((name, self._source.iterate_queues(name)) for name in beside)
        return await self._count(group, chain([(topic.name, self.queues(topic))], retry_queues), time_slice, budget)

    async def of_light_queue(self, group: str, name: str, time_slice: TimeSlice) -> Accumulation:
        """Compute the lag of a group in one light queue. Raises as `of_topic`."""
        return await self._count(group, [(name, [QueueId(name, 0)])], time_slice, Budget(1))

    def queues(self, topic: Topic) -> list[QueueId]:
        """Return the queues of the topic, including those that still hold messages from when it had more queues."""
        return queues_of_topic(self._source, topic.name, topic.queue_count)

    def stored_ms(self, queue: QueueId, offset: int) -> int | None:
        """Return when a message of the queue was stored; None if its record cannot be read."""
        return self._time_of(self._entry(queue, offset))

    async def _count(
        self, group: str, queues: Iterable[tuple[str, Iterable[QueueId]]], time_slice: TimeSlice, budget: Budget
    ) -> Accumulation:
        measured = Measured()
        for topic, each in queues:
            self._require_written()
            for _ in self.add_topic(measured, GroupTopic(group, topic), _within(budget, each), with_passed=True):
                await time_slice.pause()
            if measured.in_flight is None:
                raise Unavailable("how many messages are in flight is not known")
        stored_ms = self._time_of(measured.oldest_ready)
        delay_ms = None if stored_ms is None else max(0, self._clock.wall_ms() - stored_ms)
        return Accumulation(
            measured.in_flight or 0, measured.ready, delay_ms if measured.ready else 0, self._time_of(measured.passed)
        )

    def _require_written(self) -> None:
        """Write pending changes, without which the rows in flight are not complete.

        Raises Unavailable, or StorePoisoned if they can never be written again.
        """
        outcome: list[Exception | None] = []
        self._writer.when_written(outcome.append)
        self._writer.write_now()
        error = outcome.pop()
        try:
            if isinstance(error, EngineFull):
                raise Unavailable(f"the number of messages in flight is unknown: {error}") from error
            if error is not None:
                raise error
        finally:
            del error  # it refers to this frame


def _within(budget: Budget, queues: Iterable[QueueId]) -> Iterator[QueueId]:
    """Yield the queues, and take each from the budget. Raises Invalid."""
    for queue in queues:
        budget.take()
        yield queue
