"""The common parts of pages of topics and groups: which names are on them, and the lag of groups in topics.

A search for a part of a name reads all names, in short steps.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.counters.traffic import RatesNow
from quarry_mq.server.lag.consumer_lag import ConsumerLag, PairLag
from quarry_mq.server.lag.measurement import GroupTopic
from quarry_mq.server.tasks.time_slice import TimeSlice
from quarry_mq.store.errors import BrokerError, Invalid
from quarry_mq.store.metadata.rows import NamesFound

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


class PairStats(NamedTuple):
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

    async def of(self, group: str, topic: str) -> PairStats:
        key = GroupTopic(group, topic)
        found = self._lag.found.get(key)
        if found is None:
            found = await self._look(self._lag.measure(key))
        return PairStats(
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


ROWS_PER_STEP: Final = 512
PAUSES_PER_STEP: Final = 1
"""Pauses per step: half of the event loop's time is left to others."""
KEPT_S: Final = 10.0
KEPT_SEARCHES: Final = 16
KEPT_NAMES: Final = 1_000
"""Names that are kept of one search; if there are more, each page walks to them again."""

NamesAfter = Callable[[str, int, str], NamesFound]
"""Read at most some number of rows after a name, and return those whose names contain a text.

See `NamedRows.names_after`.
"""


class NamePage(NamedTuple):
    """Names in their order. `matching` is the number of such names on all pages."""

    names: list[str]
    has_more: bool
    matching: int


class _Search(NamedTuple):
    at_s: float
    matching: int
    names: list[str] | None
    """All matching names; None if they are too many."""


class NameSearch:
    """Searches the names of one table. Lives on the event loop's thread."""

    def __init__(self, names_after: NamesAfter, count: Callable[[], int | None], clock: Clock) -> None:
        """`count` returns the number of all names, None until they are counted."""
        self._names_after = names_after
        self._count = count
        self._clock = clock
        self._searches: OrderedDict[str, _Search] = OrderedDict()
        self._turn = asyncio.Semaphore(1)

    async def page(self, contains: str, after: str, limit: int, time_slice: TimeSlice) -> NamePage:
        """Return the first names after `after` that contain `contains`; "" stands for all."""
        part = contains.lower()
        count = self._count() if not part else None
        if count is None:
            search = await self._search(part, time_slice)
            if search.names is not None:
                first = bisect_right(search.names, after) if after else 0
                names = search.names[first : first + limit]
                return NamePage(names, first + limit < len(search.names), search.matching)
            count = search.matching
        names = await self._walk(part, after, limit + 1, time_slice)
        return NamePage(names[:limit], len(names) > limit, count)

    async def _search(self, part: str, time_slice: TimeSlice) -> _Search:
        async with self._turn:
            known = self._searches.get(part)
            if known is None or self._clock.monotonic_s() - known.at_s >= KEPT_S:
                known = await self._look_at_all(part)
        time_slice.restart()
        return known

    async def _look_at_all(self, part: str) -> _Search:
        time_slice = TimeSlice(self._clock, pauses=PAUSES_PER_STEP)
        names: list[str] = []
        matching, after = 0, ""
        while True:
            found = self._names_after(after, ROWS_PER_STEP, part)
            matching += len(found.names)
            if len(names) <= KEPT_NAMES:
                names += found.names
            if found.last is None:
                break
            after = found.last
            await time_slice.pause()
        search = _Search(self._clock.monotonic_s(), matching, names if matching <= KEPT_NAMES else None)
        self._searches[part] = search
        self._searches.move_to_end(part)
        if len(self._searches) > KEPT_SEARCHES:
            self._searches.popitem(last=False)
        return search

    async def _walk(self, part: str, after: str, limit: int, time_slice: TimeSlice) -> list[str]:
        names: list[str] = []
        last = after
        while len(names) < limit:
            found = self._names_after(last, ROWS_PER_STEP, part)
            names += found.names
            if found.last is None:
                break
            last = found.last
            await time_slice.pause()
        return names[:limit]


LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 500


class Order(Enum):
    """The order of a page."""

    NAME = "name"
    BUSIEST = "busiest"
    """Messages per second, the most first."""
    LAG = "lag"
    """The age of the oldest message that is not consumed, the longest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The page that is requested. `contains` is a part of names in any case; `after` needs the order by name."""

    contains: str = ""
    after: str = ""
    limit: int = LIMIT_DEFAULT
    order: Order = Order.NAME

    def __post_init__(self) -> None:
        if self.after and self.order is not Order.NAME:
            raise Invalid("after: allowed only with the order by name")


async def names_of(
    wanted: Wanted,
    search: NameSearch,
    time_slice: TimeSlice,
    *,
    weights: Callable[[], dict[str, float]],
    is_there: Callable[[str], bool],
) -> NamePage:
    """Return the names of a page. `weights` are those of the names that have one in this order, heavy ones first."""
    page = await search.page(wanted.contains, wanted.after, wanted.limit, time_slice)
    if wanted.order is Order.NAME:
        return page
    weighed = weights()
    part = wanted.contains.lower()
    names = [name for name in weighed if part in name.lower() and is_there(name)]
    names.sort(key=lambda name: (-weighed[name], name))
    return NamePage(names[: wanted.limit], len(names) > wanted.limit, page.matching)


def longest_lag(pairs: Iterable[PairLag], name_of: Callable[[PairLag], str]) -> dict[str, float]:
    """Return the longest lag for each name. Pairs whose lag is not known do not count."""
    longest: dict[str, float] = {}
    for each in pairs:
        if each.lag_ms is not None:
            longest[name_of(each)] = max(longest.get(name_of(each), 0), each.lag_ms)
    return longest
