"""Redelivery: the timers of hidden messages, the walk over those whose time is up, and a cache of their recent rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from types import TracebackType
from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.delivery.model import Timer, Timers
from quarry_mq.server.delivery.state.inflight import DueEntry, InFlight, InFlightTable
from quarry_mq.server.delivery.state.subscription import LATEST, QueueProgress, Subscription
from quarry_mq.store.message import QueueOffset

ENTRIES_READ_AT_ONCE: Final = 64
LOOKED_AHEAD_MS: Final = 20
"""Milliseconds for which receives do not search again, as long as nothing becomes visible.

It is not longer, since entries of acknowledged messages lie in the way of each search.
"""


class DueWalk:
    """A walk as a context manager, with `entries` to iterate over. The next walk begins where this one ended.

    If something earlier became due since, the next walk begins there. A row that the walk makes visible at once is not
    in the index before it is written, and has its old entry there until then: this walk skips it, the next one must
    not. Entries of queues that are not open are included.
    """

    def __init__(self, table: InFlightTable, subscription: Subscription, until_ms: int) -> None:
        self._table = table
        self._subscription = subscription
        self._until_ms = until_ms
        self._at = subscription.due_from

    def __enter__(self) -> DueWalk:
        self._subscription.due_from = LATEST  # rows that change lower it again
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # rows changed in this loop iteration are not in the index yet, and may belong before what was found there
        unwritten = DueEntry(self._subscription.unwritten_due_ms, 0, QueueOffset(0))
        self._subscription.due_from = min(self._subscription.due_from, self._at, unwritten)

    def entries(self) -> Iterator[DueEntry]:
        """Yield the due entries, the earliest first. Each counts as dealt with."""
        ahead_ms = self._until_ms + LOOKED_AHEAD_MS
        while self._at.visible_at_ms <= self._until_ms:
            found = self._table.due(self._subscription.prefix, self._at, ahead_ms, ENTRIES_READ_AT_ONCE)
            for entry in found:
                if entry.visible_at_ms > self._until_ms:
                    self._rest_until(entry.visible_at_ms)
                    return
                self._at = entry.following
                yield entry
            if len(found) < ENTRIES_READ_AT_ONCE:
                self._rest_until(ahead_ms + 1)
                return

    def _rest_until(self, written_ms: int) -> None:
        """Note that nothing written becomes visible before that time, so that the next walk need not scan it again."""
        self._at = max(self._at, DueEntry(written_ms, 0, QueueOffset(0)))

    def begin_again_at(self, entry: DueEntry) -> None:
        """Let the next walk begin at this entry at the latest."""
        self._at = min(self._at, entry)


GRAINS_MS: Final = ((10_000, 100), (120_000, 500))
"""Precision in milliseconds of times up to a distance in milliseconds; times further away are kept to the second.

Only waiting receives notice: a receive that comes after the exact time finds the message all the same.
"""
COARSEST_MS: Final = 1_000


class RedeliveryTimers:
    """Subscriptions by wake-up time. Its size grows with the number of distinct times, not with that of messages."""

    def __init__(self, clock: Clock, timers: Timers, wake: Callable[[Iterable[Subscription]], None]) -> None:
        self._clock = clock
        self._timers = timers
        self._wake = wake
        self._at: dict[int, dict[Subscription, None]] = {}
        self._times: list[int] = []
        self._timer: Timer | None = None
        self._timer_at_ms = 0

    def __len__(self) -> int:
        return sum(map(len, self._at.values()))

    def add(self, at_ms: int, subscription: Subscription) -> None:
        """Wake the subscription at a time, or up to a hundredth of the way there later."""
        rounded_ms = round_up(at_ms, self._clock.wall_ms())
        subscriptions = self._at.get(rounded_ms)
        if subscriptions is None:
            subscriptions = self._at[rounded_ms] = {}
            heappush(self._times, rounded_ms)
            self._arm()
        subscriptions[subscription] = None
        if subscription.wake_times is not None:
            subscription.wake_times.add(rounded_ms)

    def cancel_all(self, subscription: Subscription) -> None:
        """Cancel the wake-ups of a subscription that keeps track of its times."""
        for at_ms in subscription.wake_times or ():
            self._at.get(at_ms, {}).pop(subscription, None)  # after `stop` there are none
        subscription.wake_times = set()

    def stop(self) -> None:
        """Wake no subscription any more: the store is about to close."""
        if self._timer is not None:
            self._timer.cancel()
        self._at.clear()
        self._times.clear()

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._clock.wall_ms()
        woken: dict[Subscription, None] = {}
        while self._times and self._times[0] <= now_ms:
            at_ms = heappop(self._times)
            for subscription in self._at.pop(at_ms):
                woken[subscription] = None
                if subscription.wake_times is not None:
                    subscription.wake_times.discard(at_ms)
        self._arm()
        self._wake(woken)

    def _arm(self) -> None:
        if not self._times or (self._timer is not None and self._timer_at_ms <= self._times[0]):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = self._times[0]
        delay_s = max(0, self._timer_at_ms - self._clock.wall_ms()) / 1000
        self._timer = self._timers.call_later(delay_s, self._tick)


def round_up(at_ms: int, now_ms: int) -> int:
    """Return the time rounded up to the precision for its distance."""
    grain_ms = next((grain for within, grain in GRAINS_MS if at_ms - now_ms <= within), COARSEST_MS)
    return -(-at_ms // grain_ms) * grain_ms


RECENT_ROWS_MAX: Final = 16_384
"""Rows of all groups together, at some 300 bytes each. When they are exceeded, rows are read from the table."""


class RecentRows:
    """Rows as they are staged or written, with their queues; each is dropped when it changes.

    When there are too many, all of them are evicted. Consumers that keep messages for longer than 16,384 messages take
    gain nothing from the cache, and no order has to be kept.
    """

    __slots__ = ("_count", "_holders")

    def __init__(self) -> None:
        self._count = 0
        self._holders: dict[QueueProgress, None] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, progress: QueueProgress, rows: Mapping[QueueOffset, InFlight]) -> None:
        """Add the rows of messages that had none."""
        if self._count + len(rows) > RECENT_ROWS_MAX:
            self._clear()
        self._count += len(rows)
        if not progress.recent:
            self._holders[progress] = None
        progress.recent.update(rows)

    def drop(self, progress: QueueProgress, offset: QueueOffset) -> None:
        """Drop a row that has changed or was deleted."""
        if progress.recent.pop(offset, None) is not None:
            self._count -= 1
            if not progress.recent:
                del self._holders[progress]

    def drop_from(self, progress: QueueProgress, start: int) -> None:
        """Drop all rows of the queue from an offset on, since they have changed."""
        for offset in [each for each in progress.recent if each >= start]:
            self.drop(progress, offset)

    def _clear(self) -> None:
        for progress in self._holders:
            progress.recent.clear()
        self._holders.clear()
        self._count = 0
