"""Compute the consumer lag of all groups: of every subscription in memory, and of as many others as can be counted.

Nothing walks over all queues. The queues of subscriptions in memory are bounded, and a sweep over them is made in the
background (`server.observability.samples`). Groups that have left memory, or were never in it since the start, are
looked up in the store, so the lag of a group whose consumers are all gone is still seen to grow.

All queues that the group reads count, including those that were not opened yet: queues that were added to the topic
later, and all but one when a client's first call after a restart is an acknowledgement. Lite topics do not count: a
group may read a million of them, and their subscriptions come and go with each message. `LiteBacklog` finds the lite
topics in which a group has the most lag, and what is ready for each of its clients.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Final, NamedTuple, Protocol

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.names import is_light_queue
from quarry_mq.server.counters import OTHER
from quarry_mq.server.delivery import MessageSource, Subscription
from quarry_mq.server.delivery.lite import LiteDelivery
from quarry_mq.server.delivery.retry_topics import retry_topics, topic_beside
from quarry_mq.server.lag.measurement import (
    ROWS_PER_STEP,
    GroupTopic,
    LagMeasurement,
    Measured,
    Progress,
    QueuePosition,
    RunningCount,
)
from quarry_mq.server.lite.subscriptions import WantedLiteTopics
from quarry_mq.server.metadata import queues_of_topic
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import BrokerError, GroupNotFound, Invalid, TopicNotFound
from quarry_mq.store.message import PhysicalOffset, QueueId
from quarry_mq.store.metadata import GroupTable, TopicTable, TopicType
from quarry_mq.store.metadata.lite import ALL_OF_THEM, LiteGroup, LiteSubscriptionTable, parse_light_queue_name

LEFT_QUEUES_MAX: Final = 65_536
"""Queues of subscriptions that left memory, in total. Those that left first are dropped first."""
LEFT_PAIRS_MAX: Final = 8_192
"""Subscriptions that left memory and are still counted."""
START_GROUPS_MAX: Final = 65_536
"""Groups that are looked up at the start: a second of work, in the background."""


class PairLag(NamedTuple):
    """The lag of one group in one topic. `ready` messages were never handed out.

    None stands for what is not known: the number in flight while that state cannot be written, and the age of the
    oldest message (of all, and of those that are ready) if its record cannot be read. Without a message the age is 0.

    `done` changes with each message that the group is done with: the sum of its next offsets, less what is in flight.
    """

    group: str
    topic: str
    is_retry: bool
    ready: int
    in_flight: int | None
    lag_ms: int | None
    queueing_ms: int | None
    done: int | None = None

    @property
    def lag(self) -> int:
        return self.ready + (self.in_flight or 0)


class LagTotals(NamedTuple):
    """The lag of all groups in all topics; None if a part is unknown. `lag_ms` is the age of the oldest message."""

    ready: int
    in_flight: int | None
    lag_ms: int | None


class Subscriptions(Progress, Protocol):
    """The part of delivery that consumer lag reads."""

    def subscriptions(self) -> Sequence[Subscription]: ...


class ConsumerLag(LagMeasurement):
    """Measures the lag of all groups in sweeps. Lives on the event loop's thread; `pairs` may be read on any."""

    def __init__(
        self,
        progress: Subscriptions,
        source: MessageSource,
        *,
        pairs_max: int,
        clock: Clock,
        queue_count: Callable[[str], int | None],
        reads: Callable[[str, str], bool],
        stored: Callable[[], Iterator[GroupTopic | None]] = lambda: iter(()),
    ) -> None:
        """`queue_count` returns the number of queues of a topic, None if there is no such topic.

        `reads` returns whether a group has an offset in a topic. `stored` yields the pairs that have one at the start,
        whose consumers may be gone for good, and None after the last pair of each group.
        """
        super().__init__(progress, source)
        self._subscriptions = progress.subscriptions
        self._pairs_max = pairs_max
        self._clock = clock
        self._queue_count = queue_count
        self._reads = reads
        self._stored: Iterator[GroupTopic | None] | None = stored()
        """The rest of the pairs that were stored at the start and are not looked at yet."""
        self.is_whole = False
        """True if the last sweep counted all groups and topics; otherwise there were too many."""
        self._has_dropped = False
        self._counts: dict[Subscription, RunningCount] = {}
        self._in_memory: dict[GroupTopic, Subscription] = {}
        self._seen: dict[GroupTopic, int] = {}
        """The number of queues of each pair when it was last looked at; pairs that left memory first come first."""
        self._stored_ms: dict[PhysicalOffset, int] = {}
        self._times: dict[PhysicalOffset, int] = {}
        self.pairs: Sequence[PairLag] = ()
        """The result of the last sweep: the pairs with the most lag, and the sum of all others."""
        self.found: Mapping[GroupTopic, PairLag] = {}
        """The result of the last sweep: each pair that could be read, its retry topics included."""
        self.totals: LagTotals | None = None
        """The totals of the last sweep; None before the first one, and if a group could not be read."""

    def steps(self) -> Iterator[None]:
        """Make one sweep, a step at a time. A change during the sweep is seen if its queue is read later.

        A group that cannot be read is left out, rather than reported with old values (dashboard#4516), and the error
        that kept it from being read is raised at the end: OSError, kv.KvError, BrokerError.
        """
        yield from self._take_stored()
        subscriptions = [each for each in self._subscriptions() if not is_light_queue(each.topic)]
        self._counts = {each: self._counts[each] for each in subscriptions if each in self._counts}
        self._in_memory = {GroupTopic(each.group, each.topic): each for each in subscriptions}
        self._keep([GroupTopic(each.group, each.topic) for each in subscriptions if not each.is_retry])
        self._times = {}
        found: list[PairLag] = []
        failures: list[Exception] = []
        for key in self._seen:
            self._seen[key] = 0
            try:
                pairs = yield from self._pairs_of(key)
            except (OSError, KvError, BrokerError) as error:
                failures = [error]
            else:
                found += pairs
        self._stored_ms, self._in_memory = self._times, {}
        self.pairs = _bounded(found, self._pairs_max, is_whole=not failures)
        self.found = _with_retries(found)
        self.totals = _totals(found) if not failures else None
        self.is_whole = not failures and not self._has_dropped
        if failures:
            raise failures.pop()

    def measure(self, key: GroupTopic) -> Generator[None, None, PairLag | None]:
        """Measure one group in one topic now, its retry topics included, whether or not it is in memory.

        Returns None if the group does not read the topic. Raises OSError, kv.KvError, BrokerError.
        """
        pairs = yield from self._pairs_of(key)
        return _with_retries(pairs).get(key)

    def stop(self) -> None:
        """Release everything that refers to the store, which is about to close."""
        self._counts.clear()
        self._in_memory.clear()

    def _pairs_of(self, key: GroupTopic) -> Generator[None, None, list[PairLag]]:
        """Measure a group in a topic, and in its retry topics of that topic if it has any.

        Returns nothing if the topic, or the group's offset in it, is gone.
        """
        if self._queue_count(key.topic) is None or not self._reads(*key):
            return []
        own = yield from self._measure(key, [key.topic], is_retry=False)
        beside = [each.name for each in retry_topics(*key) if self._source.iterate_queues(each.name)]
        if not beside:
            return [own]
        retry = yield from self._measure(key, beside, is_retry=True)
        return [own, retry]

    def _take_stored(self) -> Iterator[None]:
        """Add the pairs that were stored before the start, up to the limits. Only the first sweep does this."""
        stored, self._stored = self._stored, None
        groups = queues = 0
        for key in stored or ():
            yield
            count = None if key is None else self._queue_count(key.topic)
            groups += key is None
            if groups > START_GROUPS_MAX or len(self._seen) >= LEFT_PAIRS_MAX or queues > LEFT_QUEUES_MAX:
                self._has_dropped = True
                return
            if key is not None and count is not None and not self._is_beside(key):
                queues += count
                self._seen[key] = count

    def _is_beside(self, key: GroupTopic) -> bool:
        """Return whether the topic is a retry topic of the group, whose messages count in the topic that it retries."""
        topic = topic_beside(*key)
        return topic is not None and self._reads(key.group, topic)

    def _keep(self, in_memory: Sequence[GroupTopic]) -> None:
        """Drop the pairs that are deleted, and those that left memory first when there are too many."""
        here = dict.fromkeys(in_memory, 0)
        left = {
            key: queues
            for key, queues in self._seen.items()
            if key not in here and self._queue_count(key.topic) is not None and self._reads(*key)
        }
        queues = sum(left.values())
        for key in list(left):
            if len(left) <= LEFT_PAIRS_MAX and queues <= LEFT_QUEUES_MAX:
                break
            queues -= left.pop(key)
            self._has_dropped = True
        self._seen = {**left, **here}

    def _measure(self, key: GroupTopic, topics: Sequence[str], *, is_retry: bool) -> Generator[None, None, PairLag]:
        """Measure the group in these topics together: a topic alone, or its retry topics."""
        measured = Measured()
        for topic in topics:
            queues = queues_of_topic(self._source, topic, self._queue_count(topic) or 0)
            if key in self._seen:
                self._seen[key] += len(queues)
            yield from self.add_topic(measured, GroupTopic(key.group, topic), queues)
        queueing_ms = self._age_ms(measured.oldest_ready)
        lag_ms = None if measured.in_flight is None else self._age_ms(measured.oldest)
        done = None if measured.in_flight is None else measured.next_offsets - measured.in_flight
        return PairLag(*key, is_retry, measured.ready, measured.in_flight, lag_ms, queueing_ms, done)

    def _rows_in_flight(self, key: GroupTopic) -> Generator[None, None, int | None]:
        """Count the rows in flight; None if they could not be written.

        For a subscription in memory the rows are read once, and only changes are counted from then on.
        """
        subscription = self._in_memory.get(key)
        if subscription is None:
            return (yield from super()._rows_in_flight(key))
        count = self._counts.get(subscription)
        if count is None:
            rows = self._progress.rows_in_flight(*key)
            if rows is None:
                return None
            count = self._counts[subscription] = RunningCount(rows, subscription.in_flight_changes)
        while not count.step(ROWS_PER_STEP):
            yield
        return count.value(subscription.in_flight_changes)

    def _age_ms(self, entry: ConsumeQueueEntry | None) -> int | None:
        if entry is None:
            return 0
        at = entry.physical_offset
        stored_ms = self._stored_ms.get(at)
        if stored_ms is None:
            stored_ms = self._time_of(entry)
        if stored_ms is None:
            return None
        self._times[at] = stored_ms
        return max(0, self._clock.wall_ms() - stored_ms)


