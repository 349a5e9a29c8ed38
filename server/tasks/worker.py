"""Run blocking work on threads, and log errors of background work once while they repeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

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
