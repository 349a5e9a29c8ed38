"""Removes light queues, lite topics among them: first the progress of groups, then the entries.

Queues that another thread has found are checked again in the step that removes them, on the one thread that appends,
dispatches and removes. So a message either arrived before and its queue stays, or arrives after and begins a new queue.
No message is lost in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.maintenance import QueueCommit
from quarry_mq.server.tasks.time_slice import RemovalSteps
from quarry_mq.store.consumequeue import LastEntry


class RemovableLightQueues(Protocol):
    """The part of the message store that removal needs."""

    def still_ended(self, found: Sequence[LastEntry]) -> list[LastEntry]: ...

    def remove_ended(self, found: Sequence[LastEntry]) -> None: ...


class LightProgress(Protocol):
    """The progress of groups in light queues, see `server.delivery.Delivery`."""

    def delete_topics(self, topics: Iterable[str], *, durably: bool = True) -> None: ...

    def store_durably(self) -> None: ...


class LightQueueRemoval:
    """Removes light queues that were found to have ended. Lives on the event loop's thread."""

    def __init__(
        self,
        queues: RemovableLightQueues,
        *,
        progress: LightProgress,
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
