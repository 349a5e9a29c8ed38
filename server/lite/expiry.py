"""Removes lite topics whose last message is older than their topic allows (ADR 37).

| lite topics of                           | removed when                                               |
|------------------------------------------|------------------------------------------------------------|
| a topic with `lite.topic.expiration`     | the last message is older than that, read or not           |
| a topic that was deleted                 | at once, unless they got a message since                   |
| a topic that has been missing for longer | after ten minutes: a crash, or another member's deletion   |

Every two minutes the topics that have lite topics are listed, and only the lite topics of topics with an expiration are
scanned (rmq#10929). The topic's own queues show below which log position everything is too old, because each message of
a lite topic is in one of them, too. A lite topic whose last entry lies below that position is too old if the time in
that entry says so or, when the entry is gone, if the log began above it at that time. No record is read.

Of a light queue, such as a lite topic's, first the progress of groups is removed, then the entries. Queues that another
thread has found are checked again in the step that removes them, on the one thread that appends, dispatches and
removes. So a message either arrived before and its queue stays, or arrives after and begins a new queue. No message is
lost in between.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import structlog

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import CautiousClock, Clock
from quarry_mq.server.append import QueueCommit
from quarry_mq.server.delivery.lite import of_parent
from quarry_mq.server.tasks import PAUSE_S, LastErrors, RemovalSteps, Worker
from quarry_mq.store.commitlog.segments import LogBegins
from quarry_mq.store.consumequeue import ConsumeQueueEntry, LastEntry, LightQueueStep, LiteParentsStep
from quarry_mq.store.consumequeue.search import TimeBoundary
from quarry_mq.store.errors import BrokerError
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import PhysicalOffset, QueueBounds, QueueId, QueueOffset
from quarry_mq.store.metadata import Topic
from quarry_mq.store.metadata.lite import light_queue_prefix, lite_topic_ttl_ms
from quarry_mq.store.rocketmq import read_metadata

log = structlog.get_logger(__name__)

NAMES_LOGGED_MAX: Final = 16


class RemovalCause(Enum):
    """The reason for removing queues; the value is its name in metrics."""

    UNKNOWN_TOPIC = "unknown_topic"
    IDLE = "idle"
    LITE_EXPIRED = "lite_expired"
    LITE_WITHOUT_TOPIC = "lite_without_topic"
    LITE_DELETED = "lite_deleted"


class RemovalMetrics(Protocol):
    def removed_queues(self, cause: RemovalCause, queues: int) -> None: ...


class TopicNames(Protocol):
    def missing(self, names: Sequence[str]) -> list[str]: ...


class Progress(Protocol):
    """The progress of groups, see `server.delivery.Delivery`."""

    def delete_topics(self, topics: Iterable[str], *, durably: bool = True) -> None: ...

    def store_durably(self) -> None: ...


class TopicsOfRocketmq:
    """The topics that RocketMQ's metadata in the store names and Quarry does not know. Any thread may ask."""

    def __init__(self, topics: TopicNames, directory: Path) -> None:
        self._topics = topics
        self._directory = directory
        self._names: frozenset[str] | None = None

    def names(self) -> frozenset[str]:
        """Return their names, which are read once.

        RocketMQ may have run on the store since its metadata was taken over, and have created topics and messages.
        """
        if self._names is None:
            found = read_metadata(PosixDisk(), self._directory).topics
            self._names = names = frozenset(self._topics.missing([topic.name for topic in found]))
            if names:
                log.warning(
                    "topics that RocketMQ has in this store do not exist here: create them, or their queues stay as "
                    "they are",
                    topics=sorted(names)[:NAMES_LOGGED_MAX],
                    topics_count=len(names),
                )
        return self._names


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovalParts:
    """The parts that removals of queues share, those of lite topics included."""

    progress: Progress
    commit: QueueCommit
    clock: Clock
    metrics: RemovalMetrics
    topics_of_rocketmq: TopicsOfRocketmq
    begins: LogBegins
    """Tells where the log began at which time: one record for all removals."""


class RemovableLightQueues(Protocol):
    """The part of the message store that removal needs."""

    def still_ended(self, found: Sequence[LastEntry]) -> list[LastEntry]: ...

    def remove_ended(self, found: Sequence[LastEntry]) -> None: ...


