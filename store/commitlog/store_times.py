"""The store times of messages: they follow the clock and do not go back, so that a queue can be searched by time."""

from __future__ import annotations

from quarry_mq.store.clock import JUMP_MAX_MS, Clock


class StoreTimes:
    """Those that were given, and those that are durable.

        last_ms      that of the last record, 0 if unknown: a time that has passed, also where a clock was set back
        flushed_ms   all records with an older one are durable; 0 when none is known

    One thread gives times, another may tell of flushes beside it.
    """

    def __init__(self, clock: Clock, stored_ms: int) -> None:
        """`stored_ms` is that of the last record of the log, all of which is durable."""
        self._clock = clock
        self.last_ms = self.flushed_ms = _believable(stored_ms, clock.wall_ms())

    def next_ms(self) -> int:
        """For the next records; they have it once `last_ms` is set to it."""
        now_ms, last_ms = self._clock.wall_ms(), self.last_ms
        if now_ms >= last_ms:
            return now_ms
        if _believable(last_ms, now_ms):
            return last_ms
        # what is not durable yet will have earlier times than what is
        self.flushed_ms = min(self.flushed_ms, now_ms)
        return now_ms

    def flushed(self, stored_ms: int) -> None:
        """Everything is durable that had been given `stored_ms` before the flush began."""
        # a clock that was years ahead may have been set right meanwhile: nothing is claimed of times that come again
        self.flushed_ms = min(max(self.flushed_ms, stored_ms), self.last_ms)


def _believable(stored_ms: int, now_ms: int) -> int:
    """Where store times go on: behind those in the log, unless a clock gone wild has left them far in the future.

    Order is worth some days of wrong times, not years: segments expire by them.
    """
    return stored_ms if stored_ms <= now_ms + JUMP_MAX_MS else 0
