"""Compute the broker's recent messages per second."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.counters.traffic import Traffic

SAMPLE_INTERVAL_S: Final = 1.0
WINDOW_S: Final = 10.0


class Rates(NamedTuple):
    """Messages per second that were sent and received."""

    sent: float
    received: float


class _Sample(NamedTuple):
    at_s: float
    sent: int
    received: int


class Throughput:
    """Sample counts and compute rates. Lives on the event loop's thread. `sample` is to be called every few seconds."""

    def __init__(self, traffic: Traffic, clock: Clock) -> None:
        self._traffic = traffic
        self._clock = clock
        self._samples = deque([self._now()])

    def sample(self) -> None:
        now = self._now()
        if now.at_s - self._samples[-1].at_s < SAMPLE_INTERVAL_S:
            return
        self._samples.append(now)
        while now.at_s - self._samples[1].at_s >= WINDOW_S:
            self._samples.popleft()

    def rates(self) -> Rates:
        """Return the rates over some ten seconds, or since the start."""
        now, then = self._now(), self._samples[0]
        seconds = now.at_s - then.at_s
        if seconds <= 0:
            return Rates(0.0, 0.0)
        return Rates((now.sent - then.sent) / seconds, (now.received - then.received) / seconds)

    def _now(self) -> _Sample:
        return _Sample(self._clock.monotonic_s(), self._traffic.messages_sent, self._traffic.messages_received)
