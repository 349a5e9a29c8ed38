"""Removes queues that nobody can use any more, some ten minutes after a start and every hour.

| queues                      | how they come to be                                                     | removed   |
|-----------------------------|-------------------------------------------------------------------------|-----------|
| of topics that do not exist | a rebuild from the log, which knows of no deletion; sends on their way  | always    |
| light ones that are empty   | one for each client that ever was (rocketmq-mqtt#287)                   | if wanted |

Both are found in the database and not in memory (rmq#9454), on a thread of its own. What was found is looked at again
on the event loop's thread in the same step that removes it: a topic that was made meanwhile, or a queue that got a
message, stays. So do queues of topics that RocketMQ's metadata in the store names. A light queue has no topic, so it is
never of an unknown one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, ParamSpec, Protocol, TypeVar

import structlog

from kv import EngineFull, KvError
from store.clock import CautiousClock, Clock
from store.consumequeue import LastEntry, LightQueueStep
from store.errors import BrokerError
from store.log_begins import LogBegins
from store.metadata import Topic, is_system_topic
from store.offsets import PhysicalOffset

log = structlog.get_logger(__name__)

NAMES_PER_LOOK: Final = 1_000
STEP_S: Final = 0.004
"""How long one step may hold the event loop up; as many queues go in one as that allows."""

STEP_MAX: Final = 64
PAUSE_S: Final = 0.002
REMOVED_PER_FLUSH: Final = 10_000
"""Each removal is a tombstone in a memtable, where many of them make every read slow."""

NAMES_LOGGED_MAX: Final = 16
REFUSALS: Final = (KvError, OSError, BrokerError)


class RemovalCause(Enum):
    """Why queues were removed; the value is its name in metrics."""

    UNKNOWN_TOPIC = "unknown_topic"
    IDLE = "idle"


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovalSettings:
    """`interval_s` None: nothing is ever removed. `idle_light_queue_ms` None: no light queue is."""

    interval_s: float | None = 3_600.0
    start_delay_s: float = 600.0
    idle_light_queue_ms: int | None = None


class RemovableQueues(Protocol):
    """What removal asks of the message store. The first two from another thread."""

    def topics_behind(self, behind: str, limit: int) -> list[str]: ...

    def light_queues_ended(self, below: PhysicalOffset, key: bytes) -> LightQueueStep: ...

    def delete_topic(self, topic: str) -> int: ...

    def still_ended(self, found: Sequence[LastEntry]) -> list[LastEntry]: ...

    def remove_ended(self, found: Sequence[LastEntry]) -> None: ...


class KnownTopics(Protocol):
    def get(self, name: str) -> Topic | None: ...

    def missing(self, names: Sequence[str]) -> list[str]: ...


class Progress(Protocol):
    """What groups have read, see `server.delivery.Delivery`."""

    def delete_topics(self, topics: Iterable[str]) -> None: ...


class Commit(Protocol):
    """What removal asks of group commit."""

    async def make_queues_durable(self) -> object: ...


class RemovalMetrics(Protocol):
    def removed_queues(self, cause: RemovalCause, queues: int) -> None: ...


_Found = TypeVar("_Found")
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class QueueRemoval:
    """Removal from one open store. Lives on the event loop's thread."""

    def __init__(
        self,
        queues: RemovableQueues,
        settings: RemovalSettings,
        *,
        topics: KnownTopics,
        topics_elsewhere: Callable[[], Iterable[str]],
        progress: Progress,
        begins: LogBegins,
        log_begin: Callable[[], PhysicalOffset],
        commit: Commit,
        clock: Clock,
        metrics: RemovalMetrics,
    ) -> None:
        """`topics_elsewhere`: those that RocketMQ's metadata in the store names. Asked once, on another thread."""
        self._queues = queues
        self._settings = settings
        self._topics = topics
        self._topics_elsewhere = topics_elsewhere
        self._spared: frozenset[str] | None = None
        self._progress = progress
        self._begins = begins
        self._log_begin = log_begin
        self._commit = commit
        self._clock = clock
        self._age_clock = CautiousClock(clock)
        self._metrics = metrics
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="queue-removal")
        self._step = 1
        self._unflushed = 0
        self._complaint = ""

    async def run(self) -> None:
        """Look and remove until cancelled. What fails is told once and tried again."""
        interval_s = self._settings.interval_s
        await asyncio.sleep(self._settings.start_delay_s)
        while interval_s is not None:
            try:
                await self.remove_unknown()
                await self.remove_idle()
                self._complaint = ""
            except REFUSALS as error:
                self._complain(error)
            await asyncio.sleep(interval_s)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Do nothing more; when it returns nothing is under way on any thread. `run` has been cancelled before."""
        await asyncio.to_thread(self._executor.shutdown)

    async def remove_unknown(self) -> int:
        """Remove the queues of topics that do not exist; returns how many. Raises kv.KvError, BrokerError."""
        removed, named = 0, list[str]()
        behind: str | None = ""
        while behind is not None:
            behind, missing = await self._elsewhere(self._look_for_unknown, behind)
            queues = await self._in_steps(missing, self._remove_topics)
            if queues:
                named += missing[: NAMES_LOGGED_MAX - len(named)]
            removed += queues
        await self._end(RemovalCause.UNKNOWN_TOPIC, removed)
        if removed:
            log.info("queues of topics that do not exist were removed", queues=removed, topics=named)
        return removed

    async def remove_idle(self) -> int:
        """Remove light queues that were empty for long enough; returns how many. Raises kv.KvError, BrokerError."""
        idle_ms = self._settings.idle_light_queue_ms
        if idle_ms is None:
            return 0
        now_ms, log_begin = self._age_clock.wall_ms(), self._log_begin()
        self._begins.note(now_ms, log_begin, since_ms=now_ms - idle_ms)
        empty_since = self._begins.at(now_ms - idle_ms)
        if empty_since is None:
            return 0
        removed = looked_at = 0
        key: bytes | None = b""
        while key is not None:
            step = await self._elsewhere(self._queues.light_queues_ended, min(empty_since, log_begin), key)
            removed += await self._in_steps(step.ended, self._remove_light)
            looked_at += step.looked_at
            key = step.next_key
        await self._end(RemovalCause.IDLE, removed)
        if removed:
            log.info("light queues that were empty for long were removed", queues=removed, looked_at=looked_at)
        return removed

    # -- inside

    def _look_for_unknown(self, behind: str) -> tuple[str | None, list[str]]:
        """On another thread: where to go on, and which of the next topics do not exist."""
        names = self._queues.topics_behind(behind, NAMES_PER_LOOK)
        missing = [name for name in self._topics.missing(names) if not is_system_topic(name)]
        if missing:
            spared = self._topics_only_elsewhere()
            missing = [name for name in missing if name not in spared]
        return (names[-1] if len(names) == NAMES_PER_LOOK else None), missing

    def _topics_only_elsewhere(self) -> frozenset[str]:
        """RocketMQ may have run on the store since its metadata was taken over, and have made topics and messages."""
        if self._spared is None:
            self._spared = frozenset(self._topics.missing(list(self._topics_elsewhere())))
            if self._spared:
                log.warning(
                    "topics that RocketMQ has in this store do not exist here: create them, or their queues stay as "
                    "they are",
                    topics=sorted(self._spared)[:NAMES_LOGGED_MAX],
                    topics_count=len(self._spared),
                )
        return self._spared

    def _remove_topics(self, names: Sequence[str]) -> int:
        """Those that still do not exist. Progress first: after a crash in between the queues are found again."""
        unknown = [name for name in names if self._topics.get(name) is None]
        self._progress.delete_topics(unknown)
        removed = 0
        for name in unknown:
            try:
                removed += self._queues.delete_topic(name)
            except EngineFull:
                raise
            except REFUSALS as error:
                self._complain(error)  # of this topic; the others go
        return removed

    def _remove_light(self, found: Sequence[LastEntry]) -> int:
        ended = self._queues.still_ended(found)
        self._progress.delete_topics(each.queue.topic for each in ended)
        self._queues.remove_ended(ended)
        return len(ended)

    async def _in_steps(self, found: Sequence[_Found], remove: Callable[[Sequence[_Found]], int]) -> int:
        """Remove in steps that each hold the loop up for a moment, and take less than half of its time together."""
        removed = at = 0
        while at < len(found):
            step = found[at : at + self._step]
            began_s = self._clock.monotonic_s()
            count = remove(step)
            took_s = self._clock.monotonic_s() - began_s
            self._step = min(2 * self._step, STEP_MAX) if took_s < STEP_S / 2 else max(1, self._step // 2)
            at += len(step)
            removed += count
            self._unflushed += count
            if self._unflushed >= REMOVED_PER_FLUSH:
                await self._flush()
            await asyncio.sleep(max(PAUSE_S, took_s))
        return removed

    async def _end(self, cause: RemovalCause, removed: int) -> None:
        self._metrics.removed_queues(cause, removed)
        if self._unflushed:
            await self._flush()

    async def _flush(self) -> None:
        """The log still has the messages and knows of no removal: a crash would bring the queues back."""
        self._unflushed = 0
        await self._commit.make_queues_durable()

    async def _elsewhere(
        self, work: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *args, **kwargs))

    def _complain(self, error: Exception) -> None:
        """Once for the same error in a row."""
        if str(error) != self._complaint:
            log.error("queues could not be removed, it is tried again", error=str(error))
        self._complaint = str(error)
