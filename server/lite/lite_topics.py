"""Builds the parts that manage lite topics (count, removal, expiry, listing), and runs them.

Operators list and delete lite topics here. Everything is read from the database: memory has no list of lite topics.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import structlog

from quarry_mq.kv import KvError
from quarry_mq.protocol.names import INTERNAL_TOPIC_NAME_MAX
from quarry_mq.server.delivery.lite import EVERYWHERE, of_parent
from quarry_mq.server.lite.counts import LiteTopicCounts
from quarry_mq.server.lite.expiry import (
    ExpiryDependencies,
    LightQueueRemoval,
    LiteTopicExpiry,
    RemovalCause,
    RemovalMetrics,
    RemovalParts,
)
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import ConsumeQueueSection
from quarry_mq.server.tasks import Supervisor, Worker
from quarry_mq.store.consumequeue import LastEntry
from quarry_mq.store.consumequeue.names import end_of_topic
from quarry_mq.store.errors import Busy, Forbidden, Invalid, TopicNotFound
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.metadata.lite import (
    TTL_MAX_MS,
    LiteGroup,
    LiteSubscriptionTable,
    is_lite_topic_name,
    light_queue_name,
    lite_topic_ttl_ms,
    parse_light_queue_name,
)
from quarry_mq.store.metadata.topics import check_internal_topic_name
from quarry_mq.store.opening.open_store import OpenStore

log = structlog.get_logger(__name__)

PAGE_MAX: Final = 1_000
BOUNDS_PER_STEP: Final = 50
"""Number of lite topics whose bounds are read in one step on the event loop's thread; each takes some 20 µs."""


class LiteTopicDetails(NamedTuple):
    """Describe one lite topic.

    `last_stored_ms` is None when its last message has left the
    log. `subscribers` counts clients that subscribe by name.
    """

    name: str
    minimum: int
    maximum: int
    last_stored_ms: int | None
    subscribers: int


class LiteTopicPage(NamedTuple):
    lite_topics: list[LiteTopicDetails]
    has_more: bool


class LiteTopicStatistics(NamedTuple):
    """Statistics of one topic.

    `lite_topics` None: they are not counted yet. `limit` None: any number. `ttl_ms` None: lite topics never expire.
    """

    lite_topics: int | None
    limit: int | None
    ttl_ms: int | None


class LiteTopicListing:
    """The lite topics of an open store. Lives on the event loop's thread."""

    def __init__(
        self,
        store: OpenStore,
        *,
        counts: LiteTopicCounts,
        removal: LightQueueRemoval,
        worker: Worker,
        metrics: RemovalMetrics,
    ) -> None:
        self._store = store
        self._counts = counts
        self._removal = removal
        self._worker = worker
        self._metrics = metrics
        self._subscriptions = LiteSubscriptionTable(store.state_engine)

    async def page(self, parent: str, *, prefix: str = "", after: str = "", limit: int) -> LiteTopicPage:
        """Return the next lite topics after a name ("" for the first page), at most `PAGE_MAX`.

        Shorter names come first, then the order is by name. Raises TopicNotFound, Forbidden while consume queues are in
        files, or Invalid for text that cannot be (the beginning of) a name.
        """
        self._require_listed(parent)
        for field, text in (("prefix", prefix), ("after", after)):
            if text and not _may_be_part_of_a_name(text):
                raise Invalid(f"{field} is too long, or contains characters that names of lite topics cannot have")
        limit = min(limit, PAGE_MAX)
        key = end_of_topic(light_queue_name(parent, after)) if after else b""
        found, times = await self._worker.run(self._walk, parent, light_queue_name(parent, prefix), key, limit + 1)
        rows: list[LiteTopicDetails] = []
        groups = self._groups_of(parent)
        for each, stored_ms in zip(found[:limit], times, strict=False):
            rows.append(self._details(each, stored_ms, groups))
            if len(rows) % BOUNDS_PER_STEP == 0:
                await asyncio.sleep(0)
        return LiteTopicPage(rows, len(found) > limit)

    async def show(self, parent: str, lite: str) -> LiteTopicDetails:
        """Return one lite topic. Raises TopicNotFound, Forbidden, or Invalid for text that cannot be a name."""
        found, stored_ms = await self._find(parent, lite)
        return self._details(found, stored_ms, self._groups_of(parent))

    async def delete(self, parent: str, lite: str) -> None:
        """Remove a lite topic durably.

        Raises TopicNotFound, Forbidden, Invalid, kv.KvError or
        BrokerError, or Busy when a message has arrived meanwhile.
        """
        found, _ = await self._find(parent, lite)
        if not await self._removal.remove([found]):
            raise Busy(f"lite topic {lite} of topic {parent} has received a message meanwhile")
        await self._removal.flush()
        self._metrics.removed_queues(RemovalCause.LITE_DELETED, 1)
        log.info("lite topic deleted", topic=parent, lite_topic=lite)

    def statistics(self, parent: str) -> LiteTopicStatistics:
        """Return the statistics of one topic. Raises TopicNotFound."""
        topic = self._parent(parent)
        return LiteTopicStatistics(self._counts.count_of(parent), self._counts.limit or None, lite_topic_ttl_ms(topic))

    # -- inside

    def _parent(self, name: str) -> Topic:
        topic = self._store.topics.get(name)
        if topic is None:
            check_internal_topic_name(name)
            raise TopicNotFound(f"no topic {name}")
        if topic.type is not TopicType.LITE:
            raise Invalid(f"topic {name} is of type {topic.type.value}, which has no lite topics")
        return topic

    def _require_listed(self, parent: str) -> None:
        self._parent(parent)
        if self._store.queues.files is not None:
            raise Forbidden("consume queues are in files; lite topics can be listed and deleted only in RocksDB")

    async def _find(self, parent: str, lite: str) -> tuple[LastEntry, int | None]:
        self._require_listed(parent)
        if not _may_be_part_of_a_name(lite):
            raise Invalid(f"lite_topic: {lite[:60]!r} is not a valid name of a lite topic")
        name = light_queue_name(parent, lite)
        # names are ordered by length, so the first one with this prefix is the name itself
        found, times = await self._worker.run(self._walk, parent, name, b"", 1)
        if found and found[0].queue.topic == name:
            return found[0], times[0]
        raise TopicNotFound(f"topic {parent} has no lite topic {lite}")

    def _walk(self, parent: str, prefix: str, key: bytes, limit: int) -> tuple[list[LastEntry], list[int | None]]:
        """Return the next lite topics, and the time of each one's last message. Runs on another thread."""
        found = list(islice(self._of_parent(parent, prefix, key), limit))
        return found, self._store.messages.last_times_ms(found)

    def _of_parent(self, parent: str, prefix: str, key: bytes | None) -> Iterator[LastEntry]:
        while key is not None:
            step = self._store.messages.light_queues_ended(EVERYWHERE, key, prefix)
            yield from of_parent(parent, step.ended)
            key = step.next_key

    def _groups_of(self, parent: str) -> Sequence[str]:
        """The groups whose clients subscribe to lite topics of the topic."""
        bound = ((name, self._store.groups.get(name)) for name in self._subscriptions.groups())
        terms = ((name, LiteGroup.of(group)) for name, group in bound if group is not None)
        return [name for name, lite in terms if lite is not None and lite.bind_topic == parent]

    def _details(self, each: LastEntry, stored_ms: int | None, groups: Sequence[str]) -> LiteTopicDetails:
        name = each.queue.topic
        bounds = self._store.messages.bounds(each.queue)
        _, lite = parse_light_queue_name(name) or ("", name)
        subscribers = sum(len(self._subscriptions.clients_of(group, lite)) for group in groups)
        return LiteTopicDetails(lite, bounds.minimum, bounds.maximum, stored_ms, subscribers)