def _bounded(found: Sequence[PairLag], pairs_max: int, *, is_whole: bool) -> list[PairLag]:
    """Return the pairs with the most lag, and one sum of all others.

    A value of the sum is None if one of its parts is unknown. Without `is_whole` there is no sum.
    """
    named = [each for each in found if OTHER not in (each.topic, each.group)]
    kept = nlargest(pairs_max, named, key=lambda each: each.lag)
    known = set(kept)
    rest = [each for each in found if each not in known]
    if not rest or not is_whole:
        return kept
    return [*kept, _together(GroupTopic(OTHER, OTHER), rest)]


def _with_retries(pairs: Sequence[PairLag]) -> dict[GroupTopic, PairLag]:
    """Add up the pairs of the same group and topic, so that one is left for each."""
    together: dict[GroupTopic, PairLag] = {}
    for each in pairs:
        key = GroupTopic(each.group, each.topic)
        own = together.get(key)
        if own is None:
            together[key] = each
        else:
            together[key] = _together(key, [own, each])
    return together


def _together(key: GroupTopic, pairs: Sequence[PairLag]) -> PairLag:
    """Add up some pairs. A value is None if one of its parts is unknown."""
    ready, in_flight, lag_ms = _totals(pairs)
    queueing_ms = _all_known(_longest, [each.queueing_ms for each in pairs])
    done = _all_known(sum, [each.done for each in pairs])
    return PairLag(
        *key, is_retry=False, ready=ready, in_flight=in_flight, lag_ms=lag_ms, queueing_ms=queueing_ms, done=done
    )


