"""Calls a broker at intervals; no kind of call waits for another kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from quarry_mq.cli.online.top.known import CALLS, Known, ask
from quarry_mq.cli.online.top.readings import Reading, Wish

ALWAYS: Final = frozenset({"overview", "members"})
REST_MIN_S: Final = {"history": 10.0, "members": 5.0}
"""Least seconds between two calls of a kind: these values change slowly, or cost the broker calls to other members."""


class Task(Protocol):
    """A task that can be cancelled."""

    def cancel(self) -> object: ...


class Follower:
    """Makes each kind of call in its own task and thread, one at a time: a slow kind delays no other.

    Belongs to one event loop, on which `on_news` is called after each answer.
    """

    def __init__(self, reading: Reading, known: Known, *, interval_s: float, on_news: Callable[[], None]) -> None:
        self.reading: Final = reading
        self.known: Final = known
        self.interval_s = interval_s
        self._on_news = on_news
        self._wish = Wish()
        self._wanted: Collection[str] = frozenset(CALLS)
        self._is_paused = False
        self._wakes = {kind: asyncio.Event() for kind in CALLS}
        self._tasks: list[Task] = []
        self._threads = ThreadPoolExecutor(max_workers=len(CALLS), thread_name_prefix="top")

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def start(self, spawn: Callable[[Coroutine[Any, Any, None]], Task]) -> None:
        """Start the calls. `spawn` runs a coroutine as a task, and reports its errors."""
        self._tasks = [spawn(self._follow(kind)) for kind in CALLS]

    def stop(self) -> None:
        """Stop all calls at once; their answers are dropped."""
        for task in self._tasks:
            task.cancel()
        self.reading.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def want(self, kinds: Collection[str], wish: Wish) -> None:
        """Set which kinds of calls are made, besides `ALWAYS`. Kinds that are new or changed are called at once."""
        before, self._wanted = self._wanted, frozenset(kinds)
        changed = {"topics", "groups"} if wish != self._wish else set()
        self._wish = wish
        if not self._is_paused:
            self._wake((self._wanted - frozenset(before)) | (self._wanted & changed))

    def pause(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        if not is_paused:
            self.refresh()

    def pace(self, interval_s: float) -> None:
        self.interval_s = interval_s
        if not self._is_paused:
            self.refresh()

    def refresh(self) -> None:
        """Make all calls once now, also while paused."""
        self._wake(ALWAYS | frozenset(self._wanted))

    def _wake(self, kinds: Collection[str]) -> None:
        for kind in kinds:
            self._wakes[kind].set()

    async def _follow(self, kind: str) -> None:
        loop = asyncio.get_running_loop()
        if not self._is_wanted(kind):
            await self._rest(kind)
        while True:
            self._wakes[kind].clear()
            got = await loop.run_in_executor(self._threads, ask, kind, self.reading, self._wish)
            self.known.take(kind, got)
            self._on_news()
            await self._rest(kind)

    async def _rest(self, kind: str) -> None:
        wake = self._wakes[kind]
        while not wake.is_set():
            is_resting = self._is_paused or not self._is_wanted(kind)
            rest_s = max(self.interval_s, REST_MIN_S.get(kind, 0.0))
            try:
                await asyncio.wait_for(wake.wait(), None if is_resting else rest_s)
            except TimeoutError:
                if not self._is_paused and self._is_wanted(kind):
                    return

    def _is_wanted(self, kind: str) -> bool:
        return kind in ALWAYS or kind in self._wanted
