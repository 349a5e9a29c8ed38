"""Count scheduled and prepared messages and find the age of the log, in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.held import DelayedDelivery
from quarry_mq.server.lag.measurement import RunningCount
from quarry_mq.store.errors import BrokerError
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.offsets import PhysicalOffset

ROWS_PER_STEP: Final = 500


class WaitingFigures:
    """Hold the figures; None is not known yet, or no such message. Lives on the event loop's thread; any reads."""

    def __init__(
        self,
        store: MessageStore,
        delays: DelayedDelivery,
        log_begin: Callable[[], PhysicalOffset],
        clock: Clock,
    ) -> None:
        self._store = store
        self._held = store.held
        self._delays = delays
        self._log_begin = log_begin
        self._clock = clock
        self._counts: tuple[RunningCount, RunningCount] | None = None
        self._next_due_ms: int | None = None
        self._late_ms = 0
        self._oldest: tuple[PhysicalOffset, int] | None = None

    def steps(self) -> Iterator[None]:
        """Update all figures, in small steps."""
        if self._counts is None:
            self._counts = (
                RunningCount(self._held.waiting_messages(), self._held.timer_changes),
                RunningCount(self._held.waiting_halves(), self._held.half_changes),
            )
        for count in self._counts:
            while not count.step(ROWS_PER_STEP):
                yield
        first = self._delays.first_waiting()
        self._next_due_ms = None if first is None else first.due_ms
        self._late_ms = 0 if first is None else max(0, self._clock.wall_ms() - first.due_ms)
        yield
        self._oldest = self._find_oldest()

    def stop(self) -> None:
        """Release the store, which is about to close."""
        self._counts = None

    @property
    def timers(self) -> int | None:
        return None if self._counts is None else self._counts[0].value(self._held.timer_changes)

    @property
    def halves(self) -> int | None:
        return None if self._counts is None else self._counts[1].value(self._held.half_changes)

    @property
    def next_due_s(self) -> float | None:
        """Return the seconds until the next scheduled message is due; negative if it was overdue at the last update."""
        due_ms = self._next_due_ms
        if due_ms is None:
            return None
        return -self._late_ms / 1000 if self._late_ms else max(0, due_ms - self._clock.wall_ms()) / 1000

    @property
    def late_ms(self) -> int:
        """Return by how much the first scheduled message was overdue at the last update; 0 when none was."""
        return self._late_ms

    @property
    def oldest_age_ms(self) -> int | None:
        """Return the age of the log's first record."""
        stored_ms = self.oldest_stored_ms
        return None if stored_ms is None else max(0, self._clock.wall_ms() - stored_ms)

    @property
    def oldest_stored_ms(self) -> int | None:
        """Return the time at which the log's first record was stored."""
        return None if self._oldest is None else self._oldest[1]

    def _find_oldest(self) -> tuple[PhysicalOffset, int] | None:
        """Return the log start offset and the time at which the record there was stored."""
        begin = self._log_begin()
        if self._oldest is not None and self._oldest[0] == begin:
            return self._oldest
        with suppress(OSError, KvError, BrokerError):
            return begin, self._store.record_at(begin).store_timestamp_ms
        return None
