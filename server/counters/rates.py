"""Compute recent messages per second: of the broker, and of topics and groups that are counted one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.counters.top_counts import OTHER
from quarry_mq.server.counters.traffic import Traffic

SAMPLE_INTERVAL_S: Final = 1.0
WINDOW_S: Final = 10.0

Key = TypeVar("Key", bound=Hashable)


class Rates(NamedTuple):
    """Messages per second that were sent and received, over all names."""

    sent: float
    received: float


class _Counted(NamedTuple):
    """Counts of messages at one time: all of them, and by name, `OTHER` included."""

    at_s: float
    sent: int
    received: int
    by_topic: dict[str, int]
    by_pair: dict[tuple[str, str], int]


class RatesNow(NamedTuple):
    """Messages per second by name, with all names that have no row of their own under `OTHER`."""

    by_topic: dict[str, float]
    by_pair: dict[tuple[str, str], float]
    """Rates by group and topic, messages of the group's retry topics included."""

    @property
    def sent(self) -> dict[str, float]:
        """Return the rates by topic, without `OTHER`."""
        return {topic: rate for topic, rate in self.by_topic.items() if topic != OTHER}

    @property
    def received(self) -> dict[tuple[str, str], float]:
        """Return the rates by group and topic, without `OTHER`."""
        return {pair: rate for pair, rate in self.by_pair.items() if pair != (OTHER, OTHER)}

    def sent_to(self, topic: str) -> float | None:
        """Return a topic's rate; None if it is unknown: the topic has no row, and `OTHER` had messages."""
        return self.by_topic.get(topic, None if self.by_topic.get(OTHER) else 0.0)

    def received_of(self, group: str, topic: str) -> float | None:
        """Return the rate of a group and topic; None if it is unknown, as in `sent_to`."""
        return self.by_pair.get((group, topic), None if self.by_pair.get((OTHER, OTHER)) else 0.0)

    def received_by(self, groups: Sequence[str], topic: str) -> float | None:
        """Return the rate of all these groups together; None if that of one of them is unknown."""
        rates = [rate for group in groups if (rate := self.received_of(group, topic)) is not None]
        return sum(rates) if len(rates) == len(groups) else None


class RecentRates:
    """Sample counts and compute rates. Lives on the event loop's thread.

    `sample` is to be called every few seconds, and costs a step for each row.
    """

    def __init__(self, traffic: Traffic, clock: Clock) -> None:
        self._traffic = traffic
        self._clock = clock
        self._samples: Final = deque([self._counted()])

    def sample(self) -> None:
        if self._clock.monotonic_s() - self._samples[-1].at_s < SAMPLE_INTERVAL_S:
            return
        self._samples.append(self._counted())
        while self._samples[-1].at_s - self._samples[1].at_s >= WINDOW_S:
            self._samples.popleft()

    def now(self) -> RatesNow:
        """Return the rates over some ten seconds, or since the start. A row that is younger counts from zero."""
        now, then = self._counted(), self._samples[0]
        seconds = now.at_s - then.at_s
        return RatesNow(_rates(now.by_topic, then.by_topic, seconds), _rates(now.by_pair, then.by_pair, seconds))

    def totals(self) -> Rates:
        """Return the rates of all messages together over the same time, at no cost for each row."""
        then = self._samples[0]
        seconds = self._clock.monotonic_s() - then.at_s
        if seconds <= 0:
            return Rates(0.0, 0.0)
        sent, received = self._traffic.messages_sent - then.sent, self._traffic.messages_received - then.received
        return Rates(sent / seconds, received / seconds)

    def _counted(self) -> _Counted:
        traffic = self._traffic
        return _Counted(
            self._clock.monotonic_s(),
            traffic.messages_sent,
            traffic.messages_received,
            _summed((key.topic, row.messages) for key, row in traffic.sent_by_topic.rows()),
            _summed(((key.group, key.topic), row.messages) for key, row in traffic.received_by_group.rows()),
        )


def _summed(pairs: Iterable[tuple[Key, int]]) -> dict[Key, int]:
    """Add up the rows of each name: a topic has one for each type of messages, a pair another for its retry topics."""
    sums: dict[Key, int] = {}
    for key, messages in pairs:
        sums[key] = sums.get(key, 0) + messages
    return sums


def _rates(now: dict[Key, int], then: dict[Key, int], seconds: float) -> dict[Key, float]:
    """Return messages per second. A row that was dropped and made again counts from 0: no old count is subtracted."""
    if seconds <= 0:
        return dict.fromkeys(now, 0.0)
    rates: dict[Key, float] = {}
    for key, messages in now.items():
        before = then.get(key, 0)
        rates[key] = (messages - before if messages >= before else messages) / seconds
    return rates