class LightQueueRemoval:
    """Removes light queues that were found to have ended. Lives on the event loop's thread."""

    def __init__(
        self,
        queues: RemovableLightQueues,
        *,
        progress: Progress,
        commit: QueueCommit,
        clock: Clock,
        gone: Callable[[Sequence[str]], None],
    ) -> None:
        """`gone` is called once with the names of queues whose entries were removed."""
        self._gone = gone
        self._queues = queues
        self._progress = progress
        self._commit = commit
        self._steps = RemovalSteps(self._make_durable, clock)

    async def remove(self, found: Sequence[LastEntry]) -> int:
        """Remove the queues that got no message since they were found, in steps, and return their number.

        Raises kv.KvError, BrokerError. The removal is durable after `flush`.
        """
        return await self._steps.take(found, self._remove_now)

    async def flush(self) -> None:
        """Make what was removed so far durable. Raises kv.KvError, BrokerError."""
        await self._steps.flush()

    def _remove_now(self, found: Sequence[LastEntry]) -> int:
        ended = self._queues.still_ended(found)
        names = [each.queue.topic for each in ended]
        if not names:
            return 0
        # queues last: after a crash in between they are found again
        self._progress.delete_topics(names, durably=False)
        self._queues.remove_ended(ended)
        self._gone(names)
        return len(ended)

    async def _make_durable(self) -> None:
        """Make the progress durable first: after a crash in between the queues are found again."""
        self._progress.store_durably()
        await self._commit.make_queues_durable()


MISSING_PATIENCE_S: Final = 600.0
"""Seconds a topic must have been missing before its lite topics are removed.

Other members delete topics and take deletions back.
"""

RETRY_S: Final = 10.0

REFUSALS: Final = (KvError, OSError, BrokerError)


class ExpiringQueues(Protocol):
    """The part of the message store that expiry needs. The first three methods are called from another thread."""

    def light_queues_ended(self, below: PhysicalOffset, key: bytes, prefix: str = ...) -> LightQueueStep: ...

    def lite_parents(self, key: bytes) -> LiteParentsStep: ...

    def last_times_ms(self, found: Sequence[LastEntry]) -> list[int | None]: ...

    @property
    def dispatched_up_to(self) -> PhysicalOffset: ...

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]: ...

    def offset_at_time(self, queue: QueueId, time_ms: int, boundary: TimeBoundary) -> QueueOffset: ...

    def iterate_queues(self, topic: str | None = None) -> list[QueueId]: ...


class KnownTopics(Protocol):
    def get(self, name: str) -> Topic | None: ...


