"""Pages of groups: their lag in each topic that they read, and in all of them together.

The work of a page is bounded as that of `server.admin.pages.topics`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quarry_mq.server.admin.pages.pages import (
    NAMES_MAX,
    SHOWN_MAX,
    Budget,
    NameSearch,
    Order,
    Pairs,
    PairStats,
    Wanted,
    first_of,
    longest_known,
    longest_lag,
    names_of,
    sum_known,
)
from quarry_mq.server.admin.stats.sources import Sources
from quarry_mq.server.counters.traffic import RatesNow
from quarry_mq.server.delivery.retry_topics import topic_beside
from quarry_mq.server.lag.consumer_lag import ConsumerLag, PairLag
from quarry_mq.server.tasks.time_slice import Pacing, TimeSlice
from quarry_mq.store.metadata import Group

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
