"""How light queues go, lite topics among them: their subscriptions, the progress of groups, then their entries.

What another thread has found is looked at again in the step that removes it, on the one thread that appends, dispatches
and removes. So a message either came before and its queue stays, or comes after and begins a new one. Nothing is lost
in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from quarry_mq.server.tasks.removal_steps import RemovalSteps
from quarry_mq.store.clock import Clock
from quarry_mq.store.consumequeue import LastEntry

Removed = Callable[[Sequence[str]], None]
"""Hears the names of light queues that go, in the same pass and before their entries do. May hear one twice: what
fails is tried again, and a crash can take a removal back."""


class RemovableLightQueues(Protocol):
    """What removal asks of the message store."""

    def still_ended(self, found: Sequence[LastEntry]) -> list[LastEntry]: ...

    def remove_ended(self, found: Sequence[LastEntry]) -> None: ...


class LightProgress(Protocol):
    """What groups have read, see `server.delivery.Delivery`."""

    def delete_topics(self, topics: Iterable[str], *, durably: bool = True) -> None: ...

    def store_durably(self) -> None: ...


class Commit(Protocol):
    """What removal asks of group commit."""

    async def make_queues_durable(self) -> object: ...


class LightQueueRemoval:
    """Removal of light queues that were found to be over. Lives on the event loop's thread."""

    def __init__(
        self,
        queues: RemovableLightQueues,
        *,
        progress: LightProgress,
        commit: Commit,
        clock: Clock,
        gone: Callable[[Sequence[str]], None],
    ) -> None:
        """`gone` hears the names of those whose entries are gone, once."""
        self._gone = gone
        self._queues = queues
        self._progress = progress
        self._commit = commit
        self._steps = RemovalSteps(self._make_durable, clock)
        self._hooks: list[Removed] = []

    def on_removed(self, hook: Removed) -> None:
        """Have somebody hear of each queue that goes. A BrokerError or kv.KvError keeps it, to be tried again."""
        self._hooks.append(hook)

    async def remove(self, found: Sequence[LastEntry]) -> int:
        """Remove those that got no message since they were found, in steps; returns how many.

        Raises kv.KvError, BrokerError. Durable after `flush`.
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
        for hook in self._hooks:
            hook(names)
        self._progress.delete_topics(names, durably=False)
        self._queues.remove_ended(ended)
        self._gone(names)
        return len(ended)

    async def _make_durable(self) -> None:
        """Progress first, for the same reason."""
        self._progress.store_durably()
        await self._commit.make_queues_durable()
