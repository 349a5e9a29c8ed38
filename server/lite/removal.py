"""Removes light queues, lite topics among them: first the progress of groups, then the entries.

Queues that another thread has found are checked again in the step that removes them, on the one thread that appends,
dispatches and removes. So a message either arrived before and its queue stays, or arrives after and begins a new queue.
No message is lost in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.append import QueueCommit
from quarry_mq.server.tasks.time_slice import RemovalSteps
from quarry_mq.store.commitlog.log_begins import LogBegins
from quarry_mq.store.consumequeue import LastEntry
from quarry_mq.store.fs import PosixDisk
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
