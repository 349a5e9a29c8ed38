"""Builds the parts that manage lite topics (count, removal, expiry, listing), and runs them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import structlog

from quarry_mq.kv import KvError
from quarry_mq.server.lite.counts import LiteTopicCounts
from quarry_mq.server.lite.expiry import ExpiryDependencies, LiteTopicExpiry
from quarry_mq.server.lite.listing import LiteTopicListing
from quarry_mq.server.lite.removal import LightQueueRemoval, RemovalParts
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import ConsumeQueueSection
from quarry_mq.server.tasks.supervision import Supervisor
from quarry_mq.server.tasks.worker import Worker
from quarry_mq.store.metadata.lite import TTL_MAX_MS
from quarry_mq.store.opening.open_store import OpenStore

log = structlog.get_logger(__name__)

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
