"""Long work for operators on the event loop: a millisecond at a time, and little of it at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from quarry_mq.store.clock import Clock

STEP_S: Final = 0.001
PAUSES_PER_STEP: Final = 3
TURNS: Final = 2
"""Works at a time: together they leave the loop at least half of its time."""


class Pace:
    """Of one work."""

    def __init__(self, clock: Clock, *, pauses_per_step: int | None = None) -> None:
        """`pauses_per_step`: for work of which there is but one at a time, and that somebody waits for."""
        self._clock = clock
        self._pauses_per_step = pauses_per_step
        self._began_s = clock.monotonic_s()

    @property
    def is_step_over(self) -> bool:
        """Whether the next `pause` is one."""
        return self._clock.monotonic_s() - self._began_s >= STEP_S

    def begin_step(self) -> None:
        """What was waited for until now was no work."""
        self._began_s = self._clock.monotonic_s()

    async def pause(self) -> None:
        """To be awaited between two small pieces: lets others have their turn once a step is over."""
        took_s = self._clock.monotonic_s() - self._began_s
        if took_s >= STEP_S:
            pauses = PAUSES_PER_STEP if self._pauses_per_step is None else self._pauses_per_step
            await asyncio.sleep(pauses * took_s)
            self.begin_step()


class Pacing:
    """Of all works of a broker. Lives on the event loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns = asyncio.Semaphore(TURNS)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Pace]:
        """Waits until there are not too many others."""
        async with self._turns:
            yield Pace(self._clock)
