"""Run work beside serving: time slices on the event loop, background tasks, and threads that block.

Long work on the event loop is done in short slices of time, with pauses between them for the calls of clients.
Background tasks must run for as long as the broker does, and are supervised; a callback that fails must not stop
others. Work that blocks runs on threads; its errors are logged once while they repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.errors import BrokerFailed

log = structlog.get_logger(__name__)

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Worker:
    """Threads of one part of the broker, which end with it. Lives on the event loop's thread."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def run(
        self, work: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> asyncio.Future[_Result]:
        """Run `work` on one of the threads, also if nobody awaits the result."""
        return asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *args, **kwargs))

    async def stop(self, *, drop_waiting: bool = False) -> None:
        """Wait until no work is under way. Work that waits for a thread is done, too, unless it is dropped."""
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=drop_waiting)

    def abandon(self) -> None:
        """Take no more work, and do not wait for what is under way."""
        self._executor.shutdown(wait=False)


class LastErrors:
    """The steps of background work that fail at present, each with its error. An error that repeats is logged once."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    @property
    def texts(self) -> Mapping[str, str]:
        return self._texts

    def is_new(self, error: Exception, step: str = "") -> bool:
        """Keep the error of a step; return whether it differs from the step's last one, and is to be logged."""
        text = str(error)
        is_new = text != self._texts.get(step)
        self._texts[step] = text
        return is_new

    def clear(self, step: str = "") -> None:
        """Note that the step has succeeded."""
        self._texts.pop(step, None)


ResultT = TypeVar("ResultT")


class _Work(NamedTuple):
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    work: Callable[[], Any]


