"""Removes entries below the log's start offset, and queues that can no longer be used, while the broker runs.

A sweep over the entries begins when the start offset grew, and at a start if the last sweep was not finished. Its steps
are small: each keeps the interpreter's lock or the event loop for about a millisecond, and is followed by a pause that
is no shorter. When enough entries are gone RocksDB rewrites the tables of entries, on its own threads; only that frees
the space. A failure is logged once and tried again.

Queues are removed some ten minutes after a start and every hour:

| queues                      | origin                                                                  | removed   |
|-----------------------------|-------------------------------------------------------------------------|-----------|
| of topics that do not exist | a rebuild from the log, which knows of no deletion; sends on their way  | always    |
| light ones that are empty   | one for each client that ever existed (rocketmq-mqtt#287)               | if set    |

Both are found in the database and not in memory (rmq#9454), on a thread of its own. The queues found are checked again
on the event loop's thread in the same step that removes them: a topic that was created meanwhile, or a queue that got a
message, stays. Queues of topics that RocketMQ's metadata in the store names stay, too. A light queue has no topic, so
it never counts as one of an unknown topic.

On request all queues are counted, on a thread of its own and one request at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Event
from typing import Final, Protocol

import structlog

from quarry_mq.kv import EngineFull, KvError
from quarry_mq.protocol.clock import CautiousClock, Clock
from quarry_mq.protocol.names import is_system_topic
from quarry_mq.server.lite.expiry import NAMES_LOGGED_MAX, LightQueueRemoval, RemovalCause, RemovalParts
from quarry_mq.server.settings.sections import ConsumeQueueSection
from quarry_mq.server.tasks import PAUSE_S, LastErrors, RemovalSteps, Worker
from quarry_mq.store.consumequeue.queue_summary import QueueSummary, SummarySource, summarize_queues
from quarry_mq.store.errors import BrokerError, StoreUnusable
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.metadata.lite import TTL_MAX_MS
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.retention import DueSweep, LogExpiry, QueueExpiry

log = structlog.get_logger(__name__)

MOVE_CHECK_INTERVAL_S: Final = 0.1
_REFUSALS: Final = (KvError, OSError, StoreUnusable)


@dataclass(frozen=True, kw_only=True, slots=True)
class CleaningSettings:
    """Settings of the clean-up.

    `pause_s` follows each step; `rewrite_ratio` is the share of removed entries at which tables are rewritten.
    """

    pause_s: float = 0.002
    retry_interval_s: float = 10.0
    rewrite_ratio: float = 0.2


class CleaningMetrics(Protocol):
    def cleaned_queues(self, entries: int, files: int, seconds: float) -> None: ...

    def rewrote_tables(self, before_bytes: int, after_bytes: int, seconds: float) -> None: ...

    def cleaning_failed(self) -> None: ...


class QueueCleaning:
    """The clean-up of one open store's queues. Lives on the event loop's thread."""

    def __init__(
        self,
        expiry: QueueExpiry,
        log_expiry: LogExpiry,
        settings: CleaningSettings,
        *,
        clock: Clock,
        metrics: CleaningMetrics,
    ) -> None:
        self._expiry = expiry
        self._log = log_expiry
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._wake.set()  # a sweep may be left from before the start
        self._rewrite_asked = False
        self._errors = LastErrors()
        self._phase = ""
        self._stopping = Event()
        self._slice_began_s = 0.0
        # two threads: a stop waits for a step, but not for a rewrite, which the engine ends when it closes
        self._steps = Worker("queue-cleaning")
        self._rewrites = Worker("table-rewrite")

    @property
    def phase(self) -> str:
        """The current work: `files`, `rocksdb`, `rewrite`, or the empty text. May be read on any thread."""
        return self._phase

    @property
    def lag_bytes(self) -> int:
        """Bytes between the offset up to which the queues are cleaned and the log's start offset.

        May be read on any thread.
        """
        return max(0, self._log.minimum - self._expiry.expired_below())

    def minimum_grew(self, _: PhysicalOffset) -> None:
        self._wake.set()

    def rewrite_soon(self) -> None:
        """Rewrite RocksDB's tables once the queues are clean, however few entries were removed."""
        self._rewrite_asked = True
        self._wake.set()

    async def run(self) -> None:
        """Clean up whenever there is something to do, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                try:
                    await self._clean()
                finally:
                    ending = self._steps.run(self._expiry.end)  # also when cancelled: `stop` waits for it
                await ending
                self._errors.clear()
            except _REFUSALS as error:
                self._report(error)
                await asyncio.sleep(self._settings.retry_interval_s)
                self._wake.set()

    async def stop(self) -> None:
        """Wait until no step is under way. `run` must have been cancelled before.

        The rest of the work is done after the next start.
        """
        self._stopping.set()
        await self._steps.stop()
        self._rewrites.abandon()

    # -- inside

    async def _clean(self) -> None:
        while True:
            while self._log.remover.is_stuck:
                # after a crash the log begins with the first file that is still in its place
                await asyncio.sleep(MOVE_CHECK_INTERVAL_S)
            due = self._expiry.due(self._log.minimum, self._pause)
            if due is None:
                break
            await self._steps.run(self._expiry.begin)
            with self._under_way(due.kind):
                await self._sweep(due)
        wanted = self._rewrite_asked or self._expiry.is_sparse(self._settings.rewrite_ratio)
        if wanted and self._expiry.has_tables:
            with self._under_way("rewrite"):
                await self._rewrite()
        self._rewrite_asked = False

    async def _sweep(self, due: DueSweep) -> None:
        started_s = self._clock.monotonic_s()
        log.info("queues are being cleaned up", kind=due.kind, log_begins_at=self._log.minimum)
        while await self._steps.run(due.prepare):
            while due.carry_out():
                await asyncio.sleep(self._settings.pause_s)
        if not await self._steps.run(due.finish):
            return
        seconds = self._clock.monotonic_s() - started_s
        self._metrics.cleaned_queues(due.entries, due.files, seconds)
        log.info("queues cleaned up", kind=due.kind, entries=due.entries, files=due.files, seconds=round(seconds, 2))

    async def _rewrite(self) -> None:
        before_bytes, started_s = self._expiry.table_bytes(), self._clock.monotonic_s()
        await self._rewrites.run(self._expiry.rewrite_tables)
        seconds, after_bytes = self._clock.monotonic_s() - started_s, self._expiry.table_bytes()
        self._metrics.rewrote_tables(before_bytes, after_bytes, seconds)
        log.info(
            "tables of queue entries rewritten",
            bytes_before=before_bytes,
            bytes_after=after_bytes,
            seconds=round(seconds, 2),
        )

    def _pause(self) -> bool:
        """Pause the thread for at least as long as its last slice used a core; return whether to stop."""
        now_s = time.thread_time()
        slice_s, self._slice_began_s = now_s - self._slice_began_s, now_s
        return self._stopping.wait(max(self._settings.pause_s, slice_s))

    @contextmanager
    def _under_way(self, phase: str) -> Iterator[None]:
        self._phase = phase
        try:
            yield
        finally:
            self._phase = ""

    def _report(self, error: Exception) -> None:
        """Count the failure, and log it once while the same error repeats."""
        self._metrics.cleaning_failed()
        if self._errors.is_new(error):
            log.error("the clean-up of queues is held up, it is tried again", error=str(error))


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


LARGEST_MAX: Final = 1_000
PAGE_PAUSE_S: Final = 0.001
"""Seconds of pause after each page of a thousand queues, so that the event loop soon gets the interpreter's lock."""


class QueueSummaries:
    """Summaries of the queues of one store. Lives on the event loop's thread."""

    def __init__(
        self,
        source: Callable[[], SummarySource],
        using: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`source` returns the current location of the queues; inside a `using` block the database is not closed."""
        self._source = source
        self._using = using
        self._worker = Worker("queue-summary")
        self._stopping = Event()

    async def summarize(self, largest_max: int) -> QueueSummary:
        """Count all queues. Raises kv.KvError, StoreUnusable, OSError; Unavailable when the broker stops meanwhile."""
        return await self._worker.run(self._summarize, min(largest_max, LARGEST_MAX))

    def _summarize(self, largest_max: int) -> QueueSummary:
        with self._using():
            return summarize_queues(self._source(), largest_max=largest_max, go_on=self._go_on)

    async def stop(self) -> None:
        """Wait until no work is under way on any thread."""
        self._stopping.set()
        await self._worker.stop(drop_waiting=True)

    def _go_on(self) -> bool:
        return not self._stopping.wait(PAGE_PAUSE_S)
