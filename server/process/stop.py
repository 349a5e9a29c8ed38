"""From the signal to the end of the process, and what happens when that takes too long.

    signal     readiness is red; the drain delay, while all is served as before
    grace      no new calls, the open ones end
    rest       what was taken in is flushed, the store is closed
    in vain    the process ends as if it had been killed: with status 3, and the next start recovers

A second signal ends delay and grace at once.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, Thread, Timer
from typing import Final

import structlog

from quarry_mq.store.clock import Clock

log = structlog.get_logger(__name__)

STATUS_STOP_HUNG: Final = 3
LAST_WORDS_S: Final = 1.0
"""How long the line that says what hangs may take: standard error may hang, too."""
FALLBACK_S: Final = 2.0
"""How long after its time a process ends that cannot even run a thread of Python's: a disk that hangs under mapped
memory stops them all. It then shows where each thread is, and its status is 1."""


@dataclass(frozen=True, slots=True)
class StopTimes:
    """How long the parts of a stop may take, in seconds."""

    delay_s: float
    grace_s: float
    rest_s: float

    @property
    def total_s(self) -> float:
        return self.delay_s + self.grace_s + self.rest_s


class Stop:
    """One stop of one process. All but `is_asked` belongs to the event loop's thread."""

    def __init__(self, times: StopTimes, clock: Clock, *, end_process: Callable[[int], object] = os._exit) -> None:
        self._times = times
        self._clock = clock
        self._end_process = end_process
        self._asked = asyncio.Event()
        self._asked_s = 0.0
        self._hastened = asyncio.Event()
        self._lock = Lock()
        self._step = ""  # guarded by _lock
        self._watchdog: Timer | None = None

    @property
    def is_asked(self) -> bool:
        """Whether the process is to end. Any thread may ask."""
        return self._asked.is_set()

    @property
    def seconds(self) -> float:
        """Since the first signal."""
        return self._clock.monotonic_s() - self._asked_s

    def told(self, by: str) -> None:
        """A signal came: the first asks for a stop, every other for a quick one."""
        if not self.is_asked:
            log.info("stopping", by=by)
            self._begin(self._times.total_s)
        elif not self._hastened.is_set():
            log.info("stopping without delay", by=by)
            self._hastened.set()
            self._watch(self._times.rest_s)

    def failed(self) -> None:
        """The broker cannot go on: nobody is to be waited for before it stops."""
        if not self.is_asked:
            self._times = StopTimes(0.0, self._times.grace_s, self._times.rest_s)
            self._begin(self._times.total_s)
        else:
            self._hastened.set()

    async def asked(self) -> None:
        """Returns when the process is to end."""
        await self._asked.wait()

    async def hastened(self) -> None:
        """Returns when open calls are not to be waited for any longer."""
        await self._hastened.wait()

    async def delay(self) -> None:
        """Returns when new calls are to be refused."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.hastened(), self._times.delay_s)

    def step(self, what: str) -> None:
        """What the stop is about to do, for the case that it does not end."""
        with self._lock:
            self._step = what

    def over(self) -> None:
        """The process ends by itself."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            faulthandler.cancel_dump_traceback_later()

    def _begin(self, seconds: float) -> None:
        self._asked_s = self._clock.monotonic_s()
        self._asked.set()
        self._watch(seconds)

    def _watch(self, seconds: float) -> None:
        """End the process when it is still there after so long. The event loop itself may be what hangs."""
        self.over()
        self._watchdog = Timer(seconds, self._give_up)
        self._watchdog.daemon = True
        self._watchdog.start()
        faulthandler.dump_traceback_later(seconds + FALLBACK_S, exit=True, file=sys.__stderr__ or sys.stderr)

    def _give_up(self) -> None:
        teller = Thread(target=self._tell, daemon=True)
        teller.start()
        teller.join(LAST_WORDS_S)
        self._end_process(STATUS_STOP_HUNG)

    def _tell(self) -> None:
        with self._lock:
            step = self._step
        log.error(
            "the stop takes too long, the process ends: the next start recovers",
            step=step,
            seconds=round(self.seconds, 1),
        )
