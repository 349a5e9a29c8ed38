"""Count the messages of a day, as long as the broker runs."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import NamedTuple

from quarry_mq.protocol.clock import Clock


class Moved(NamedTuple):
    """The number of messages that were sent and received."""

    sent: int
    received: int

    def since(self, other: Moved) -> Moved:
        return Moved(self.sent - other.sent, self.received - other.received)


class DayTotals:
    """Message counts of today and yesterday, in the broker's time zone. A day counts if the broker has seen it begin.

    Messages between two calls of `note` count for the day of the first call: call it at midnight.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._day = self._today()
        self._began_with: Moved | None = None
        """The counts when this day began; None if the broker did not see it begin."""
        self._yesterday: Moved | None = None

    def note(self, total: Moved) -> None:
        """Note the counts since the start. To be called every few seconds."""
        day, before = self._today(), self._day
        if day == before:
            return
        is_next = day == before + timedelta(days=1)
        known = is_next and self._began_with is not None
        self._yesterday = total.since(self._began_with) if known and self._began_with is not None else None
        # if the clock was set, or the machine slept over a midnight, the counts at the day's beginning are unknown
        self._began_with = total if is_next else None
        self._day = day

    def today(self, total: Moved) -> Moved | None:
        """Return the counts of today, given those since the start; None if the broker has not run all day."""
        if self._began_with is None or self._today() != self._day:
            return None
        return total.since(self._began_with)

    @property
    def yesterday(self) -> Moved | None:
        """The counts of yesterday; None if the broker has not run all of that day."""
        return self._yesterday if self._today() == self._day else None

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000).date()
