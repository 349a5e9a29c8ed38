"""Counts all queues on request, on a thread of its own and one request at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Event
from typing import Final

from quarry_mq.server.tasks.worker import Worker
from quarry_mq.store.consumequeue.queue_summary import QueueSummary, SummarySource, summarize_queues

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