class LoopThreads:
    """Run work as `run_in_executor` does, with one future in place of two that lock each other.

    Under `sync` this saves a tenth of the CPU time of a send (`bench clients`).
    """

    def __init__(self, count: int, name: str) -> None:
        self._asked: Final[SimpleQueue[_Work | None]] = SimpleQueue()
        self._threads = [Thread(target=self._run, name=f"{name}_{number}", daemon=True) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def call(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """Run `work` on one of the threads; the future gets its result or exception.

        To be called on a running event loop. Work that is cancelled is done all the same.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ResultT] = loop.create_future()
        self._asked.put(_Work(loop, future, work))
        return future

    def close(self) -> None:
        """Wait until all work is done, and end the threads."""
        for _ in self._threads:
            self._asked.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            loop, future, work = asked
            result, failure = None, None
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                failure = error
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(settle, future, result, failure)
            # the work may refer to large objects, and the next may come late
            del asked, loop, future, work, result, failure


def settle(future: asyncio.Future[Any], result: object, failure: BaseException | None) -> None:
    """Set the future's result or exception, unless it was cancelled."""
    if future.done():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)


class Supervisor:
    """Stop the broker when a background task ends unexpectedly.

    A broker without its housekeeping, for example, looks well and is not: clients that are gone keep their messages.
    It must not go on so, and only a new process is known to be whole. So the first unexpected end stops the broker.
    """

    def __init__(self, failed: Callable[[BrokerFailed], None]) -> None:
        """`failed` is called at the first unexpected end."""
        self._failed = failed
        self._failure: BrokerFailed | None = None

    @asynccontextmanager
    async def running(self, name: str, coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """Run the coroutine, which never returns of its own accord, until the context is left."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        task.add_done_callback(self._ended)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def raise_failure(self) -> None:
        """Raise BrokerFailed if a task has ended unexpectedly."""
        if self._failure is not None:
            raise self._failure

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error, name = task.exception(), task.get_name()
        log.error("background task ended", task=name, exc_info=error)
        how = "returned" if error is None else f"ended with {type(error).__name__}: {error}"
        failure = BrokerFailed(f"the broker stops: its {name} {how}")
        failure.__cause__ = error
        self.fail(failure)

    def fail(self, failure: BrokerFailed) -> None:
        """Stop the broker, because it must not go on; only the first call counts."""
        if self._failure is None:
            self._failure = failure
            self._failed(failure)


def run_guarded(callback: Callable[..., None], *arguments: object) -> None:
    """Run a callback so that its failure stops no other callback."""
    try:
        callback(*arguments)
    except Exception:
        log.exception("callback failed", callback=repr(callback))


async def until_set(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until the event is set, or for `timeout_s`; return whether it was set."""
    try:
        # not wait_for: in Python 3.11 it loses a cancellation that comes together with the event
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


WORK_S: Final = 0.001
PAUSES_PER_SLICE: Final = 3
TURNS: Final = 2
"""Pieces of work for operators that run at a time: together they leave the loop at least half of its time."""

STEP_S: Final = 0.002
"""Seconds that one step of a removal may hold the event loop; it removes as many things as fit."""

STEP_MAX: Final = 256
PAUSE_S: Final = 0.002
"""Shortest pause in seconds, also between two steps of a walk on another thread, which keeps the interpreter's lock for
a millisecond."""

PAUSES_PER_STEP: Final = 7
"""A pause lasts this many times as long as the step before it, so that the rest of the broker has most of the time."""

LATE_S: Final = 0.002
PAUSES_MAX: Final = 8
"""A pause that ends more than `LATE_S` late is made again, up to this many times: other work waits for the loop, and
another step would delay all of it. The bound lets removal go on, however busy the broker is."""

REMOVED_PER_FLUSH: Final = 10_000
"""Removals after which they are flushed: each is a tombstone in a memtable, where many make every read slow."""

_Found = TypeVar("_Found")


class TimeSlice:
    """Measure how long work goes on without a pause. `pause` belongs to the event loop, the rest to any one thread."""

    def __init__(self, clock: Clock, *, work_s: float = WORK_S, pauses: float = PAUSES_PER_SLICE) -> None:
        """Begin a slice of `work_s`. `pause` lasts `pauses` times as long as the slice before it has taken."""
        self._clock = clock
        self._work_s = work_s
        self._pauses = pauses
        self._began_s = clock.monotonic_s()

    @property
    def took_s(self) -> float:
        """Return the seconds since the slice began."""
        return self._clock.monotonic_s() - self._began_s

    @property
    def is_over(self) -> bool:
        return self.took_s >= self._work_s

    def restart(self) -> None:
        """Begin a new slice now: the time before was a pause, or spent waiting, not working."""
        self._began_s = self._clock.monotonic_s()

    async def pause(self) -> None:
        """Let other work run once the slice is over; to be awaited between two small pieces of work."""
        took_s = self.took_s
        if took_s >= self._work_s:
            await asyncio.sleep(self._pauses * took_s)
            self.restart()


class Pacing:
    """Bound how many pieces of work for operators run at a time in a broker. Lives on the event loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns = asyncio.Semaphore(TURNS)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[TimeSlice]:
        """Wait until fewer than `TURNS` pieces of work run, and count as one until the context is left."""
        async with self._turns:
            yield TimeSlice(self._clock)


class RemovalSteps:
    """Remove very many things of one kind in steps. Lives on the event loop's thread."""

    def __init__(self, make_durable: Callable[[], Awaitable[object]], clock: Clock) -> None:
        """`make_durable` flushes the removals: after a crash without it the log would bring the queues back."""
        self._make_durable = make_durable
        self._clock = clock
        self._size = 1
        self._unflushed = 0

    async def take(self, found: Sequence[_Found], remove: Callable[[Sequence[_Found]], int]) -> int:
        """Call `remove` with a few things at a time; return the sum of its results. Raises what it raises."""
        removed = at = 0
        while at < len(found):
            step, step_slice = found[at : at + self._size], TimeSlice(self._clock)
            count = remove(step)
            took_s = step_slice.took_s
            self._size = min(2 * self._size, STEP_MAX) if took_s < STEP_S / 2 else max(1, self._size // 2)
            at += len(step)
            removed += count
            self._unflushed += count
            if self._unflushed >= REMOVED_PER_FLUSH:
                await self.flush()
            await self._pause(max(PAUSE_S, PAUSES_PER_STEP * took_s))
        return removed

    async def _pause(self, seconds: float) -> None:
        for _ in range(PAUSES_MAX):
            due_s = self._clock.monotonic_s() + seconds
            await asyncio.sleep(seconds)
            if self._clock.monotonic_s() - due_s < LATE_S:
                return

    async def flush(self) -> None:
        """Make the removals so far durable."""
        if self._unflushed:
            self._unflushed = 0
            await self._make_durable()
