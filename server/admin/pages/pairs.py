"""The lag of groups in topics, as the last sweep in the background has found it, or measured now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from quarry_mq.kv import KvError
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.counters.traffic import RatesNow
from quarry_mq.server.lag.consumer_lag import ConsumerLag, PairLag
from quarry_mq.server.lag.measurement import GroupTopic
from quarry_mq.server.tasks.time_slice import TimeSlice
from quarry_mq.store.errors import BrokerError

STEPS_MAX: Final = 2_048
"""Steps that are spent on the groups of one page. A step is a queue, or some hundred messages in flight.

All of them take about 0.1 s of the event loop's time at most, spread over four times as long.
"""


NAMES_MAX: Final = 10_000
"""Names of groups that read topics, or of topics that groups read, that are read for one page."""
SHOWN_MAX: Final = 4_000
"""Pairs of group and topic that one page has: 1.5 MB with the longest names, and clients take 4 MiB."""


@dataclass(slots=True)
class Budget:
    """The number of steps that a page may still take."""

    left: int = STEPS_MAX

    def take(self, steps: int = 1) -> bool:
        """Take some steps, and return whether that many were left."""
        if steps > self.left:
            return False
        self.left -= steps
        return True


async def first_of(names: Iterable[str], limit: int, budget: Budget, time_slice: TimeSlice) -> tuple[list[str], bool]:
    """Return as many of the names as the budget allows, and whether those are all."""
    found: list[str] = []
    for name in names:
        if len(found) >= limit or not budget.take():
            return found, False
        found.append(name)
        await time_slice.pause()
    return found, True


class PairFigures(NamedTuple):
    """The lag of a group in a topic, its retry topics there included. None: not known."""

    group: str
    topic: str
    ready: int | None
    in_flight: int | None
    lag_ms: int | None
    received_per_second: float | None
    consumers: int


class Pairs:
    """The pairs of one page. `rates` are those at the time of the page."""

    def __init__(
        self, lag: ConsumerLag, clients: ClientRegistry, rates: RatesNow, time_slice: TimeSlice, budget: Budget
    ) -> None:
        self._lag = lag
        self._clients = clients
        self._rates = rates
        self._slice = time_slice
        self._budget = budget
        self._consumers: dict[str, Counter[str]] = {}

    async def of(self, group: str, topic: str) -> PairFigures:
        key = GroupTopic(group, topic)
        found = self._lag.found.get(key)
        if found is None:
            found = await self._look(self._lag.measure(key))
        return PairFigures(
            group,
            topic,
            ready=None if found is None else found.ready,
            in_flight=None if found is None else found.in_flight,
            lag_ms=None if found is None else found.lag_ms,
            received_per_second=self._rates.received_of(group, topic),
            consumers=self._consumers_of(group)[topic],
        )

    async def _look(self, steps: Generator[None, None, PairLag | None]) -> PairLag | None:
        """Measure the lag of a pair now; None if it cannot be read, or the budget is used up."""
        with suppress(OSError, KvError, BrokerError):
            while self._budget.take():
                try:
                    next(steps)
                except StopIteration as end:
                    found: PairLag | None = end.value
                    return found
                await self._slice.pause()
        return None

    def _consumers_of(self, group: str) -> Counter[str]:
        """Return the number of connected consumers of a group for each topic."""
        counted = self._consumers.get(group)
        if counted is None:
            there = (each for each in self._clients.consumers_of(group) if not each.is_lost)
            counted = self._consumers[group] = Counter(topic for each in there for topic in each.settings.topics)
        return counted


def sum_known(numbers: Sequence[int | None]) -> int | None:
    """Return the sum; None if one of the numbers is not known."""
    known = [each for each in numbers if each is not None]
    return sum(known) if len(known) == len(numbers) else None


def longest_known(ages_ms: Sequence[int | None]) -> int | None:
    """Return the longest age; 0 if there is none, None if one of them is not known."""
    known = [each for each in ages_ms if each is not None]
    return max(known, default=0) if len(known) == len(ages_ms) else None