def _may_be_part_of_a_name(text: str) -> bool:
    return len(text) <= INTERNAL_TOPIC_NAME_MAX and is_lite_topic_name(text)


COUNT_RETRY_S: Final = 60.0


class LiteTopics:
    """The lite topics of one open store, except for their delivery. Lives on the event loop's thread."""

    def __init__(self, store: OpenStore, settings: BrokerSettings, parts: RemovalParts) -> None:
        self._store = store
        self._worker = Worker("lite-topics")
        self.counts = LiteTopicCounts(settings.limits.lite_topics_per_topic)
        self.removal = LightQueueRemoval(
            store.messages,
            progress=parts.progress,
            commit=parts.commit,
            clock=parts.clock,
            gone=self.counts.removed,
        )
        self.expiry = LiteTopicExpiry(
            store.messages,
            self.removal,
            ExpiryDependencies(
                topics=store.topics,
                topics_elsewhere=parts.topics_of_rocketmq.names,
                begins=parts.begins,
                log_begin=lambda: store.expiry.minimum,
                worker=self._worker,
                clock=parts.clock,
                metrics=parts.metrics,
            ),
            interval_s=settings.lite.expiry_interval_ms / 1000 or None,
            begins_kept_ms=_begins_kept_ms(settings.consume_queue),
        )
        self.listing = LiteTopicListing(
            store, counts=self.counts, removal=self.removal, worker=self._worker, metrics=parts.metrics
        )

    def configure(self, settings: BrokerSettings) -> None:
        """Apply a changed limit on the number of lite topics from now on."""
        self.counts.configure(settings.limits.lite_topics_per_topic)

    @contextlib.asynccontextmanager
    async def running(self, supervisor: Supervisor) -> AsyncIterator[None]:
        async with (
            supervisor.running("expiry of lite topics", self.expiry.run()),
            supervisor.running("count of lite topics", self._count()),
        ):
            yield

    async def stop(self) -> None:
        """Wait until no work is under way on any thread. The running tasks must have been cancelled before."""
        await self._worker.stop()

    async def _count(self) -> None:
        """Count all lite topics, then wait until cancelled. Until the count is done there is no limit."""
        while True:
            try:
                await self.counts.count_all(self._store.messages, self._worker)
                break
            except KvError as error:
                log.error("lite topics could not be counted, it is tried again", error=str(error))
                await asyncio.sleep(COUNT_RETRY_S)
        await asyncio.Event().wait()


def _begins_kept_ms(settings: ConsumeQueueSection) -> int:
    """Return how far back removals ask where the log began."""
    return max(TTL_MAX_MS, int((settings.idle_light_queue_hours or 0) * 3_600_000))
