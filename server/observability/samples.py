"""Compute expensive figures in the background, a millisecond at a time, and never for a scrape."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.tasks.time_slice import TimeSlice

log = structlog.get_logger(__name__)

PAUSES_PER_SLICE: Final = 9
"""A pause is this many times as long as the slice before it: nine tenths of the loop's time stay for other work."""
PAUSES_WHILE_BUSY: Final = 49
"""A pause is this many times as long while the loop is busy: other work then gets 49 fiftieths of its time. With a
hundred thousand topics in use there is always something to count."""
BUSY_SHARE: Final = 0.5
"""The loop is busy if it uses more of a processor than this share."""

Steps = Callable[[], Iterator[None]]
"""Begins one update of some figures; at each item the caller may let other work run."""


class Sampling:
    """Update figures in the background, one source after the other. Lives on the event loop's thread."""

    def __init__(
        self,
        sources: Sequence[Steps],
        *,
        interval_s: float,
        clock: Clock,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """`cpu_s` returns how much processor time the loop's thread has used."""
        self._cpu_s = cpu_s
        self._sources = sources
        self._interval_s = interval_s
        self._clock = clock
        self._completed_s: float | None = None

    @property
    def age_s(self) -> float | None:
        """Return how long ago all figures were last updated; None before the first time. For any thread."""
        completed_s = self._completed_s
        return None if completed_s is None else self._clock.monotonic_s() - completed_s

    async def run(self) -> None:
        """Update all figures again and again, until cancelled. A source that fails is tried again the next time."""
        while True:
            for begin in self._sources:
                try:
                    await self._go_through(begin())
                except Exception as error:  # noqa: BLE001 - figures are no reason for a broker to stop
                    log.warning("figures could not be made", error=str(error) or type(error).__name__)
            self._completed_s = self._clock.monotonic_s()
            await asyncio.sleep(self._interval_s)

    async def _go_through(self, steps: Iterator[None]) -> None:
        time_slice = TimeSlice(self._clock, pauses=PAUSES_PER_SLICE)
        for _ in steps:
            if time_slice.is_over:
                await self._pause(time_slice)

    async def _pause(self, time_slice: TimeSlice) -> None:
        took_s, began_s, cpu_s = time_slice.took_s, self._clock.monotonic_s(), self._cpu_s()
        await time_slice.pause()
        if self._cpu_s() - cpu_s > BUSY_SHARE * (self._clock.monotonic_s() - began_s):
            await asyncio.sleep((PAUSES_WHILE_BUSY - PAUSES_PER_SLICE) * took_s)
            time_slice.restart()
