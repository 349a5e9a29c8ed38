"""Time as a parameter (wall clock for time stamps, monotonic clock for waiting), and the progress of long work.

The progress of a long piece of work is described for a caller that shows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

DAY_MS: Final = 86_400_000
JUMP_MAX_MS: Final = 7 * DAY_MS
"""Milliseconds that a wall clock may jump and still be believed at once: some days of wrong times do no
lasting harm.
"""
DOUBT_S: Final = 60.0
"""Seconds that a clock has to keep a larger jump before it is believed."""


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch. The clock may jump."""

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never goes back."""


class SystemClock:
    """The system clock reads the machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


class _Doubt(NamedTuple):
    """A doubt is about a jump that is not believed yet: when it was seen, what the clock said before, and what it says
    since.
    """

    since_s: float
    before_ms: int
    jumped_ms: int


class BelievedClock:
    """A believed clock wraps another clock; its wall time does not follow a jump of more than seven days until it has
    lasted for a minute.

    A time server that is wrong for a moment must not end the leases, delays and nonces of years, nor leave times in the
    store that lie years ahead. Meanwhile time continues from what the clock said before. The first reading is believed.
    """

    def __init__(self, clock: Clock) -> None:
        self._machine_ms = clock.wall_ms
        self.monotonic_s = clock.monotonic_s
        self._last_ms = clock.wall_ms()
        self._apart_ms = self._last_ms - clock.monotonic_s() * 1000
        self._doubt: _Doubt | None = None

    def wall_ms(self) -> int:
        wall_ms = self._machine_ms()
        if not -JUMP_MAX_MS <= wall_ms - self._last_ms <= JUMP_MAX_MS:
            return self._doubted(wall_ms)
        self._last_ms = wall_ms
        if self._doubt is not None:
            self._doubt = None
        return wall_ms

    def _believe(self, wall_ms: int) -> int:
        self._last_ms = wall_ms
        self._apart_ms = wall_ms - self.monotonic_s() * 1000
        self._doubt = None
        return wall_ms

    def _doubted(self, wall_ms: int) -> int:
        now_s, doubt = self.monotonic_s(), self._doubt
        if abs(wall_ms - now_s * 1000 - self._apart_ms) <= JUMP_MAX_MS:  # nothing has read the clock for days
            return self._believe(wall_ms)
        if doubt is None or abs(wall_ms - doubt.jumped_ms) > JUMP_MAX_MS:
            before_ms = self._last_ms if doubt is None else doubt.before_ms + int((now_s - doubt.since_s) * 1000)
            self._doubt = doubt = _Doubt(now_s, before_ms, wall_ms)
        elif now_s - doubt.since_s >= DOUBT_S:
            return self._believe(wall_ms)
        return doubt.before_ms + int((now_s - doubt.since_s) * 1000)


class SteadyClock:
    """A steady clock wraps another clock; its wall time advances from now on as the monotonic time does and never
    jumps.

    It is meant for time spans that begin and end on wall time because they outlive the process. A machine's clock that
    is set an hour back must not hide a message for an hour.
    """

    def __init__(self, clock: Clock, *, not_before_ms: int = 0) -> None:
        """`not_before_ms`: a wall time that is known to have passed, whatever the machine says now."""
        self._monotonic_s = clock.monotonic_s
        self._epoch_s = max(clock.wall_ms(), not_before_ms) / 1000 - clock.monotonic_s()

    def wall_ms(self) -> int:
        return int((self._monotonic_s() + self._epoch_s) * 1000)

    def monotonic_s(self) -> float:
        return self._monotonic_s()


class CautiousClock:
    """A cautious clock wraps another clock; its wall time is never ahead of that clock's nor of a steady clock's.

    It is meant for actions on old messages that cannot be taken back. A machine's clock that is set a day ahead must
    not make messages a day older. A clock that was ahead at the start and is set back is believed at once. A clock that
    was behind at the start is believed after a restart.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steady = SteadyClock(clock)

    def wall_ms(self) -> int:
        return min(self._clock.wall_ms(), self._steady.wall_ms())

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()


class ManualClock:
    """A manual clock moves only when a test moves it."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_s = 0.0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        self._wall_ms += int(seconds * 1000)
        self._monotonic_s += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back without moving the monotonic clock."""
        self._wall_ms += int(seconds * 1000)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress says how far a long piece of work is, in bytes of commit log. `detail` adds a few words."""

    phase: str
    done_bytes: int
    total_bytes: int
    detail: str = ""

    @property
    def ratio(self) -> float:
        """Return the share that is done, from 0 to 1."""
        return 1.0 if self.total_bytes <= 0 else min(1.0, self.done_bytes / self.total_bytes)

    @property
    def percent(self) -> int:
        return 100 if self.total_bytes <= 0 else min(100, 100 * self.done_bytes // self.total_bytes)


ReportProgress = Callable[[Progress], None]
