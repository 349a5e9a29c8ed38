"""Flushing of the log without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from quarry_mq.server.tasks.loop_threads import LoopThreads, settle
from quarry_mq.store.commitlog import BegunFlush
from quarry_mq.store.message import Appended, DispatchRequest, EncodedMessage, Message
from quarry_mq.store.native import SyncThread
from quarry_mq.store.offsets import PhysicalOffset


class FlushedStore(Protocol):
    """A store whose log can be flushed: `store.message_store.MessageStore`."""

    def flush(self) -> PhysicalOffset: ...

    def begin_flush(self) -> BegunFlush | None: ...

    def end_flush(self, begun: BegunFlush, error: OSError | None) -> None: ...


class AppendingStore(FlushedStore, Protocol):
    """The part of the store that group commit uses."""

    @property
    def appended_up_to(self) -> PhysicalOffset: ...

    @property
    def flushed_up_to(self) -> PhysicalOffset: ...

    @property
    def dispatched_up_to(self) -> PhysicalOffset: ...

    def append(self, messages: Sequence[Message]) -> list[Appended]: ...

    def append_encoded(self, messages: list[EncodedMessage]) -> list[Appended]: ...

    def dispatch(self, up_to: PhysicalOffset) -> list[DispatchRequest]: ...

    def is_undispatched(self, topic: str) -> bool: ...

    def flush_entries(self) -> None: ...

    def flush_queues(self) -> None: ...


class _Running(NamedTuple):
    begun: BegunFlush
    thread: SyncThread
    future: asyncio.Future[None]


class LogFlushes:
    """Runs one flush of the log at a time, on the native sync thread if there is one, else on a Python thread.

    A Python thread has to get the interpreter's lock from the loop's thread twice, before the fdatasync and after it,
    and both times the loop has to get it back. With the native thread neither waits for the lock (ADR 45).
    """

    def __init__(self, store: FlushedStore, threads: LoopThreads, sync_thread: SyncThread | None) -> None:
        self._store = store
        self._threads = threads
        self._sync_thread = sync_thread
        self._stop_listening: Callable[[], object] | None = None
        self._running: _Running | None = None

    def flush(self) -> asyncio.Future[None] | asyncio.Future[PhysicalOffset]:
        """Make durable what was appended before this call. Must not be called while a flush runs. Raises StorePoisoned.

        The flush runs to its end even if its future is not awaited any more.
        """
        assert self._running is None, "a flush runs already"
        thread = self._sync_thread
        if thread is None or (begun := self._store.begin_flush()) is None:
            return self._threads.call(self._store.flush)
        loop = asyncio.get_running_loop()
        self._running = _Running(begun, thread, loop.create_future())
        if self._stop_listening is None:
            loop.add_reader(thread.fileno(), self._end)
            self._stop_listening = partial(loop.remove_reader, thread.fileno())
        thread.start(begun.file.fileno())
        return self._running.future

    def close(self) -> None:
        """Wait for the running flush and stop watching the sync thread."""
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        if self._running is not None:
            self._end()

    def _end(self) -> None:
        running, self._running = self._running, None
        assert running is not None, "no flush runs"
        number = running.thread.finish()
        error = OSError(number, os.strerror(number), str(running.begun.path)) if number else None
        try:
            self._store.end_flush(running.begun, error)
        except Exception as failure:  # noqa: BLE001 - raised where it is waited for
            settle(running.future, None, failure)
        else:
            settle(running.future, None, None)
