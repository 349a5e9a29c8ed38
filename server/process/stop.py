"""The ends of serving: the text that says that a broker is ready, and the stop of the process after a signal.

The text goes to standard output. The process is ended by force when its stop takes too long:

    signal     not ready any more; the drain delay, while all is served as before
    grace      no new calls, the open ones end
    rest       what was accepted is flushed, the store is closed
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
from typing import Final, Self

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.settings.sections import ClusterSection, NetworkSection

log = structlog.get_logger(__name__)

STATUS_STOP_HUNG: Final = 3
LAST_WORDS_S: Final = 1.0
"""Seconds that logging what hangs may take: standard error may hang, too."""
FALLBACK_S: Final = 2.0
"""Seconds after its deadline at which a process ends that cannot run any Python thread: a disk that hangs under mapped
memory stops them all. The process then prints where each thread is, and its status is 1."""


@dataclass(frozen=True, slots=True)
class StopTimes:
    """Seconds that the parts of a stop may take.

    `leave_s` is the delay of a member that leaves its cluster; a member with 0 does not leave.
    """

    delay_s: float
    grace_s: float
    rest_s: float
    leave_s: float = 0.0

    @classmethod
    def of(cls, network: NetworkSection, cluster: ClusterSection) -> Self:
        leave_ms = max(network.drain_delay_ms, cluster.leave_delay_ms) if cluster.leave_delay_ms else 0
        parts_ms = (network.drain_delay_ms, network.stop_grace_ms, network.stop_rest_ms, leave_ms)
        return cls(*(each / 1000 for each in parts_ms))

    @property
    def total_s(self) -> float:
        return max(self.delay_s, self.leave_s) + self.grace_s + self.rest_s


class Stop:
    """Control the stop of the process. All but `is_asked` belongs to the event loop's thread."""

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
        """Return whether the process is to end. Any thread may ask."""
        return self._asked.is_set()

    @property
    def seconds(self) -> float:
        """Return the seconds since the first signal."""
        return self._clock.monotonic_s() - self._asked_s

    def told(self, by: str) -> None:
        """Handle a signal: the first asks for a stop, every other for a quick one."""
        if not self.is_asked:
            log.info("stopping", by=by)
            self._begin(self._times.total_s)
        elif not self._hastened.is_set():
            log.info("stopping without delay", by=by)
            self._hastened.set()
            self._watch(self._times.rest_s)

    def failed(self) -> None:
        """Stop without delay, since the broker cannot go on."""
        if not self.is_asked:
            self._times = StopTimes(0.0, self._times.grace_s, self._times.rest_s)
            self._begin(self._times.total_s)
        else:
            self._hastened.set()

    async def asked(self) -> None:
        """Return when the process is to end."""
        await self._asked.wait()

    async def hastened(self) -> None:
        """Return when the stop must not wait for open calls any longer."""
        await self._hastened.wait()

    async def delay(self, leave: Callable[[], bool]) -> None:
        """Return when new calls are to be refused. `leave` is called before, and returns whether a cluster is left."""
        does_leave = self._times.leave_s > 0 and leave()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.hastened(), self._times.leave_s if does_leave else self._times.delay_s)

    def step(self, what: str) -> None:
        """Note what the stop does next, to be logged if that hangs."""
        with self._lock:
            self._step = what

    def over(self) -> None:
        """Cancel the watchdog: the process ends by itself."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            faulthandler.cancel_dump_traceback_later()

    def _begin(self, seconds: float) -> None:
        self._asked_s = self._clock.monotonic_s()
        self._asked.set()
        self._watch(seconds)

    def _watch(self, seconds: float) -> None:
        """End the process if it still runs after `seconds`. The event loop itself may hang."""
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
