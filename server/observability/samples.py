"""Compute expensive figures in the background, a millisecond at a time, and never for a scrape."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import structlog

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.lag.measurement import RunningCount
from quarry_mq.server.pending import DelayedDelivery
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.errors import BrokerError
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.metadata import GroupTable, TopicTable

log = structlog.get_logger(__name__)

PAUSES_PER_SLICE: Final = 9
"""A pause is this many times as long as the slice before it: nine tenths of the loop's time stay for other work."""
PAUSES_WHILE_BUSY: Final = 49
"""A pause is this many times as long while the loop is busy: other work then gets 49 fiftieths of its time. With a
hundred thousand topics in use there is always something to count."""
BUSY_SHARE: Final = 0.5
"""The loop is busy if it uses more of a processor than this share."""

Steps = Callable[[], Iterator[None]]
"""Begins one update of some figures; at each item the caller may let other work run."""


class Sampling:
    """Update figures in the background, one source after the other. Lives on the event loop's thread."""

    def __init__(
        self,
        sources: Sequence[Steps],
        *,
        interval_s: float,
        clock: Clock,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """`cpu_s` returns how much processor time the loop's thread has used."""
        self._cpu_s = cpu_s
        self._sources = sources
        self.interval_s: Final = interval_s
        self._clock = clock
        self._completed_s: float | None = None

    @property
    def age_s(self) -> float | None:
        """Return how long ago all figures were last updated; None before the first time. For any thread."""
        completed_s = self._completed_s
        return None if completed_s is None else self._clock.monotonic_s() - completed_s

    async def run(self) -> None:
        """Update all figures again and again, until cancelled. A source that fails is tried again the next time."""
        while True:
            for begin in self._sources:
                try:
                    await self._go_through(begin())
                except Exception as error:  # noqa: BLE001 - figures are no reason for a broker to stop
                    log.warning("figures could not be made", error=str(error) or type(error).__name__)
            self._completed_s = self._clock.monotonic_s()
            await asyncio.sleep(self.interval_s)

    async def _go_through(self, steps: Iterator[None]) -> None:
        time_slice = TimeSlice(self._clock, pauses=PAUSES_PER_SLICE)
        for _ in steps:
            if time_slice.is_over:
                await self._pause(time_slice)

    async def _pause(self, time_slice: TimeSlice) -> None:
        took_s, began_s, cpu_s = time_slice.took_s, self._clock.monotonic_s(), self._cpu_s()
        await time_slice.pause()
        if self._cpu_s() - cpu_s > BUSY_SHARE * (self._clock.monotonic_s() - began_s):
            await asyncio.sleep((PAUSES_WHILE_BUSY - PAUSES_PER_SLICE) * took_s)
            time_slice.restart()


ROWS_PER_STEP: Final = 500


class NameCounts:
    """Count all topics and groups but the broker's own; None before that is done. Lives on the event loop's thread."""

    def __init__(self, topics: TopicTable, groups: GroupTable) -> None:
        self._topics = topics
        self._groups = groups
        self._counts: tuple[RunningCount, RunningCount] | None = None

    def steps(self) -> Iterator[None]:
        """Count in small steps, the first time that this is called."""
        if self._counts is None:
            topic_changes, group_changes = self._topics.changes, self._groups.changes
            self._counts = (
                RunningCount(self._topics.counted(), topic_changes),
                RunningCount(self._groups.counted(), group_changes),
            )
        for count in self._counts:
            while not count.step(ROWS_PER_STEP):
                yield

    def stop(self) -> None:
        """Release the store, which is about to close."""
        self._counts = None

    @property
    def topics(self) -> int | None:
        return None if self._counts is None else self._counts[0].value(self._topics.changes)

    @property
    def groups(self) -> int | None:
        return None if self._counts is None else self._counts[1].value(self._groups.changes)


class WaitingStats:
    """Hold the figures; None is not known yet, or no such message. Lives on the event loop's thread; any reads."""

    def __init__(
        self,
        store: MessageStore,
        delays: DelayedDelivery,
        log_begin: Callable[[], PhysicalOffset],
        clock: Clock,
    ) -> None:
        self._store = store
        self._pending = store.pending
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
                RunningCount(self._pending.waiting_messages(), self._pending.timer_changes),
                RunningCount(self._pending.waiting_halves(), self._pending.half_changes),
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
        return None if self._counts is None else self._counts[0].value(self._pending.timer_changes)

    @property
    def halves(self) -> int | None:
        return None if self._counts is None else self._counts[1].value(self._pending.half_changes)

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
