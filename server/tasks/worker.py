"""Run blocking work of background tasks on threads of its own, and log its errors once while they repeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

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
