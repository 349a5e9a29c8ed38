"""Removes queues that can no longer be used, some ten minutes after a start and every hour.

| queues                      | origin                                                                  | removed   |
|-----------------------------|-------------------------------------------------------------------------|-----------|
| of topics that do not exist | a rebuild from the log, which knows of no deletion; sends on their way  | always    |
| light ones that are empty   | one for each client that ever existed (rocketmq-mqtt#287)               | if set    |

Both are found in the database and not in memory (rmq#9454), on a thread of its own. The queues found are checked again
on the event loop's thread in the same step that removes them: a topic that was created meanwhile, or a queue that got a
message, stays. Queues of topics that RocketMQ's metadata in the store names stay, too. A light queue has no topic, so
it never counts as one of an unknown topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from quarry_mq.kv import EngineFull, KvError
from quarry_mq.protocol.clock import CautiousClock
from quarry_mq.protocol.names import is_system_topic
from quarry_mq.server.lite.removal import NAMES_LOGGED_MAX, LightQueueRemoval, RemovalCause, RemovalParts
from quarry_mq.server.settings.sections import ConsumeQueueSection
from quarry_mq.server.tasks.time_slice import PAUSE_S, RemovalSteps
from quarry_mq.server.tasks.worker import LastErrors, Worker
from quarry_mq.store.errors import BrokerError
from quarry_mq.store.metadata.lite import TTL_MAX_MS
from quarry_mq.store.opening.open_store import OpenStore

log = structlog.get_logger(__name__)

NAMES_PER_LOOK: Final = 1_000
REFUSALS: Final = (KvError, OSError, BrokerError)


class QueueRemoval:
    """The removal of queues from one open store. Lives on the event loop's thread."""

    def __init__(
        self, store: OpenStore, light: LightQueueRemoval, settings: ConsumeQueueSection, parts: RemovalParts
    ) -> None:
        self._queues = store.messages
        self._expiry = store.expiry
        self._light = light
        self._settings = settings
        self._topics = store.topics
        self._topics_of_rocketmq = parts.topics_of_rocketmq
        self._progress = parts.progress
        self._begins = parts.begins
        self._steps = RemovalSteps(parts.commit.make_queues_durable, parts.clock)
        self._age_clock = CautiousClock(parts.clock)
        self._metrics = parts.metrics
        self._worker = Worker("queue-removal")
        self._errors = LastErrors()

    async def run(self) -> None:
        """Find and remove queues until cancelled. A failure is logged once and tried again."""
        interval_s = self._settings.removal_interval_ms / 1000
        await asyncio.sleep(self._settings.removal_delay_ms / 1000)
        while interval_s:
            try:
                await self.remove_unknown()
                await self.remove_idle()
                self._errors.clear()
            except REFUSALS as error:
                self._report(error)
            await asyncio.sleep(interval_s)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Wait until no work is under way on any thread. `run` must have been cancelled before."""
        await self._worker.stop()

    async def remove_unknown(self) -> int:
        """Remove the queues of topics that do not exist, and return their number. Raises kv.KvError, BrokerError."""
        removed, named = 0, list[str]()
        after: str | None = ""
        while after is not None:
            after, missing = await self._worker.run(self._look_for_unknown, after)
            queues = await self._steps.take(missing, self._remove_topics)
            if queues:
                named += missing[: NAMES_LOGGED_MAX - len(named)]
            removed += queues
        self._metrics.removed_queues(RemovalCause.UNKNOWN_TOPIC, removed)
        await self._steps.flush()
        if removed:
            log.info("queues of topics that do not exist were removed", queues=removed, topics=named)
        return removed

    async def remove_idle(self) -> int:
        """Remove light queues that were empty for long enough, and return their number.

        Raises kv.KvError, BrokerError.
        """
        idle_hours = self._settings.idle_light_queue_hours
        if idle_hours is None:
            return 0
        idle_ms = int(idle_hours * 3_600_000)
        now_ms, log_begin = self._age_clock.wall_ms(), self._expiry.minimum
        self._begins.note(now_ms, log_begin, since_ms=now_ms - max(idle_ms, TTL_MAX_MS))
        empty_since = self._begins.at(now_ms - idle_ms)
        if empty_since is None:
            return 0
        removed = looked_at = 0
        key: bytes | None = b""
        while key is not None:
            step = await self._worker.run(self._queues.light_queues_ended, min(empty_since, log_begin), key)
            removed += await self._light.remove(step.ended)
            looked_at += step.looked_at
            key = step.next_key
            await asyncio.sleep(PAUSE_S)
        self._metrics.removed_queues(RemovalCause.IDLE, removed)
        await self._light.flush()
        if removed:
            log.info("light queues that were empty for long were removed", queues=removed, looked_at=looked_at)
        return removed

    # -- inside

    def _look_for_unknown(self, after: str) -> tuple[str | None, list[str]]:
        """Return the name to continue after, and which of the next topics do not exist. Runs on another thread."""
        names = self._queues.topics_after(after, NAMES_PER_LOOK)
        missing = [name for name in self._topics.missing(names) if not is_system_topic(name)]
        if missing:
            spared = self._topics_of_rocketmq.names()
            missing = [name for name in missing if name not in spared]
        return (names[-1] if len(names) == NAMES_PER_LOOK else None), missing

    def _remove_topics(self, names: Sequence[str]) -> int:
        """Remove the topics that still do not exist.

        Their progress goes first: after a crash in between the queues are found again.
        """
        unknown = [name for name in names if self._topics.get(name) is None]
        self._progress.delete_topics(unknown)
        removed = 0
        for name in unknown:
            try:
                removed += self._queues.delete_topic(name)
            except EngineFull:
                raise
            except REFUSALS as error:
                self._report(error)  # this topic stays; the others are removed
        return removed

    def _report(self, error: Exception) -> None:
        if self._errors.is_new(error):
            log.error("queues could not be removed, it is tried again", error=str(error))