def _totals(pairs: Sequence[PairLag]) -> LagTotals:
    return LagTotals(
        sum(each.ready for each in pairs),
        _all_known(sum, [each.in_flight for each in pairs]),
        _all_known(_longest, [each.lag_ms for each in pairs]),
    )


def _longest(ages_ms: Sequence[int]) -> int:
    return max(ages_ms, default=0)


def _all_known(of: Callable[[Sequence[int]], int], numbers: Sequence[int | None]) -> int | None:
    known = [each for each in numbers if each is not None]
    return of(known) if len(known) == len(numbers) else None


LOOKED_AT_MAX: Final = 10_000
"""Lite topics that one call looks at, some 50 µs each."""


class QueuePositions(Protocol):
    def position(self, group: str, queue: QueueId) -> QueuePosition: ...

    def stored_ms(self, queue: QueueId, offset: int) -> int | None: ...


class ReadTopics(Protocol):
    def topics_of(self, group: str, *, light_queues: bool = ...) -> Iterator[str]: ...


class LiteTopicBacklog(NamedTuple):
    """A lite topic with lag. `oldest_ms` is when its first ready message was stored; None if that cannot be read."""

    lite_topic: str
    ready: int
    oldest_ms: int | None


class LiteClientDepth(NamedTuple):
    """A client of the group. `ready`: lite topics that may have messages for it. `subscriptions`: those by name."""

    client_id: str
    ready: int
    subscriptions: int
    wants_all: bool


