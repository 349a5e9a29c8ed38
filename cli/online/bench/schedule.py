"""Decides when messages are due: as fast as possible, or at a fixed rate whatever happens to earlier ones."""

from __future__ import annotations

from typing import Final

from quarry_mq.cli.online.bench.stats import Plan
from quarry_mq.protocol.clock import Clock

LATE_S: Final = 1.0
"""Seconds after the duration in which messages that were due in it are still sent, if there is a rate to keep."""


class Schedule:
    """Gives the times at which messages should be sent, until duration or count are reached.

    With a rate the times do not depend on how fast the broker answers: delays by the broker count as latency.
    """

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._taken = 0
        self._is_stopped = False

    def take(self) -> float | None:
        """Return when the next message should be sent, which is now or earlier; None: not yet, or no more."""
        if self.is_over:
            return None
        now_s = self._clock.monotonic_s()
        due_s = now_s if self._plan.rate is None else self._due_s
        if due_s > now_s:
            return None
        self._taken += 1
        return due_s

    def waits_s(self) -> float | None:
        """Return the seconds until the next message is due; None without a rate, or if no more are due."""
        if self._plan.rate is None or self.is_over:
            return None
        return max(0.0, self._due_s - self._clock.monotonic_s())

    def stop(self) -> None:
        self._is_stopped = True

    @property
    def is_over(self) -> bool:
        plan = self._plan
        if self._is_stopped or (plan.count is not None and self._taken >= plan.count):
            return True
        if plan.duration_s is None:
            return False
        is_all_taken = plan.rate is not None and self._taken / plan.rate >= plan.duration_s
        return is_all_taken or self.left_s == 0.0

    @property
    def left_s(self) -> float | None:
        """Return the seconds until the load stops sending; None if a count ends the load."""
        if self._plan.duration_s is None:
            return None
        late_s = 0.0 if self._plan.rate is None else LATE_S
        return max(0.0, self._began_s + self._plan.duration_s + late_s - self._clock.monotonic_s())

    @property
    def _due_s(self) -> float:
        return self._began_s + self._taken / (self._plan.rate or 1.0)
