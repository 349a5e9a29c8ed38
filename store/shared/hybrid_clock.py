"""A hybrid logical clock: wall time that never goes back and is never behind what it has been told of."""

from __future__ import annotations

from store.clock import Clock
from store.shared.rows import COUNTER_MAX, Version


class HybridClock:
    """Gives versions. One thread at a time."""

    def __init__(self, clock: Clock, member: bytes) -> None:
        self._clock = clock
        self._member = member
        self.time_ms = 0
        self.counter = 0

    def next(self) -> Version:
        """Later than all that were given and seen, whatever the machine's clock says."""
        wall_ms = self._clock.wall_ms()
        if wall_ms > self.time_ms:
            self.time_ms, self.counter = wall_ms, 0
        elif self.counter < COUNTER_MAX:
            self.counter += 1
        else:
            self.time_ms, self.counter = self.time_ms + 1, 0
        return Version(self.time_ms, self.counter, self._member)

    def saw(self, time_ms: int, counter: int) -> None:
        """Somebody else has written at that time, or this clock before a restart."""
        self.time_ms, self.counter = max((self.time_ms, self.counter), (time_ms, counter))
