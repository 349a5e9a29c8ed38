"""Messages per second of late, of the topics and groups that are counted one by one (`server.traffic`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple, TypeVar

from server.throughput import SAMPLE_INTERVAL_S, WINDOW_S
from server.top_counts import OTHER, TopCounts
from server.traffic import InKey, PairKey, Traffic
from store.clock import Clock

Key = TypeVar("Key", bound=Hashable)


class _Counted(NamedTuple):
    """Messages by name, as they stood at a time."""

    at_s: float
    by_topic: dict[str, int]
    by_pair: dict[tuple[str, str], int]


class RatesNow(NamedTuple):
    """Messages per second; names that are not there are not counted by themselves."""

    sent: dict[str, float]
    """By topic."""
    received: dict[tuple[str, str], float]
    """By group and topic, those of retry topics with it."""

    def received_from(self, topic: str) -> float | None:
        """By all groups that are counted; None when there is none."""
        rates = [rate for (_, each), rate in self.received.items() if each == topic]
        return sum(rates) if rates else None


class RecentRates:
    """Lives on the event loop's thread. `sample` is to be called every few seconds, and costs a step for each row."""

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
        """Since some ten seconds ago, or since the start; of a name that has come since, since then."""
        now, then = self._counted(), self._samples[0]
        seconds = now.at_s - then.at_s
        return RatesNow(_rates(now.by_topic, then.by_topic, seconds), _rates(now.by_pair, then.by_pair, seconds))

    def _counted(self) -> _Counted:
        traffic = self._traffic
        return _Counted(
            self._clock.monotonic_s(),
            _summed((key.topic, messages) for key, messages in _rows(traffic.sent_by_topic)),
            _summed(((key.group, key.topic), messages) for key, messages in _rows(traffic.received_by_group)),
        )


RowKey = TypeVar("RowKey", InKey, PairKey)


def _rows(counts: TopCounts[RowKey]) -> Iterable[tuple[RowKey, int]]:
    return ((key, row.messages) for key, row in counts.rows() if key.topic != OTHER)


def _summed(pairs: Iterable[tuple[Key, int]]) -> dict[Key, int]:
    """A topic has a row for each type of messages, a pair one for its retry topics."""
    sums: dict[Key, int] = {}
    for key, messages in pairs:
        sums[key] = sums.get(key, 0) + messages
    return sums


def _rates(now: dict[Key, int], then: dict[Key, int], seconds: float) -> dict[Key, float]:
    """A row that was dropped and has come again counts from 0: what it had before is not taken away from it."""
    if seconds <= 0:
        return dict.fromkeys(now, 0.0)
    return {
        key: (messages - before if messages >= (before := then.get(key, 0)) else messages) / seconds
        for key, messages in now.items()
    }
