"""How far groups are behind: of all subscriptions in memory, and of those that have left it not long ago.

Nothing walks over all queues. The queues of subscriptions in memory are bounded, and a round over them is made in the
background (`server.sampling`). Where a group stands that left memory cannot have changed: whatever changes it brings
the subscription back. So only the end of its queues is looked up again, and a group whose consumers are all gone is
still seen to fall behind.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final, NamedTuple, Protocol

from kv import KvError
from server.delivery import MessageSource, Subscription
from server.running_count import RunningCount
from server.top_counts import OTHER
from server.traffic import PairKey
from store.clock import Clock
from store.consumequeue import ConsumeQueueEntry
from store.errors import BrokerError
from store.metadata.names import is_light_queue
from store.offsets import PhysicalOffset, QueueId, QueueOffset

ROWS_PER_STEP: Final = 500
LEFT_QUEUES_MAX: Final = 65_536
"""Queues of subscriptions that left memory, of all together. Those that left first are forgotten first."""


class PairLag(NamedTuple):
    """A group and a topic. `ready` messages were never handed out, `in_flight` is None until they are counted."""

    group: str
    topic: str
    is_retry: bool
    ready: int
    in_flight: int | None
    lag_ms: int
    queueing_ms: int

    @property
    def behind(self) -> int:
        return self.ready + (self.in_flight or 0)


class Progress(Protocol):
    """What is asked of delivery."""

    def subscriptions(self) -> Sequence[Subscription]: ...

    def rows_in_flight(self, subscription: Subscription) -> Iterator[object] | None: ...

    def first_in_flight(self, subscription: Subscription, number: int) -> QueueOffset | None: ...


class Position(NamedTuple):
    queue: QueueId
    next_offset: QueueOffset
    first_in_flight: QueueOffset | None


@dataclass(slots=True)
class _Pair:
    """Where a group stood when its subscription was last seen in memory."""

    positions: list[Position] = field(default_factory=list)
    in_flight: int | None = 0


class ConsumerLag:
    """Lives on the event loop's thread; `pairs` may be read on any."""

    def __init__(
        self,
        progress: Progress,
        source: MessageSource,
        *,
        pairs_max: int,
        clock: Clock,
        topic_exists: Callable[[str], bool],
        group_exists: Callable[[str], bool],
    ) -> None:
        self._progress = progress
        self._source = source
        self._pairs_max = pairs_max
        self._clock = clock
        self._topic_exists = topic_exists
        self._group_exists = group_exists
        self._counts: dict[Subscription, RunningCount] = {}
        self._seen: dict[PairKey, _Pair] = {}
        self._stored_ms: dict[PhysicalOffset, int] = {}
        self.pairs: Sequence[PairLag] = ()
        """As of the last round; those that are furthest behind, and the sum of the others."""

    def steps(self) -> Iterator[None]:
        """One round. What changes while it is under way is seen as it is then."""
        subscriptions = self._progress.subscriptions()
        self._counts = {each: self._counts[each] for each in subscriptions if each in self._counts}
        in_memory: dict[PairKey, _Pair] = {}
        for each in subscriptions:
            yield from self._look_at(each, in_memory)
        self._keep(in_memory)
        found: list[PairLag] = []
        times: dict[PhysicalOffset, int] = {}
        for key, pair in self._seen.items():
            measured = yield from self._measure(key, pair, times)
            found.append(measured)
        self._stored_ms = times
        self.pairs = _bounded(found, self._pairs_max)

    def stop(self) -> None:
        """Let go of the store: it is about to close."""
        self._counts.clear()

    def _look_at(self, subscription: Subscription, in_memory: dict[PairKey, _Pair]) -> Iterator[None]:
        in_flight = yield from self._in_flight(subscription)
        key = PairKey(subscription.group, subscription.owner.topic, subscription.is_retry)
        pair = in_memory.setdefault(key, _Pair())
        pair.in_flight = None if in_flight is None or pair.in_flight is None else pair.in_flight + in_flight
        for number, queue in tuple(subscription.queues.items()):
            first = None if in_flight == 0 else self._progress.first_in_flight(subscription, number)
            pair.positions.append(Position(queue.queue, queue.next_offset, first))
            yield

    def _in_flight(self, subscription: Subscription) -> Generator[None, None, int | None]:
        """Reads the rows once, and counts the changes from then on; None where they could not be written."""
        count = self._counts.get(subscription)
        if count is None:
            rows = self._progress.rows_in_flight(subscription)
            if rows is None:
                return None
            count = self._counts[subscription] = RunningCount(rows, subscription.in_flight_changes)
        while not count.step(ROWS_PER_STEP):
            yield
        return count.value(subscription.in_flight_changes)

    def _keep(self, in_memory: dict[PairKey, _Pair]) -> None:
        """Forget what is deleted, and what left memory first when there is too much of it."""
        left = {
            key: pair
            for key, pair in self._seen.items()
            if key not in in_memory and self._topic_exists(key.topic) and self._group_exists(key.group)
        }
        queues = sum(len(pair.positions) for pair in left.values())
        for key in list(left):
            if len(left) <= self._pairs_max and queues <= LEFT_QUEUES_MAX:
                break
            queues -= len(left.pop(key).positions)
        self._seen = {**left, **in_memory}

    def _measure(self, key: PairKey, pair: _Pair, times: dict[PhysicalOffset, int]) -> Generator[None, None, PairLag]:
        ready = 0
        oldest_ready: ConsumeQueueEntry | None = None
        oldest: ConsumeQueueEntry | None = None
        for position in pair.positions:
            yield
            entry, count = self._ready(position)
            ready += count
            oldest_ready = _older(oldest_ready, entry)
            oldest = _older(oldest, self._entry(position.queue, position.first_in_flight) or entry)
        queueing_ms = self._age_ms(oldest_ready, times)
        lag_ms = max(queueing_ms, self._age_ms(oldest, times))
        return PairLag(key.group, key.topic, key.is_retry, ready, pair.in_flight, lag_ms, queueing_ms)

    def _ready(self, position: Position) -> tuple[ConsumeQueueEntry | None, int]:
        """The first message of the queue that the group was never given, and how many there are."""
        queue, start, _ = position
        if self._source.maximum(queue) <= start:
            return None, 0
        bounds = self._source.bounds(queue)
        start = max(start, bounds.minimum)
        return self._entry(queue, start), max(0, bounds.maximum - start)

    def _entry(self, queue: QueueId, offset: QueueOffset | None) -> ConsumeQueueEntry | None:
        found = [] if offset is None else self._source.entries(queue, offset, 1)
        return found[0] if found else None

    def _age_ms(self, entry: ConsumeQueueEntry | None, times: dict[PhysicalOffset, int]) -> int:
        if entry is None:
            return 0
        at = entry.physical_offset
        stored_ms = self._stored_ms.get(at)
        if stored_ms is None:
            with suppress(OSError, KvError, BrokerError):  # who receives it hears what is wrong with it
                stored_ms = self._source.read(entry).store_timestamp_ms
        if stored_ms is None:
            return 0
        times[at] = stored_ms
        return max(0, self._clock.wall_ms() - stored_ms)


def _older(one: ConsumeQueueEntry | None, other: ConsumeQueueEntry | None) -> ConsumeQueueEntry | None:
    """What lies further back in the log is older: store times never go back."""
    if one is None or other is None:
        return one or other
    return one if one.physical_offset <= other.physical_offset else other


def _bounded(found: Sequence[PairLag], pairs_max: int) -> list[PairLag]:
    """Those that are furthest behind, and all others as one."""
    named = [each for each in found if OTHER not in (each.topic, each.group) and not is_light_queue(each.topic)]
    kept = nlargest(pairs_max, named, key=lambda each: each.behind)
    known = set(kept)
    rest = [each for each in found if each not in known]
    if not rest:
        return kept
    in_flight = [each.in_flight for each in rest if each.in_flight is not None]
    return [
        *kept,
        PairLag(
            OTHER,
            OTHER,
            is_retry=False,
            ready=sum(each.ready for each in rest),
            in_flight=sum(in_flight) if len(in_flight) == len(rest) else None,
            lag_ms=max(each.lag_ms for each in rest),
            queueing_ms=max(each.queueing_ms for each in rest),
        ),
    ]