class _Age(NamedTuple):
    """The bounds of messages that are too old: those stored before `before_ms`."""

    before_ms: int
    below: PhysicalOffset
    """No message of the topic at or above this position is too old."""
    old_below: PhysicalOffset
    """Every message below this position is too old; used for lite topics whose entries are gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpiryDependencies:
    """Other parts of a broker that expiry needs.

    `topics_elsewhere`: returns the topics that RocketMQ's metadata in the store names and Quarry does not know; called
    on any thread. `log_begin`: returns the log's current start offset.
    """

    topics: KnownTopics
    topics_elsewhere: Callable[[], frozenset[str]]
    begins: LogBegins
    log_begin: Callable[[], PhysicalOffset]
    worker: Worker
    clock: Clock
    metrics: RemovalMetrics


class LiteTopicExpiry:
    """The expiry of all lite topics of one open store. Lives on the event loop's thread."""

    def __init__(
        self,
        queues: ExpiringQueues,
        removal: LightQueueRemoval,
        dependencies: ExpiryDependencies,
        *,
        interval_s: float | None,
        begins_kept_ms: int,
    ) -> None:
        """Build the expiry of lite topics. `interval_s` None: only lite topics of deleted topics are removed.

        `begins_kept_ms`: how far back `begins` is queried.
        """
        self._begins_kept_ms = begins_kept_ms
        self._queues = queues
        self._removal = removal
        self._dependencies = dependencies
        self._interval_s = interval_s
        self._age_clock = CautiousClock(dependencies.clock)
        self._deleted: dict[str, PhysicalOffset] = {}
        self._missing_since_s: dict[str, float] = {}
        self._has_work = asyncio.Event()
        self._errors = LastErrors()

    def topic_deleted(self, name: str) -> None:
        """Remove the lite topics of a deleted topic that get no message from now on."""
        self._deleted[name] = self._queues.dispatched_up_to
        self._has_work.set()

    async def run(self) -> None:
        """Find and remove lite topics that have expired, until cancelled. A failure is logged once and tried again."""
        clock = self._dependencies.clock
        interval_s = math.inf if self._interval_s is None else self._interval_s
        due_s = clock.monotonic_s() + interval_s
        while True:
            await self._work_within(RETRY_S if self._deleted else due_s - clock.monotonic_s())
            if self._deleted:
                await self._tried(self.remove_of_deleted)
            if clock.monotonic_s() >= due_s:
                await self._tried(self.remove_expired)
                due_s = clock.monotonic_s() + interval_s

    async def _work_within(self, seconds: float) -> None:
        """Wait until there is something to do, at most for this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(seconds) else max(0.0, seconds)):
                await self._has_work.wait()
        self._has_work.clear()

    async def remove_expired(self) -> int:
        """Remove the lite topics that are too old, and return their number. Raises kv.KvError, BrokerError."""
        now_ms = self._age_clock.wall_ms()
        self._dependencies.begins.note(now_ms, self._dependencies.log_begin(), since_ms=now_ms - self._begins_kept_ms)
        removed, missing = 0, dict[str, float]()
        for parent in await self._parents():
            topic = self._dependencies.topics.get(parent)
            if topic is not None:
                removed += await self._remove_old(topic, now_ms)
            elif await self._is_gone(parent, missing):
                removed += await self._remove_below(parent, self._queues.dispatched_up_to)
        self._missing_since_s = missing
        await self._removal.flush()
        return removed

    async def remove_of_deleted(self) -> int:
        """Remove the lite topics of deleted topics, and return their number. Raises kv.KvError, BrokerError."""
        removed = 0
        while self._deleted:
            name, below = next(iter(self._deleted.items()))
            removed += await self._remove_below(name, below)
            if self._deleted.get(name) == below:
                del self._deleted[name]
        await self._removal.flush()
        return removed

    # -- which

    async def _parents(self) -> list[str]:
        """The topics that have lite topics, each once."""
        parents: dict[str, None] = {}
        key: bytes | None = b""
        while key is not None:
            step = await self._dependencies.worker.run(self._queues.lite_parents, key)
            parents.update(dict.fromkeys(step.parents))
            key = step.next_key
        return list(parents)

    async def _is_gone(self, parent: str, missing: dict[str, float]) -> bool:
        """Return whether a topic that does not exist has been missing for long enough."""
        now_s = self._dependencies.clock.monotonic_s()
        since_s = missing[parent] = self._missing_since_s.get(parent, now_s)
        if now_s - since_s < MISSING_PATIENCE_S:
            return False
        return parent not in await self._dependencies.worker.run(self._dependencies.topics_elsewhere)

    async def _age(self, topic: Topic, before_ms: int) -> _Age:
        """Find the bounds of what is too old by one search per queue of the topic, a fraction of a millisecond each."""
        queues = self._queues
        below, log_begin = queues.dispatched_up_to, self._dependencies.log_begin()
        has_older = False
        numbers = {queue.number for queue in queues.iterate_queues(topic.name)}
        for number in sorted(numbers):
            queue = QueueId(topic.name, number)
            first_new = queues.offset_at_time(queue, before_ms, TimeBoundary.LOWER)
            has_older = has_older or first_new > queues.bounds(queue).minimum
            for entry in queues.entries(queue, first_new, 1):
                below = min(below, entry.physical_offset)
            await asyncio.sleep(0)
        # if an older message is still there, everything below the log's start is older, too
        old_below = log_begin if has_older else self._dependencies.begins.at(before_ms)
        return _Age(before_ms, below, old_below or PhysicalOffset(0))

    def _too_old(self, parent: str, age: _Age, key: bytes) -> LightQueueStep:
        """Return the next lite topics whose last message is too old. Runs on another thread."""
        step = self._queues.light_queues_ended(age.below, key, light_queue_prefix(parent))
        found = of_parent(parent, step.ended)
        old = [
            each
            for each, stored_ms in zip(found, self._queues.last_times_ms(found), strict=True)
            if (each.last.physical_offset < age.old_below if stored_ms is None else stored_ms < age.before_ms)
        ]
        return step._replace(ended=old)

    def _all_below(self, parent: str, below: PhysicalOffset, key: bytes) -> LightQueueStep:
        """Return the next lite topics whose last message lies below the position. Runs on another thread."""
        step = self._queues.light_queues_ended(below, key, light_queue_prefix(parent))
        return step._replace(ended=of_parent(parent, step.ended))

    # -- away

    async def _remove_old(self, topic: Topic, now_ms: int) -> int:
        ttl_ms = lite_topic_ttl_ms(topic)
        if ttl_ms is None:
            return 0
        age = await self._age(topic, now_ms - ttl_ms)
        removed = looked_at = 0
        key: bytes | None = b""
        while key is not None:
            step = await self._dependencies.worker.run(self._too_old, topic.name, age, key)
            known = self._dependencies.topics.get(topic.name)
            if known is None or lite_topic_ttl_ms(known) != ttl_ms:
                break  # the topic's expiration was changed meanwhile
            removed += await self._removal.remove(step.ended)
            looked_at += step.looked_at
            key = step.next_key
            await asyncio.sleep(PAUSE_S)
        if removed:
            self._dependencies.metrics.removed_queues(RemovalCause.LITE_EXPIRED, removed)
            log.info("lite topics have expired", topic=topic.name, lite_topics=removed, looked_at=looked_at)
        return removed

    async def _remove_below(self, parent: str, below: PhysicalOffset) -> int:
        removed = 0
        key: bytes | None = b""
        while key is not None:
            step = await self._dependencies.worker.run(self._all_below, parent, below, key)
            removed += await self._removal.remove(step.ended)
            key = step.next_key
            await asyncio.sleep(PAUSE_S)
        if removed:
            self._dependencies.metrics.removed_queues(RemovalCause.LITE_WITHOUT_TOPIC, removed)
            log.info("lite topics of a topic that is gone were removed", topic=parent, lite_topics=removed)
        return removed

    async def _tried(self, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
            self._errors.clear()
        except REFUSALS as error:
            if self._errors.is_new(error):
                log.error("lite topics could not be removed, it is tried again", error=str(error))
