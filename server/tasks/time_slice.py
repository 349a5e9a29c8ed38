"""Do long work on the event loop beside the calls of clients: in short slices of time, with pauses between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from quarry_mq.protocol.clock import Clock

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
