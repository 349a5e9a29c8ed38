"""Time as a parameter: wall clock for stamps, monotonic for waiting."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back."""


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


class SteadyClock:
    """Another clock whose wall time goes on from now as its monotonic time does: it never jumps.

    For spans that begin and end on wall time because they outlive the process. A machine's clock that is set
    an hour back must not hide a message for an hour.
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
    """Another clock whose wall time is never ahead of the machine's nor of one that goes on steadily.

    For what cannot be taken back once it is too old. A machine's clock that is set a day ahead must not make messages
    a day older; one that was ahead at the start and is set back is believed at once. One that was behind at the start
    is believed after a restart.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steady = SteadyClock(clock)

    def wall_ms(self) -> int:
        return min(self._clock.wall_ms(), self._steady.wall_ms())

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()


class ManualClock:
    """A clock that moves only when told to, for tests."""

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
        """Somebody sets the wall clock."""
        self._wall_ms += int(seconds * 1000)
