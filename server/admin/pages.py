"""Pages of topics and groups with their statistics, at a bounded cost for any number of names.

A page of topics shows what they hold, their recent rates, and the lag of the groups that read them. A page of groups
shows their lag in each topic that they read, and in all of them together.

Nothing walks over all queues. A page looks at a bounded number of queues, and at a bounded number for the groups that
are not in memory; values beyond these bounds are reported as not known. Only a search for a part of a name reads all
names, in short steps.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.admin.sources import Sources
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.counters import RatesNow
from quarry_mq.server.delivery.retry_topics import topic_beside
from quarry_mq.server.lag.consumer_lag import ConsumerLag, PairLag
from quarry_mq.server.lag.measurement import GroupTopic
from quarry_mq.server.tasks import Pacing, TimeSlice
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import BrokerError, Invalid
from quarry_mq.store.message import QueueOffset
from quarry_mq.store.metadata import Group, Topic
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
    """The page that is requested. `contains` is a part of names in any case; `after` needs the order by name.

    `names` are the only ones that are wanted, if there are any, whatever else is said.
    """

    contains: str = ""
    after: str = ""
    limit: int = LIMIT_DEFAULT
    order: Order = Order.NAME
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        if len(self.names) > LIMIT_MAX:
            raise Invalid(f"names: {len(self.names)} of them, at most {LIMIT_MAX} are allowed")
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
    if wanted.names:
        return NamePage(list(wanted.names), has_more=False, matching=len(wanted.names))
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


TOPICS_MAX: Final = 500
"""Topics of one group that are looked at, its retry topics among them."""
TOPICS_SHOWN: Final = 50


class GroupStats(NamedTuple):
    """A group and its lag. None: not known. `topics` are the first ones by name; the sums are of all."""

    group: Group
    consumers: int
    topics: Sequence[PairStats]
    topic_count: int | None
    ready: int | None
    in_flight: int | None
    lag_ms: int | None
    dead_letters: int | None


class GroupPage(NamedTuple):
    groups: Sequence[GroupStats]
    has_more: bool
    matching: int


@dataclass(slots=True)
class _GroupPageWork:
    """A page in the making, with its remaining budgets."""

    time_slice: TimeSlice
    pairs: Pairs
    names: Budget = field(default_factory=lambda: Budget(NAMES_MAX))
    shown: Budget = field(default_factory=lambda: Budget(SHOWN_MAX))


class GroupPages:
    """Makes pages of groups. Lives on the event loop's thread."""

    def __init__(self, sources: Sources, dead_letters: Callable[[str], int | None]) -> None:
        """`dead_letters` returns how many dead letters of a group were never sent again."""
        its = sources.components
        self._groups = its.store.groups
        self._topics = its.store.topics
        self._offsets = its.store.offsets
        self._clients = its.edge.clients
        self._lag: ConsumerLag = sources.background.lag
        self._rates = sources.rates
        self._dead_letters = dead_letters
        self._pacing = Pacing(its.clock)
        self._search = NameSearch(self._groups.names_after, lambda: sources.background.names.groups, its.clock)

    async def page(self, wanted: Wanted) -> GroupPage:
        """Make a page. Raises KvError, StoreDamaged."""
        rates = self._rates.now()

        def weights() -> dict[str, float]:
            return self._busiest(rates) if wanted.order is Order.BUSIEST else self._largest_lag()

        async with self._pacing.turn() as time_slice:
            page = await names_of(
                wanted,
                self._search,
                time_slice,
                weights=weights,
                is_there=lambda name: self._groups.get(name) is not None,
            )
            making, groups = (
                _GroupPageWork(time_slice, Pairs(self._lag, self._clients, rates, time_slice, Budget())),
                [],
            )
            for name in page.names:
                group = self._groups.get(name)
                if group is not None:  # deleted meanwhile
                    groups.append(await self._stats(group, making))
                await time_slice.pause()
        return GroupPage(groups, page.has_more, page.matching)

    async def _stats(self, group: Group, making: _GroupPageWork) -> GroupStats:
        names = self._offsets.topics_of(group.name, light_queues=False)
        read, is_all = await first_of(names, TOPICS_MAX, making.names, making.time_slice)
        topics = self._without_retries(group.name, read)
        found = []
        for topic in topics if is_all else topics[:TOPICS_SHOWN]:
            found.append(await making.pairs.of(group.name, topic))
            await making.time_slice.pause()
        return GroupStats(
            group,
            sum(not each.is_lost for each in self._clients.consumers_of(group.name)),
            [each for each in found[:TOPICS_SHOWN] if making.shown.take()],
            len(topics) if is_all else None,
            ready=sum_known([each.ready for each in found]) if is_all else None,
            in_flight=sum_known([each.in_flight for each in found]) if is_all else None,
            lag_ms=longest_known([each.lag_ms for each in found]) if is_all else None,
            dead_letters=self._dead_letters(group.name),
        )

    def _without_retries(self, group: str, read: Sequence[str]) -> list[str]:
        """Return the topics that the group reads, without retry topics, which count in the topics they retry."""
        every = set(read)
        return sorted(
            name for name in read if self._topics.get(name) is not None and topic_beside(group, name) not in every
        )

    def _busiest(self, rates: RatesNow) -> dict[str, float]:
        weights: dict[str, float] = {}
        for (group, _), rate in rates.received.items():
            weights[group] = weights.get(group, 0.0) + rate
        return weights

    def _largest_lag(self) -> dict[str, float]:
        return longest_lag(self._lag.found.values(), _group_of)


def _group_of(pair: PairLag) -> str:
    return pair.group


