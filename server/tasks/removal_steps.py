"""Remove very many things on the event loop's thread, in steps that do not delay calls noticeably."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from quarry_mq.store.clock import Clock

STEP_S: Final = 0.002
"""Seconds that one step may hold the event loop; it removes as many things as fit."""

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


class RemovalSteps:
    """Run one kind of removal in steps. Lives on the event loop's thread."""

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
        """Make the removals so far durable."""
        if self._unflushed:
            self._unflushed = 0
            await self._make_durable()
