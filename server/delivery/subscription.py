"""Where one consumer group stands on one topic."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush

from server.delivery.inflight import InFlight
from server.delivery.model import Received, ReceiveRequest, Timer
from store.in_flight_key import subscription_prefix
from store.offsets import QueueId, QueueOffset


class QueueProgress:
    """One queue, as the group has got through it.

    `next_offset` is the first message never handed out. `inflight` holds what was handed out and not
    acknowledged; the offsets of those whose time is up are also in `ready`, oldest first.
    """

    __slots__ = ("_ready", "_ready_set", "inflight", "next_offset", "queue")

    def __init__(self, queue: QueueId, next_offset: QueueOffset) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.inflight: dict[QueueOffset, InFlight] = {}
        self._ready: list[QueueOffset] = []
        self._ready_set: set[QueueOffset] = set()

    @property
    def has_ready(self) -> bool:
        return bool(self._ready_set)

    def make_ready(self, offset: QueueOffset) -> None:
        if offset not in self._ready_set:
            self._ready_set.add(offset)
            heappush(self._ready, offset)

    def is_ready(self, offset: QueueOffset) -> bool:
        return offset in self._ready_set

    def take_ready(self) -> QueueOffset:
        """The oldest offset that waits for redelivery. Raises IndexError when there is none."""
        while True:
            offset = heappop(self._ready)
            if offset in self._ready_set:
                self._ready_set.discard(offset)
                return offset

    def forget(self, offset: QueueOffset) -> None:
        """The message is done: acknowledged, or gone from the store."""
        self.inflight.pop(offset, None)
        self._ready_set.discard(offset)


class Subscription:
    """A group's progress in all queues of a topic, and its receives that wait for messages.

    Made when the group first asks, dropped when nothing is waiting, in flight or recently used: what an idle
    group keeps is rows in RocksDB, no object.
    """

    __slots__ = ("candidates", "group", "has_stored_queues", "last_used_s", "prefix", "queues", "topic", "waiting")

    def __init__(self, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.prefix = subscription_prefix(group, topic)
        self.queues: dict[int, QueueProgress] = {}
        self.has_stored_queues = False
        """Whether all queues of the topic that hold messages have been opened; those to come are opened as they do."""
        self.candidates: dict[int, None] = {}
        """Queues that may have something to hand out, least recently served first."""
        self.waiting: OrderedDict[WaitingPoll, None] = OrderedDict()
        """Receives that found nothing, oldest first."""
        self.last_used_s = 0.0

    def mark(self, number: int) -> None:
        """The queue may have something to hand out."""
        self.candidates.setdefault(number)

    def served(self, number: int, *, drained: bool) -> None:
        """Put the queue behind the others, or take it off the list when it has nothing left."""
        del self.candidates[number]
        if not drained:
            self.candidates[number] = None

    def candidate_numbers(self) -> Iterator[int]:
        return iter(tuple(self.candidates))

    @property
    def is_idle(self) -> bool:
        return not self.waiting and all(not progress.inflight for progress in self.queues.values())


class WaitingPoll:
    """A receive that found nothing and waits."""

    __slots__ = ("done", "received", "request", "subscription", "timer")

    def __init__(self, subscription: Subscription, request: ReceiveRequest, received: Received) -> None:
        self.subscription = subscription
        self.request = request
        self.received = received
        self.done = False
        self.timer: Timer | None = None

    def finish(self) -> None:
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
