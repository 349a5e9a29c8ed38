"""Pages of topics: what they hold, their recent rates, and the lag of the groups that read them.

Nothing walks over all queues. A page looks at a bounded number of queues, and at a bounded number for the groups that
are not in memory (`server.admin.pages.pages`); values beyond these bounds are reported as not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quarry_mq.kv import KvError
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
    longest_lag,
    names_of,
)
from quarry_mq.server.admin.stats.sources import Sources
from quarry_mq.server.counters.traffic import RatesNow
from quarry_mq.server.lag.consumer_lag import ConsumerLag, PairLag
from quarry_mq.server.tasks.time_slice import Pacing, TimeSlice
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import BrokerError
from quarry_mq.store.metadata import Topic
from quarry_mq.store.metadata.rows import NamesFound
from quarry_mq.store.offsets import QueueOffset

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
