"""Group commit: the sends of one loop iteration share one append, and the sends of one flush share one fdatasync.

    iteration end    the sends that came in during the iteration are appended together
    sync             a flush follows; sends that come in while it runs form one batch after it, for the next flush
    async            the sends go on at once; a flush begins when the oldest of them is half a flush interval old
    dispatch         the consume queue entries are written in one batch, receives are woken, the sends are answered

A failed write or flush of the log poisons the store: all waiting sends fail, and nothing is accepted any more. It is
different when the disk has no space left for the consume queues. They are derived from the log, so messages in the log
are stored and are answered as such. They become visible when there is space; until then no more sends are accepted.

A message that cannot be encoded never poisons the store, whatever the encoder raises: only its sender is refused, and
the other messages of the batch are stored.

The broker chooses the queue of a topic that a send goes to. The client's choice is ignored, as by RocketMQ's proxy.

| what the message has | queue |
|----------------------|-------|
| a message group      | the same for all messages of the group, as long as the topic's number of queues is the same |
| a priority           | the queue of that number, or the last one |
| neither              | one after the other |
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import count, groupby, repeat
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import structlog

from quarry_mq.kv import EngineFull
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.counters import SendStages
from quarry_mq.server.settings.sections import StoreSection
from quarry_mq.server.tasks import LoopThreads, settle
from quarry_mq.store.commitlog import BegunFlush
from quarry_mq.store.errors import DiskRefused, StorePoisoned
from quarry_mq.store.lru_cache import LruCache
from quarry_mq.store.message import Appended, DispatchRequest, EncodedMessage, Message, PhysicalOffset
from quarry_mq.store.metadata import Topic
from quarry_mq.store.native import SyncThread
from quarry_mq.store.settings import Durability

log = structlog.get_logger(__name__)


class FlushedStore(Protocol):
    """A store that can be flushed: `store.message_store.MessageStore`."""

    def flush(self) -> PhysicalOffset: ...

    def flush_entries(self) -> None: ...

    def flush_queues(self) -> None: ...

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


class _Running(NamedTuple):
    begun: BegunFlush
    thread: SyncThread
    future: asyncio.Future[None]


class LogFlushes:
    """Runs one flush of the log at a time, on the native sync thread if there is one, else on a Python thread.

    A Python thread has to get the interpreter's lock from the loop's thread twice, before the fdatasync and after it,
    and both times the loop has to get it back. With the native thread neither waits for the lock (ADR 45).
    """

    def __init__(self, store: FlushedStore, threads: LoopThreads, sync_thread: SyncThread | None = None) -> None:
        self._store = store
        self._threads = threads
        self._sync_thread = sync_thread
        self._stop_listening: Callable[[], object] | None = None
        self._running: _Running | None = None

    def flush(self) -> asyncio.Future[None] | asyncio.Future[PhysicalOffset]:
        """Make durable what was appended before this call. Must not be called while a flush runs. Raises StorePoisoned.

        The flush runs to its end even if its future is not awaited any more.
        """
        assert self._running is None, "a flush is already running"
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

    async def flush_entries(self) -> None:
        """Write the bulk of the consume queue entries to the disk, after the log that they point to."""
        await self._threads.call(self._store.flush)
        await self._threads.call(self._store.flush_entries)

    async def flush_queues(self) -> None:
        """Write the rest of the entries and the watermark to the disk, while nothing is dispatched."""
        await self._threads.call(self._store.flush)
        await self._threads.call(self._store.flush_queues)

    def close(self) -> None:
        """Wait for the running flush and stop watching the sync thread."""
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        if self._running is not None:
            self._end()

    def _end(self) -> None:
        running, self._running = self._running, None
        assert running is not None, "no flush is running"
        number = running.thread.finish()
        error = OSError(number, os.strerror(number), str(running.begun.path)) if number else None
        try:
            self._store.end_flush(running.begun, error)
        except Exception as failure:  # noqa: BLE001 - raised where it is waited for
            settle(running.future, None, failure)
        else:
            settle(running.future, None, None)


class Refusals:
    """Holds the reasons why sends are refused, by cause: a disk that is too full, or too few file descriptors left."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    @property
    def first(self) -> str | None:
        """Return the oldest reason, or None if sends are accepted."""
        return next(iter(self._reasons.values()), None)

    def put(self, cause: str, reason: str) -> bool:
        """Set the reason of a cause, or clear it with an empty text. Returns whether there is a reason, or was one
        before.
        """
        before = self._reasons.get(cause, "")
        if reason:
            self._reasons[cause] = reason
        else:
            self._reasons.pop(cause, None)
        if reason and not before:
            log.warning("sends are refused", reason=reason)
        elif before and not reason and self.first is None:
            log.warning("sends are taken again", reason=before)
        return bool(reason or before)