class LiteBacklogView(NamedTuple):
    """The lag of a group in lite topics. Unless `is_complete`, only `looked_at` lite topics were looked at."""

    lite_topics: list[LiteTopicBacklog]
    clients: list[LiteClientDepth]
    looked_at: int
    is_complete: bool


class LiteBacklog:
    """Finds the lite topics with the most lag. Lives on the event loop's thread."""

    def __init__(
        self,
        progress: QueuePositions,
        delivery: LiteDelivery,
        *,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ReadTopics,
        table: LiteSubscriptionTable,
        wanted: WantedLiteTopics,
    ) -> None:
        self._progress = progress
        self._delivery = delivery
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._table = table
        self._wanted = wanted

    async def of(self, parent: str, group: str, limit: int, time_slice: TimeSlice) -> LiteBacklogView:
        """Return at most `limit` lite topics and clients, those with most first.

        Raises TopicNotFound, GroupNotFound, Invalid, kv.KvError.
        """
        self._check(parent, group)
        seen: set[str] = set()
        ready: list[tuple[int, str, QueuePosition]] = []
        is_complete = True
        for lite_topic, name in self._lite_topics(parent, group):
            await time_slice.pause()
            if lite_topic in seen:
                continue
            if len(seen) == LOOKED_AT_MAX:
                is_complete = False
                break
            seen.add(lite_topic)
            position = self._progress.position(group, QueueId(name, 0))
            if position.ready:
                ready.append((position.ready, lite_topic, position))
        most = nlargest(limit, ready, key=lambda each: each[:2])
        backlog = []
        for count, lite_topic, position in most:
            await time_slice.pause()
            oldest_ms = self._progress.stored_ms(position.queue, position.next_offset)
            backlog.append(LiteTopicBacklog(lite_topic, count, oldest_ms))
        return LiteBacklogView(backlog, await self._clients(group, limit, time_slice), len(seen), is_complete)

    def _check(self, parent: str, group: str) -> None:
        topic = self._topics.get(parent)
        if topic is None:
            raise TopicNotFound(f"topic: no topic {parent}")
        if topic.type is not TopicType.LITE:
            raise Invalid(f"topic: topic {parent} is of type {topic.type.value}, which has no lite topics")
        found = self._groups.get(group)
        if found is None:
            raise GroupNotFound(f"group: no group {group}")
        terms = LiteGroup.of(found)
        if terms is None or terms.bind_topic != parent:
            raise Invalid(f"group: group {group} reads no lite topics of topic {parent}")

    def _lite_topics(self, parent: str, group: str) -> Iterator[tuple[str, str]]:
        """Yield the lite topics that the group has read or subscribed to, with their light queues; some come twice."""
        for names in (self._offsets.topics_of(group), self._wanted.of(group)):
            for name in names:
                found = parse_light_queue_name(name) if is_light_queue(name) else None
                if found is not None and found[0] == parent:
                    yield found[1], name

    async def _clients(self, group: str, limit: int, time_slice: TimeSlice) -> list[LiteClientDepth]:
        depths = []
        for client in nlargest(limit, self._delivery.depths(group)):
            await time_slice.pause()
            names = self._table.of_client(group, client.client_id)
            wants_all = ALL_OF_THEM in names
            depths.append(LiteClientDepth(client.client_id, client.ready, len(names) - wants_all, wants_all))
        return depths