QUEUES_MAX: Final = 2_048
"""Queues that one page reads for what its topics hold: 256 topics of eight queues, about 0.06 s of the loop's time."""
QUEUES_PER_TOPIC_MAX: Final = 1_024
READERS_MAX: Final = 1_000
"""Groups of one topic that are counted."""
GROUPS_SHOWN: Final = 20


class Kept(NamedTuple):
    """The contents of a topic's queues. `last_stored_ms` is None if they are empty, or the record cannot be read."""

    messages: int
    estimated_bytes: int
    last_stored_ms: int | None


class TopicStats(NamedTuple):
    """A topic with its statistics. None: not known, or not asked for. `groups` are the first ones by name."""

    topic: Topic
    kept: Kept | None
    sent_per_second: float | None
    received_per_second: float | None
    groups: Sequence[PairStats]
    group_count: int | None


class TopicPage(NamedTuple):
    topics: Sequence[TopicStats]
    has_more: bool
    matching: int


@dataclass(slots=True)
class _TopicPageWork:
    """A page in the making, with its remaining budgets."""

    rates: RatesNow
    time_slice: TimeSlice
    pairs: Pairs
    queues: Budget = field(default_factory=lambda: Budget(QUEUES_MAX))
    names: Budget = field(default_factory=lambda: Budget(NAMES_MAX))
    shown: Budget = field(default_factory=lambda: Budget(SHOWN_MAX))


class TopicPages:
    """Makes pages of topics. Lives on the event loop's thread."""

    def __init__(self, sources: Sources) -> None:
        its = sources.components
        self._topics = its.store.topics
        self._groups = its.store.groups
        self._messages = its.store.messages
        self._offsets = its.store.offsets
        self._clients = its.edge.clients
        self._lag: ConsumerLag = sources.background.lag
        self._rates = sources.rates
        self._pacing = Pacing(its.clock)
        self._search = NameSearch(self._topics.names_after, lambda: sources.background.names.topics, its.clock)
        self._search_all = NameSearch(self._names_of_all, lambda: None, its.clock)

    async def page(self, wanted: Wanted, *, include_system: bool = False) -> TopicPage:
        """Make a page. Raises KvError, StoreDamaged."""
        rates = self._rates.now()

        def weights() -> dict[str, float]:
            return self._busiest(rates) if wanted.order is Order.BUSIEST else self._largest_lag()

        async with self._pacing.turn() as time_slice:
            search = self._search_all if include_system else self._search
            page = await names_of(
                wanted,
                search,
                time_slice,
                weights=weights,
                is_there=lambda name: self._is_there(name, include_system=include_system),
            )
            making = _TopicPageWork(rates, time_slice, Pairs(self._lag, self._clients, rates, time_slice, Budget()))
            topics = []
            for name in page.names:
                topic = self._topics.get(name)
                if topic is not None:  # deleted meanwhile
                    topics.append(await self._stats(topic, making))
                await time_slice.pause()
        return TopicPage(topics, page.has_more, page.matching)

    async def _stats(self, topic: Topic, making: _TopicPageWork) -> TopicStats:
        names = self._offsets.readers_of(topic.name)
        read, is_all = await first_of(names, READERS_MAX, making.names, making.time_slice)
        readers = sorted(name for name in read if self._groups.get(name) is not None)
        groups = [await making.pairs.of(group, topic.name) for group in readers[:GROUPS_SHOWN] if making.shown.take()]
        return TopicStats(
            topic,
            await self._kept(topic, making.queues, making.time_slice),
            making.rates.sent_to(topic.name),
            making.rates.received_by(readers, topic.name) if is_all else None,
            groups,
            len(readers) if is_all else None,
        )

    async def _kept(self, topic: Topic, budget: Budget, time_slice: TimeSlice) -> Kept | None:
        """Return what a topic's queues hold; None if they are too many for a page, or cannot be read."""
        queues = self._messages.iterate_queues(topic.name)
        if len(queues) > QUEUES_PER_TOPIC_MAX or not budget.take(len(queues)):
            return None
        messages, lasts = 0, []
        with suppress(OSError, KvError, BrokerError):
            for queue in queues:
                bounds = self._messages.bounds(queue)
                if bounds.maximum > bounds.minimum:
                    messages += bounds.maximum - bounds.minimum
                    lasts += self._messages.entries(queue, QueueOffset(bounds.maximum - 1), 1)
                await time_slice.pause()
            size = sum(each.size for each in lasts) / len(lasts) if lasts else 0
            return Kept(messages, round(messages * size), self._last_stored_ms(lasts))
        return None

    def _last_stored_ms(self, lasts: Sequence[ConsumeQueueEntry]) -> int | None:
        newest = max(lasts, key=lambda each: each.physical_offset, default=None)
        if newest is None or newest.store_timestamp_ms is not None:
            return None if newest is None else newest.store_timestamp_ms
        with suppress(OSError, KvError, BrokerError):  # the client that receives the message gets the error
            return self._messages.read(newest).store_timestamp_ms
        return None

    def _names_of_all(self, after: str, limit: int, contains: str) -> NamesFound:
        return self._topics.names_after(after, limit, contains, include_system=True)

    def _is_there(self, name: str, *, include_system: bool) -> bool:
        topic = self._topics.get(name)
        return topic is not None and (include_system or not topic.is_system)

    def _busiest(self, rates: RatesNow) -> dict[str, float]:
        weights = dict(rates.sent)
        for (_, topic), rate in rates.received.items():
            weights[topic] = weights.get(topic, 0.0) + rate
        return weights

    def _largest_lag(self) -> dict[str, float]:
        return longest_lag(self._lag.found.values(), _topic_of)


def _topic_of(pair: PairLag) -> str:
    return pair.topic
