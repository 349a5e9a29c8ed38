"""Run long work for operators on the event loop: a millisecond at a time, and few pieces of work at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from quarry_mq.store.clock import Clock

STEP_S: Final = 0.001
PAUSES_PER_STEP: Final = 3
TURNS: Final = 2
"""Pieces of work that run at a time: together they leave the loop at least half of its time."""


class Pace:
    """Pace one piece of work: it runs in short steps with pauses between them."""

    def __init__(self, clock: Clock, *, pauses_per_step: int | None = None) -> None:
        """`pauses_per_step` is given for work that runs one at a time and that a caller waits for."""
        self._clock = clock
        self._pauses_per_step = pauses_per_step
        self._began_s = clock.monotonic_s()

    @property
    def is_step_over(self) -> bool:
        """Return whether the step is over, so that the next `pause` really pauses."""
        return self._clock.monotonic_s() - self._began_s >= STEP_S

    def begin_step(self) -> None:
        """Begin a step now: the time before was spent waiting, not working."""
        self._began_s = self._clock.monotonic_s()

    async def pause(self) -> None:
        """Let other work run once a step is over; to be awaited between two small pieces of work."""
        took_s = self._clock.monotonic_s() - self._began_s
        if took_s >= STEP_S:
            pauses = PAUSES_PER_STEP if self._pauses_per_step is None else self._pauses_per_step
            await asyncio.sleep(pauses * took_s)
            self.begin_step()


class Pacing:
    """Bound how many pieces of work run at a time in a broker. Lives on the event loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns = asyncio.Semaphore(TURNS)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Pace]:
        """Wait until fewer than `TURNS` pieces of work run, and count as one until the context is left."""
        async with self._turns:
            yield Pace(self._clock)
