"""Removing very many things on the event loop's thread without anybody noticing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from quarry_mq.store.clock import Clock

STEP_S: Final = 0.002
"""How long one step may hold the event loop up; as many things go in one as that allows."""

STEP_MAX: Final = 256
PAUSE_S: Final = 0.002
"""At least, and between two steps of a walk on another thread, which keeps the interpreter's lock for a millisecond."""

PAUSES_PER_STEP: Final = 7
"""A pause lasts for so many times as long as the step before it: the rest of the broker has most of the time."""

LATE_S: Final = 0.002
PAUSES_MAX: Final = 8
"""A pause that ends late by more is made again, so many times at most: others wait for the loop, and a step more would
make all of them wait longer. But what is to go goes, however busy the broker is."""

REMOVED_PER_FLUSH: Final = 10_000
"""Each removal is a tombstone in a memtable, where many of them make every read slow."""

_Found = TypeVar("_Found")


class RemovalSteps:
    """Steps of one kind of removal. Lives on the event loop's thread."""

    def __init__(self, make_durable: Callable[[], Awaitable[object]], clock: Clock) -> None:
        """`make_durable`: the log still has the messages and knows of no removal. A crash would bring queues back."""
        self._make_durable = make_durable
        self._clock = clock
        self._size = 1
        self._unflushed = 0

    async def take(self, found: Sequence[_Found], remove: Callable[[Sequence[_Found]], int]) -> int:
        """Let `remove` have a few at a time; it returns how many it removed, as does this. Raises what it raises."""
        removed = at = 0
        while at < len(found):
            step = found[at : at + self._size]
            began_s = self._clock.monotonic_s()
            count = remove(step)
            took_s = self._clock.monotonic_s() - began_s
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
        """Make what was removed so far durable."""
        if self._unflushed:
            self._unflushed = 0
            await self._make_durable()
