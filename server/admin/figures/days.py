"""How many messages a day had, as long as the broker runs."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import NamedTuple

from quarry_mq.store.clock import Clock


class Moved(NamedTuple):
    """Messages."""

    sent: int
    received: int

    def since(self, other: Moved) -> Moved:
        return Moved(self.sent - other.sent, self.received - other.received)


class DayTotals:
    """Days of the broker's time zone. A day counts if the broker has seen it begin.

    What moves between two calls of `note` belongs to the day of the first one: call it at midnight.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._day = self._today()
        self._began_with: Moved | None = None
        """What had moved when this day began; None where that was not seen."""
        self._yesterday: Moved | None = None

    def note(self, total: Moved) -> None:
        """What has moved since the start. To be called every few seconds."""
        day, before = self._today(), self._day
        if day == before:
            return
        is_next = day == before + timedelta(days=1)
        known = is_next and self._began_with is not None
        self._yesterday = total.since(self._began_with) if known and self._began_with is not None else None
        # where the clock was set, or the machine slept over a midnight, nobody knows when the day began
        self._began_with = total if is_next else None
        self._day = day

    def today(self, total: Moved) -> Moved | None:
        """What has moved today, of what has moved since the start; None where the broker has not run all day."""
        if self._began_with is None or self._today() != self._day:
            return None
        return total.since(self._began_with)

    @property
    def yesterday(self) -> Moved | None:
        """None where the broker has not run all of that day."""
        return self._yesterday if self._today() == self._day else None

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000).date()