ROOM_CHECK_INTERVAL_S: Final = 1.0
"""Seconds until a flush of queues that found no space is tried again. RocksDB itself checks every five seconds, and
accepts writes again once a whole memtable would fit (8 MiB).
"""

DURABLE_LOOK_S: Final = 0.01
"""Seconds between two checks by which `until_durable` waits, under `async`, until the log is on the disk."""

_VISIBLE_LOOK_S: Final = 0.001
"""Seconds between two checks by which `until_visible` waits, mostly for a running flush."""

Stored = Callable[[Sequence[Appended], Exception | None], None]
"""Callback with the result of a send: where its messages were appended, or the error for which they are not stored."""


def _tell(stored: Stored, appended: Sequence[Appended], error: Exception | None) -> None:
    """Call back. An exception raised by the callback is logged: the store and the other sends go on."""
    try:
        stored(appended, error)
    except Exception as fault:
        log.exception("a send could not be answered", error=str(fault))


class GroupCommitMetrics(Protocol):
    def observe_flush(self, seconds: float, sends: int) -> None: ...

    def observe_batch(self, messages: int) -> None: ...


class HealthReports(Protocol):
    """Takes reports of what keeps a broker from storing; see `server.process.health`."""

    def poisoned(self, reason: str) -> None: ...

    def sends_refused(self, reason: str) -> None:
        """Note why sends are refused from now on; the empty text when they are accepted again."""


MessageT = TypeVar("MessageT", Message, EncodedMessage)


class _Send(NamedTuple, Generic[MessageT]):
    """Hold one send, or `sends` of them that get their result in one callback."""

    messages: Sequence[MessageT]
    stored: Stored
    sends: int = 1
    is_encoded: bool = False


class _Waiting(NamedTuple):
    """A send whose records end at `end`, waiting until they are durable."""

    end: PhysicalOffset
    appended: Sequence[Appended]
    stored: Stored
    appended_s: float


def _end_of(appended: Sequence[Appended]) -> PhysicalOffset:
    return PhysicalOffset(appended[-1].physical_offset + appended[-1].size)


def _tell_up_to(waiting: deque[_Waiting], end: PhysicalOffset) -> None:
    """Call back the sends whose records end at or below an offset, and take them out of the queue."""
    while waiting and waiting[0].end <= end:
        each = waiting.popleft()
        _tell(each.stored, each.appended, None)


