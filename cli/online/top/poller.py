"""Asking a broker again and again, without waiting for one kind of call with another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from quarry_mq.cli.online.top.known import CALLS, Known, ask
from quarry_mq.cli.online.top.readings import Reading, Wish

ALWAYS: Final = frozenset({"overview", "members"})
REST_MIN_S: Final = {"history": 10.0, "members": 5.0}
"""These change slowly, or cost the broker calls to others."""


class Task(Protocol):
    """What can be called off."""

    def cancel(self) -> object: ...


class Follower:
    """A task and a thread for each kind of call: at most one of a kind is under way, and a slow one delays no other.

    Used by one event loop alone. `on_news` is called there after each answer.
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
        """`spawn` runs a coroutine beside others, and sees to it that its errors are seen."""
        self._tasks = [spawn(self._follow(kind)) for kind in CALLS]

    def stop(self) -> None:
        """Calls that are under way end at once; nothing is told of them."""
        for task in self._tasks:
            task.cancel()
        self.reading.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def want(self, kinds: Collection[str], wish: Wish) -> None:
        """What is asked for from now on, besides `ALWAYS`: what is new of it at once."""
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
        """Ask once now, also while it is paused."""
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
