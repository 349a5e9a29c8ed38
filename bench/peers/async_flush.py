"""Flushes like a broker beside appends under `async`, on its own thread: see `server.append.group_commit`."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.settings import StoreSettings


class AsyncFlush:
    """Flushes the log every half interval, and the queues after a number of bytes of log."""

    def __init__(self, messages: MessageStore, settings: StoreSettings) -> None:
        self._messages = messages
        self._interval_s = settings.flush_interval_ms / 2000
        self._queue_flush_bytes = settings.queue_flush_bytes
        self._thread = ThreadPoolExecutor(1, "flush")
        self._running: Future[object] | None = None
        self._due_s = time.monotonic() + self._interval_s
        self._queues_are_due = False

    def after_round(self) -> None:
        """Begin the flushes that are due. Raises what a flush raised."""
        if self._running is not None:
            if not self._running.done():
                return
            self._running.result()
            self._running = None
            if self._queues_are_due:
                self._end_queue_flush()
        messages = self._messages
        if messages.dispatched_up_to - messages.queues_durable_up_to >= self._queue_flush_bytes:
            self._queues_are_due = True
            self._running = self._thread.submit(self._begin_queue_flush)
        elif time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + self._interval_s
            self._running = self._thread.submit(messages.flush)

    def close(self) -> None:
        """Wait for the flush that has begun."""
        self._thread.shutdown()
        if self._running is not None:
            self._running.result()

    def _begin_queue_flush(self) -> None:
        self._messages.flush()
        self._messages.flush_entries()

    def _end_queue_flush(self) -> None:
        """Do the part that needs dispatch to pause: here appends pause too."""
        self._queues_are_due = False
        self._messages.flush()
        self._messages.flush_queues()