class GroupCommit:
    """Groups sends into appends and flushes; it is the only caller of the store's `append` and `dispatch`.

    Lives on the event loop's thread.
    """

    def __init__(
        self,
        store: AppendingStore,
        flushes: LogFlushes,
        settings: StoreSection,
        *,
        clock: Clock,
        after_pass: Callable[[Callable[[], None]], None],
        messages_arrived: Callable[[Sequence[DispatchRequest]], None],
        health: HealthReports,
        metrics: GroupCommitMetrics,
    ) -> None:
        self._store = store
        self._log_flushes = flushes
        self._durability = settings.durability
        self._flush_interval_s = settings.flush_interval_ms / 1000
        self._queue_flush_bytes = settings.queue_flush_size
        self._clock = clock
        self.after_pass: Final = after_pass
        """Runs a callback at the end of the current loop iteration, where its sends are put together."""
        self._messages_arrived = messages_arrived
        self._health = health
        self._metrics = metrics
        self.stages: Final = SendStages()
        self._gathering_since_s = 0.0
        self._appended_s = 0.0
        self._incoming: list[_Send[Any]] = []
        self._waiting: deque[_Waiting] = deque()
        self._unflushed: deque[_Waiting] = deque()
        """Sends of `send_durably` that are visible under `async`, and not on the disk."""
        self._hurried: Final = asyncio.Event()
        self._flush_task: asyncio.Task[None] | None = None
        self._queue_flush_task: asyncio.Task[None] | None = None
        self._queue_flush_repeats = False
        self._queue_flush_succeeded = False
        self._queues_flushed_up_to = store.dispatched_up_to
        self._is_dispatch_deferred = False
        # why sends are refused: texts, since an error object that is raised twice keeps the frames of both
        self._failure: str | None = None
        self._no_room: str | None = None
        self._refusals = Refusals()
        self._too_full: str | None = None
        self._unflushed_sends = 0
        self._unflushed_since_s = 0.0
        self._room_check: asyncio.TimerHandle | None = None
        self._refusing = False

    def send(self, messages: Sequence[Message], stored: Stored) -> None:
        """Store the messages; `stored` is called once, when they are durable as configured and visible."""
        if not self._incoming:
            self._gathering_since_s = self._clock.monotonic_s()
        self._incoming.append(_Send(messages, stored))
        if len(self._incoming) == 1 and not self._batch_follows_flush:
            self.after_pass(self._append_batch)

    def send_encoded(self, messages: list[EncodedMessage], stored: Stored, since_s: float, *, sends: int) -> None:
        """Store the messages of several sends, which came in from `since_s` on during the iteration that ends now.

        `stored` is called once for all of them. If its error is not a failure of the store, none of the messages is in
        the log, and a single one may be the cause: send them one by one.
        """
        if not self._incoming:
            self._gathering_since_s = since_s
        self._incoming.append(_Send(messages, stored, sends, is_encoded=True))
        if not self._batch_follows_flush:
            self._append_batch()

    def send_durably(self, messages: Sequence[Message], stored: Stored) -> None:
        """Do the same as `send`, but call `stored` only when the messages are on the disk, also under `async`.

        For messages that take the place of others: the others may be done with then. The flush does not wait for its
        interval.
        """
        is_waiting = self._durability is Durability.ASYNC
        self.send(messages, partial(self._when_flushed, stored) if is_waiting else stored)

    def _when_flushed(self, stored: Stored, appended: Sequence[Appended], error: Exception | None) -> None:
        """Call `stored` when what was appended is on the disk."""
        if error is not None or (end := _end_of(appended)) <= self._store.flushed_up_to:
            stored(appended, error)
        else:
            self._unflushed.append(_Waiting(end, appended, stored, self._appended_s))
            self._hurried.set()

    async def until_durable(self) -> None:
        """Wait until everything that is in the log now is on the disk. Raises StorePoisoned."""
        end = self._store.appended_up_to
        while self._store.flushed_up_to < end:
            if self._failure is not None:
                raise StorePoisoned(self._failure)
            self._hurried.set()
            await asyncio.sleep(DURABLE_LOOK_S)

    async def until_visible(self) -> None:
        """Wait until all sends that have come in by now are visible, or refused. Raises StorePoisoned."""
        await asyncio.sleep(0)  # sends of this loop iteration are encoded at its end
        incoming = self._incoming
        while incoming and self._incoming is incoming:
            await asyncio.sleep(_VISIBLE_LOOK_S)
        end = self._store.appended_up_to
        while self._store.dispatched_up_to < end:
            if self._failure is not None:
                raise StorePoisoned(self._failure)
            await asyncio.sleep(_VISIBLE_LOOK_S)

    def is_storing(self, topic: str) -> bool:
        """Return whether messages of the topic are accepted but not visible yet; encoded sends do not count."""
        incoming = [send for send in self._incoming if not send.is_encoded]
        return any(
            message.topic == topic for send in incoming for message in send.messages
        ) or self._store.is_undispatched(topic)

    # -- batches

    @property
    def _batch_follows_flush(self) -> bool:
        """Return whether new sends have to wait for a running flush anyway: appending them together costs less."""
        return self._flush_task is not None and self._durability is Durability.SYNC

    def _append_batch(self) -> None:
        sends, self._incoming = self._incoming, []
        if not sends:
            return  # a flush that ended in this iteration has appended them
        if (self._failure or self._no_room or self._too_full) is not None:
            for send in sends:
                _tell(send.stored, (), self._refusal())
            return
        began_s = self._clock.monotonic_s()
        self.stages.gather.add(began_s - self._gathering_since_s)
        went_in: list[bool] = []
        for is_encoded, of_kind in groupby(sends, key=lambda send: send.is_encoded):  # in the order in which they came
            if is_encoded:
                went_in += [self._append([each], self._store.append_encoded) for each in of_kind]
            else:
                went_in.append(self._append(list(of_kind), self._store.append))
        if self._failure is not None:
            return
        if all(went_in):
            self.stages.append.add(self._appended_s - began_s)
        self._metrics.observe_batch(sum(len(send.messages) for send in sends))
        self._go_on()

    def _append(self, sends: Sequence[_Send[MessageT]], append: Callable[[list[MessageT]], Sequence[Appended]]) -> bool:
        """Append the messages of the sends together and return whether that succeeded."""
        if self._failure is not None:
            for send in sends:
                _tell(send.stored, (), self._refusal())
            return False
        try:
            appended = append([message for send in sends for message in send.messages])
            self._appended_s = self._clock.monotonic_s()
        except StorePoisoned as error:
            self._fail(error, sends)
            return False
        except Exception as error:  # noqa: BLE001 - the log is as before: whatever it is, one message is at fault
            self._append_one_by_one(sends, append, error)
            return False
        if self._refusing:
            self._tell_refusing("")
        at = 0
        for send in sends:
            self._await_durable(send, appended[at : at + len(send.messages)])
            at += len(send.messages)
        return True

    def _append_one_by_one(
        self,
        sends: Sequence[_Send[MessageT]],
        append: Callable[[list[MessageT]], Sequence[Appended]],
        error: Exception,
    ) -> None:
        """Store the sends of a failed batch one by one, so that only those at fault, or for which there is no space,
        fail.
        """
        if isinstance(error, DiskRefused):
            self._tell_refusing(str(error))
        if len(sends) == 1:
            _tell(sends[0].stored, (), error)
            return
        for send in sends:
            try:
                appended = append(list(send.messages))
                self._appended_s = self._clock.monotonic_s()
            except StorePoisoned as fatal:
                self._fail(fatal, [send])
            except Exception as own_error:  # noqa: BLE001 - as in `_append`
                _tell(send.stored, (), own_error)
            else:
                self._await_durable(send, appended)

    def _await_durable(self, send: _Send[MessageT], appended: Sequence[Appended]) -> None:
        if not self._unflushed_sends:
            self._unflushed_since_s = self._appended_s
        self._unflushed_sends += send.sends
        self._waiting.append(_Waiting(_end_of(appended), appended, send.stored, self._appended_s))

    def _go_on(self) -> None:
        if self._durability is Durability.ASYNC:
            self._make_visible(self._store.appended_up_to)
        if self._flush_task is None and self._store.flushed_up_to < self._store.appended_up_to:
            self._flush_task = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        """Flush until everything appended is durable; sends that come in meanwhile share the next fdatasync."""
        try:
            while True:
                if self._store.flushed_up_to < self._store.appended_up_to:
                    await self._flush_once()
                _tell_up_to(self._unflushed, self._store.flushed_up_to)
                if self._durability is Durability.SYNC:
                    self._make_visible(self._store.flushed_up_to)
                    self._append_batch()
                if not self._needs_flush_task:
                    return
        except Exception as error:  # noqa: BLE001 - final: all waiting sends fail, readiness goes red
            self._fail(error, [])
            self._append_batch()
        finally:
            self._flush_task = None

    async def _flush_once(self) -> None:
        """Run one fdatasync for all sends so far.

        Under `async` a power failure loses at most what came in during one flush interval. So the flush begins when the
        oldest send that is not on the disk is half an interval old; the other half is for the fdatasync itself. It
        begins at once if somebody waits for the disk.
        """
        if self._durability is Durability.ASYNC:
            age_s = self._clock.monotonic_s() - self._unflushed_since_s
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurried.wait(), max(0.0, self._flush_interval_s / 2 - age_s))
            self._hurried.clear()
        sends, self._unflushed_sends = self._unflushed_sends, 0
        started_s = self._clock.monotonic_s()
        await self._log_flushes.flush()
        if self._store.flushed_up_to >= self._store.appended_up_to:
            # the flush included what came in before the disk was asked
            sends, self._unflushed_sends = sends + self._unflushed_sends, 0
        self._metrics.observe_flush(self._clock.monotonic_s() - started_s, sends)

    @property
    def _needs_flush_task(self) -> bool:
        """Return whether anything is left to flush, or was flushed by `flush_queues` without its senders being
        answered.
        """
        if self._store.flushed_up_to < self._store.appended_up_to:
            return True
        return self._durability is Durability.SYNC and bool(self._waiting) and not self._is_dispatch_deferred

    def _make_visible(self, up_to: PhysicalOffset) -> None:
        if self._is_dispatch_deferred:
            return
        began_s = dispatched_s = self._clock.monotonic_s()
        try:
            requests = self._store.dispatch(up_to)
        except EngineFull as error:
            self._await_room(error)
        except Exception as error:  # noqa: BLE001 - entries that cannot be written stop everything
            self._fail(error, [])
            return
        else:
            dispatched_s = self._clock.monotonic_s()
            self._wake(requests)
        if self._waiting and self._waiting[0].end <= up_to:
            self.stages.dispatch.add(dispatched_s - began_s)
            self._answer(up_to, began_s, dispatched_s)
        unflushed_bytes = self._store.dispatched_up_to - self._queues_flushed_up_to
        if unflushed_bytes >= self._queue_flush_bytes and self._no_room is None:
            self._start_queue_flush()

    def _wake(self, requests: Sequence[DispatchRequest]) -> None:
        """Wake the waiting receives. A receive that an exception skips finds the messages later: they are stored and
        visible.
        """
        try:
            self._messages_arrived(requests)
        except Exception as error:
            log.exception("those who wait for messages could not be told of some", error=str(error))

    def _answer(self, up_to: PhysicalOffset, durable_s: float, dispatched_s: float) -> None:
        """Answer the sends whose messages are visible. The times are on the monotonic clock."""
        waiting, stages = self._waiting, self.stages
        woken_s = self._clock.monotonic_s()
        stages.wake.add(woken_s - dispatched_s)
        if self._durability is Durability.SYNC:
            stages.flush.add(durable_s - waiting[0].appended_s)
        _tell_up_to(waiting, up_to)
        stages.answer.add(self._clock.monotonic_s() - woken_s)

    def _fail(self, error: Exception, sends: Sequence[_Send[MessageT]]) -> None:
        if self._failure is None:
            is_told = isinstance(error, StorePoisoned)
            self._failure = str(error) if is_told else f"{error}; restart the broker to recover what is on disk"
            log.error("store poisoned", error=str(error))
            self._health.poisoned(self._failure)
        waiting: list[_Waiting] = [*self._unflushed, *self._waiting]
        self._unflushed.clear()
        self._waiting.clear()
        for stored in [*(send.stored for send in sends), *(each.stored for each in waiting)]:
            _tell(stored, (), self._refusal())

    def _refusal(self) -> Exception:
        if self._failure is not None:
            return StorePoisoned(self._failure)
        return DiskRefused(self._no_room or self._too_full or "")

    # -- derived data

    def flush_queues_soon(self) -> None:
        """Start to make the queues durable in their present state, for changes that the log does not repeat."""
        # a running flush may already have passed the change
        self._queue_flush_repeats = self._queue_flush_task is not None
        self._start_queue_flush()

    def _start_queue_flush(self) -> None:
        if self._queue_flush_task is None:
            self._queue_flush_task = asyncio.get_running_loop().create_task(self.flush_queues())

    async def make_queues_durable(self) -> bool:
        """Make the queues durable up to what is dispatched now; return whether that succeeded."""
        self.flush_queues_soon()
        while self._queue_flush_task is not None:
            await asyncio.wait([self._queue_flush_task])
        # the result of the last flush, which began after this call
        return self._queue_flush_succeeded

    async def flush_queues(self) -> None:
        """Make the consume queue entries durable up to now, so that a restart has little to dispatch again.

        The log is flushed first, so that entries on disk never point beyond it. The bulk of the entries is written
        while dispatch goes on; dispatch pauses only for the rest and the watermark.
        """
        try:
            self._queue_flush_succeeded = False
            try:
                await self._flush_queues_once()
                self._queue_flush_succeeded = True
            except EngineFull as error:
                self._await_room(error)
            # also without free space: senders wait for the end of the pause
            self._make_visible(self._may_be_visible)
            if self._no_room is not None and self._room_check is None:
                self._go_on_with_room()
        except Exception as error:  # noqa: BLE001 - as for any flush: final
            self._fail(error, [])
        finally:
            self._queue_flush_task = None
            if self._queue_flush_repeats:
                self._queue_flush_repeats = False
                self._start_queue_flush()

    async def _flush_queues_once(self) -> None:
        await self._log_flushes.flush_entries()
        self._is_dispatch_deferred = True
        try:
            dispatched = self._store.dispatched_up_to
            await self._log_flushes.flush_queues()
        finally:
            self._is_dispatch_deferred = False
        self._queues_flushed_up_to = dispatched

    @property
    def _may_be_visible(self) -> PhysicalOffset:
        sync = self._durability is Durability.SYNC
        return self._store.flushed_up_to if sync else self._store.appended_up_to

    # -- a full disk

    def refuse_sends(self, reason: str, cause: str = "disk") -> None:
        """Accept no sends from now on, for this cause. An empty text clears it; sends are accepted when no cause is
        left.
        """
        if self._refusals.put(cause, reason):
            self._too_full = self._refusals.first
            self._tell_refusing(self._too_full or self._no_room or "")

    def _await_room(self, error: EngineFull) -> None:
        """Accept no more sends until a flush of the queues succeeds. It is retried at an interval."""
        if self._no_room is None:
            self._no_room = f"{error.shortage}: {error}"
            log.error("no room for the queues, sends are refused until there is", error=str(error))
            self._tell_refusing(self._no_room)
        if self._room_check is None:
            self._room_check = asyncio.get_running_loop().call_later(ROOM_CHECK_INTERVAL_S, self._look_for_room)

    def _look_for_room(self) -> None:
        self._room_check = None
        if self._failure is None:
            self._start_queue_flush()

    def _go_on_with_room(self) -> None:
        self._no_room = None
        log.warning("there is room for the queues again")
        self._tell_refusing(self._too_full or "")

    def _tell_refusing(self, reason: str) -> None:
        self._refusing = bool(reason)
        self._health.sends_refused(reason)

    async def drain(self) -> None:
        """Store and answer everything that was accepted; to be called when no new sends can come in."""
        if self._incoming:
            self._append_batch()
        while self._failure is None and (self._flush_task is not None or self._queue_flush_task is not None):
            await asyncio.gather(*(task for task in (self._flush_task, self._queue_flush_task) if task is not None))
        self._log_flushes.close()
        if self._room_check is not None:
            self._room_check.cancel()


