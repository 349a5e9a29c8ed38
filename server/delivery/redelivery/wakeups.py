"""Redelivery timers: when subscriptions have to be served again, since messages become visible then."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.delivery.model import Timer, Timers
from quarry_mq.server.delivery.state.subscription import Subscription

GRAINS_MS: Final = ((10_000, 100), (120_000, 500))
"""Precision in milliseconds of times up to a distance in milliseconds; times further away are kept to the second.

Only waiting receives notice: a receive that comes after the exact time finds the message all the same.
"""
COARSEST_MS: Final = 1_000


class Wakeups:
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

    def forget(self, subscription: Subscription) -> None:
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
