"""The module assigns store times: they follow the clock and never go back, so that a queue can be searched by time."""

from __future__ import annotations

from quarry_mq.protocol.clock import JUMP_MAX_MS, Clock


class StoreTimes:
    """The store times that were assigned, and those that are durable.

        last_ms      the time of the last record, 0 if unknown; it has passed, even if a clock was set back
        flushed_ms   all records with an earlier time are durable; 0 when none is known

    One thread assigns times; another may report flushes at the same time.
    """

    def __init__(self, clock: Clock, stored_ms: int) -> None:
        """Begin with `stored_ms`, the store time of the last record of the log, all of which is durable."""
        self._clock = clock
        self.last_ms = self.flushed_ms = _believable(stored_ms, clock.wall_ms())

    def next_ms(self) -> int:
        """Return the store time for the next records; it counts as assigned once `last_ms` is set to it."""
        now_ms, last_ms = self._clock.wall_ms(), self.last_ms
        if now_ms >= last_ms:
            return now_ms
        if _believable(last_ms, now_ms):
            return last_ms
        # records that are not durable yet will have earlier times than durable ones
        self.flushed_ms = min(self.flushed_ms, now_ms)
        return now_ms

    def flushed(self, stored_ms: int) -> None:
        """Record that everything is durable that had been assigned `stored_ms` before the flush began."""
        # a clock that was years ahead may have been set right meanwhile: promise nothing about times that come again
        self.flushed_ms = min(max(self.flushed_ms, stored_ms), self.last_ms)


def _believable(stored_ms: int, now_ms: int) -> int:
    """Return the time from which store times continue: after those in the log, unless a wrong clock left them far in
    the future.

    Keeping the order is worth some days of wrong times, not years: segments expire by them.
    """
    return stored_ms if stored_ms <= now_ms + JUMP_MAX_MS else 0
