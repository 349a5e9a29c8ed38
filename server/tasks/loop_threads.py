"""Threads that block in place of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, NamedTuple, TypeVar

ResultT = TypeVar("ResultT")


class _Work(NamedTuple):
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    work: Callable[[], Any]


class LoopThreads:
    """As a thread pool that is asked by `run_in_executor`, with one future in place of two that lock each other.

    Under `sync` a tenth of the CPU time of a send goes by that (`bench clients`).
    """

    def __init__(self, count: int, name: str) -> None:
        self._asked: Final[SimpleQueue[_Work | None]] = SimpleQueue()
        self._threads = [Thread(target=self._run, name=f"{name}_{number}", daemon=True) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def call(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """Do it on one of the threads; what it raises, the future does.

        To be called on a running event loop. Work that is cancelled is done all the same.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ResultT] = loop.create_future()
        self._asked.put(_Work(loop, future, work))
        return future

    def close(self) -> None:
        """Waits until all that was asked for is done."""
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
            with suppress(RuntimeError):  # a loop that is closed: nobody waits
                loop.call_soon_threadsafe(settle, future, result, failure)
            # what it refers to may be large, and the next one may be long in coming
            del asked, loop, future, work, result, failure


def settle(future: asyncio.Future[Any], result: object, failure: BaseException | None) -> None:
    """Tell who waits how it went, unless he has given up."""
    if future.done():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)