TOPICS_REMEMBERED: Final = 131_072
_JUMP: Final = 2_862_933_555_777_941_757
_SPAN: Final = float(1 << 31)
_SPREAD: Final = 2_654_435_769
"""2^32 divided by the golden ratio: the upper bits of its multiples are spread evenly, whatever the step."""


def queue_of_group(message_group: str, queues: int) -> int:
    """Return the queue of a message group, by consistent hashing ("jump hash", Lamping and Veach).

    When the topic gets more queues, a group either stays in its queue or moves to a new one.
    """
    key = int.from_bytes(blake2b(message_group.encode(), digest_size=8).digest(), "big")
    chosen = following = 0
    while following < queues:
        chosen = following
        key = (key * _JUMP + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((chosen + 1) * (_SPAN / ((key >> 33) + 1)))
    return chosen


def queue_of_priority(priority: int, queues: int) -> int:
    return min(priority, queues - 1)


class QueueChooser:
    """Chooses queues round robin, per topic.

    Counters are kept for a limited number of topics. Once some have been evicted, a topic without a counter begins at a
    spread-out queue number, so that no queue is favoured.
    """

    def __init__(self) -> None:
        self._counters: LruCache[str, count[int]] = LruCache(TOPICS_REMEMBERED)
        self._spread = _spread()
        self._begins: Iterator[int] = repeat(0)

    def next_queue(self, topic: Topic) -> int:
        counter = self._counters.get(topic.name)
        if counter is None:
            if self._counters.is_full:
                self._counters.rotate()
                self._begins = self._spread
            counter = count(next(self._begins))
            self._counters.put(topic.name, counter)
        return next(counter) % topic.write_queues


def _spread() -> Iterator[int]:
    """Yield numbers of 16 bits, each far from those before."""
    for number in count(1):
        yield (number * _SPREAD & 0xFFFF_FFFF) >> 16
