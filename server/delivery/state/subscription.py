"""The progress of one consumer group on one topic, and indexes of these: by name, by waiting client, by lease."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from quarry_mq.server.delivery.model import Again, Received, ReceiveRequest, Timer
from quarry_mq.server.delivery.retry_topics import RetryTopic
from quarry_mq.server.delivery.state.inflight import DueEntry, InFlight, InFlightTable
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.filters import MessageFilter
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.state.in_flight_key import subscription_prefix

NEVER_MS: Final = 2**62
EARLIEST: Final = DueEntry(0, 0, QueueOffset(0))
LATEST: Final = DueEntry(NEVER_MS, 0, QueueOffset(0))


class QueueProgress:
    """The progress of a group in one queue.

    `next_offset` is the first message never handed out. `unwritten` are the rows that were changed and are not written
    yet (None: deleted); all others are in the table. `recent` are some of those, and of `unwritten`, as `RecentRows`
    keeps them.
    """

    __slots__ = ("next_offset", "queue", "recent", "unwritten")

    def __init__(self, queue: QueueId, next_offset: QueueOffset) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.unwritten: dict[QueueOffset, InFlight | None] = {}
        self.recent: dict[QueueOffset, InFlight] = {}


class Subscription:
    """A group's progress in all queues of a topic, and its receives that wait for messages.

    It is created when the group first asks, and dropped when nothing waits and it was not used recently: what an idle
    group keeps is rows in RocksDB, no object.
    """

    __slots__ = (
        "_owner",
        "blocked",
        "candidates",
        "companions",
        "due_from",
        "first_number",
        "forwarding",
        "group",
        "has_stored_queues",
        "in_flight_changes",
        "is_due",
        "is_ordered",
        "last_used_s",
        "on_ready",
        "prefix",
        "queues",
        "times_unknown_from_ms",
        "topic",
        "turn",
        "unwritten_due_ms",
        "waiting",
        "wake_times",
    )

    def __init__(self, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.prefix = subscription_prefix(group, topic)
        self._owner: Subscription | None = None
        """The subscription itself is stored as None: a self-reference would leave a cycle for the garbage collector.
        Lite topics have one subscription for each message.
        """
        self.companions: list[Subscription] = []
        """The subscriptions of the group's retry topics for this topic."""
        self.first_number = 0
        """Number that is added to queue numbers in receipt handles."""
        self.turn = 0
        self.queues: dict[int, QueueProgress] = {}
        self.has_stored_queues = False
        """True if all queues with messages were opened once. Queues that are first written to later are opened then."""
        self.candidates: dict[int, None] = {}
        """Queues that may have something to hand out, least recently served first."""
        self.blocked: dict[int, str] = {}
        """Queues of an ordered group that were found blocked, with the attempt id of the receive that blocks them."""
        self.due_from = EARLIEST
        """Position in the due index at which to look for rows that have become visible; there are none before it."""
        self.unwritten_due_ms = NEVER_MS
        """The earliest time of rows that are not in the index yet, since they are not written."""
        self.times_unknown_from_ms = NEVER_MS
        """The time from which on rows may become visible without a timer: a group may have very many such times."""
        self.is_due = True
        """True if rows may have become visible that were not handed out yet."""
        self.waiting: OrderedDict[WaitingPoll, None] = OrderedDict()
        """Receives that found nothing, oldest first."""
        self.on_ready: Callable[[Subscription], None] | None = None
        """Called, for a lite topic, when it may have messages: its receives wait for many lite topics at once."""
        self.wake_times: set[int] | None = None
        """Times of a lite topic's wake-ups, kept so that useless ones can be cancelled: there are very many lite
        topics.
        """
        self.forwarding = 0
        """Messages on their way to the dead letters. As long as there are some, the subscription is not idle."""
        self.is_ordered = False
        """True if the group consumes in order, according to its last receive."""
        self.last_used_s = 0.0
        self.in_flight_changes = 0
        """Number of rows added, minus those deleted, since the subscription was created."""

    def mark(self, number: int) -> None:
        """Note that the queue may have something to hand out."""
        self.candidates.setdefault(number)
        self.blocked.pop(number, None)

    def served(self, number: int, *, drained: bool) -> None:
        """Put the queue last among the candidates, or remove it if it has nothing left."""
        self.candidates.pop(number, None)
        if not drained:
            self.candidates[number] = None

    def candidate_numbers(self) -> Iterator[int]:
        return iter(tuple(self.candidates))

    @property
    def owner(self) -> Subscription:
        """Return the subscription whose receives get the messages: this one, or for a retry topic the topic's own."""
        return self._owner or self

    def attach(self, companion: Subscription) -> None:
        """Let this subscription's receives get the messages of a retry topic as well."""
        companion._owner = self
        self.companions.append(companion)

    @property
    def parts(self) -> tuple[Subscription, ...]:
        """Return the subscription itself and those of its retry topics."""
        return (self, *self.companions) if self.companions else (self,)

    def parts_in_turn(self) -> tuple[Subscription, ...]:
        """Return the parts rotated, so that each time another one comes first and none keeps the others waiting."""
        if not self.companions:
            return (self,)
        self.turn = (self.turn + 1) % (len(self.companions) + 1)
        parts = self.parts
        return parts[self.turn :] + parts[: self.turn]

    @property
    def is_retry(self) -> bool:
        return self._owner is not None

    @property
    def may_have_messages(self) -> bool:
        return any(part.candidates or part.is_due for part in self.parts)

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not any(
            part.forwarding or any(progress.unwritten for progress in part.queues.values()) for part in self.parts
        )

    def has_given(self, attempt_id: str) -> bool:
        """Return whether a receive with this attempt id holds messages of a queue, which a repetition gets again."""
        return bool(attempt_id) and any(attempt_id in part.blocked.values() for part in self.parts)

    # -- rows

    def row(self, table: InFlightTable, progress: QueueProgress, offset: QueueOffset) -> InFlight | None:
        """Return the delivery of a message, if it is in flight."""
        if offset in progress.unwritten:
            return progress.unwritten[offset]
        recent = progress.recent.get(offset)
        return table.get(self.prefix, progress.queue.number, offset) if recent is None else recent

    def written_rows(
        self, table: InFlightTable, places: Sequence[tuple[QueueProgress, QueueOffset]]
    ) -> list[InFlight | None]:
        """Return the deliveries of messages whose rows are written."""
        rows = [progress.recent.get(offset) for progress, offset in places]
        if None in rows:
            missing = [index for index, row in enumerate(rows) if row is None]
            stored = table.get_many(
                self.prefix, [(places[index][0].queue.number, places[index][1]) for index in missing]
            )
            for index, row in zip(missing, stored, strict=True):
                rows[index] = row
        return rows

    def rows_of(self, table: InFlightTable, progress: QueueProgress) -> dict[QueueOffset, InFlight]:
        """Return all rows in flight of a queue, by offset. For queues that have few at a time."""
        rows = dict(table.of_queue(self.prefix, progress.queue.number))
        if not progress.unwritten:
            return rows
        for offset, row in progress.unwritten.items():
            if row is None:
                rows.pop(offset, None)
            else:
                rows[offset] = row
        return dict(sorted(rows.items()))


class GroupMessage(NamedTuple):
    """Identify one message of a queue, for one group."""

    subscription: Subscription
    progress: QueueProgress
    offset: QueueOffset

    @property
    def is_handed_out(self) -> bool:
        """Return whether the message was handed out or skipped; if it has no row, it is done then."""
        return self.offset < self.progress.next_offset


class Source(Protocol):
    """Something that receives wait for: the messages of a subscription, or those of a client's lite topics."""

    @property
    def waiting(self) -> OrderedDict[WaitingPoll, None]:
        """Return the receives that found nothing, oldest first."""

    @property
    def may_have_messages(self) -> bool: ...

    @property
    def last_used_s(self) -> float: ...

    def has_given(self, attempt_id: str) -> bool:
        """Return whether a receive with this attempt id holds messages, which a repetition gets again."""


SourceT = TypeVar("SourceT", bound=Source)


class WaitingPoll:
    """A receive that found nothing and waits."""

    __slots__ = ("again", "done", "received", "request", "since_s", "source", "timer")

    def __init__(
        self, source: Source, request: ReceiveRequest, received: Received, again: Again | None, since_s: float
    ) -> None:
        """`since_s` is the time on the monotonic clock since when it waits."""
        self.since_s = since_s
        self.source = source
        self.request = request
        self.again = again
        self.received = received
        self.done = False
        self.timer: Timer | None = None

    def finish(self) -> None:
        self.done = True
        if self.timer is not None:
            self.timer.cancel()


FILTERS_LENGTH_MAX: Final = 1024 * 1024
"""Characters of all distinct filters of waiting receives: 160 MB at most."""


class Subscriptions:
    """The subscriptions in memory, by group and topic and by topic."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, str], Subscription] = {}
        self._by_topic: dict[str, list[Subscription]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(tuple(self._by_name.values()))

    def find(self, group: str, topic: str) -> Subscription | None:
        return self._by_name.get((group, topic))

    def of(self, group: str, topic: str) -> Subscription:
        """Return the subscription, created if necessary."""
        subscription = self._by_name.get((group, topic))
        if subscription is None:
            subscription = self._by_name[group, topic] = Subscription(group, topic)
            self._by_topic.setdefault(topic, []).append(subscription)
        return subscription

    def attach(self, owner: Subscription, retry_topic: RetryTopic) -> Subscription:
        """Attach the subscription of a retry topic to its owner, whose receives get its messages. Return it."""
        companion = self.of(owner.group, retry_topic.name)
        companion.first_number = retry_topic.first_number
        owner.attach(companion)
        return companion

    def of_topic(self, topic: str) -> Sequence[Subscription]:
        return self._by_topic.get(topic, ())

    def remove(self, subscription: Subscription) -> None:
        """Remove the subscription together with its owner and all retry topics of the owner."""
        for part in subscription.owner.parts:
            del self._by_name[part.group, part.topic]
            of_topic = self._by_topic[part.topic]
            of_topic.remove(part)
            if not of_topic:
                del self._by_topic[part.topic]


class KeptFilters:
    """The filters of waiting receives. Most are the same object, since equal expressions usually are."""

    def __init__(self) -> None:
        self._uses: dict[int, int] = {}
        """Uses by the filter's `id`, which is unique as long as a receive holds the filter."""
        self._length = 0

    def check(self, wanted: MessageFilter) -> None:
        """Raise OverLimit if there is no space for another distinct filter."""
        if id(wanted) not in self._uses and self._length + wanted.length > FILTERS_LENGTH_MAX:
            raise OverLimit("waiting_filters", "too many different filter expressions are waiting for messages")

    def add(self, wanted: MessageFilter) -> None:
        uses = self._uses.get(id(wanted), 0)
        self._uses[id(wanted)] = uses + 1
        if not uses:
            self._length += wanted.length

    def remove(self, wanted: MessageFilter) -> None:
        uses = self._uses[id(wanted)] - 1
        if uses:
            self._uses[id(wanted)] = uses
        else:
            del self._uses[id(wanted)]
            self._length -= wanted.length


class WaitingPolls:
    """The waiting receives, by the client that made them."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._filters = KeptFilters()
        self._by_client: dict[str, dict[WaitingPoll, None]] = {}
        self._count = 0
        self.configure(settings)

    def configure(self, settings: BrokerSettings) -> None:
        self._count_max = settings.delivery.waiting_polls_max
        self._per_client_max = settings.limits.waiting_polls_per_client

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[WaitingPoll]:
        return iter([poll for polls in self._by_client.values() for poll in polls])

    def of_client(self, client_id: str) -> Sequence[WaitingPoll]:
        return tuple(self._by_client.get(client_id, ()))

    def require_room(self, request: ReceiveRequest) -> None:
        """Check that one more receive may wait. Raises OverLimit."""
        if self._count >= self._count_max:
            raise OverLimit("waiting_polls", f"polling full: {self._count} receives are already waiting")
        of_client = len(self._by_client.get(request.client_id, ()))
        if of_client >= self._per_client_max:
            raise OverLimit(
                "waiting_polls_per_client", f"polling full: {of_client} receives of this client are already waiting"
            )
        self._filters.check(request.filter)

    def add(self, poll: WaitingPoll) -> None:
        self._filters.add(poll.request.filter)
        poll.source.waiting[poll] = None
        self._by_client.setdefault(poll.request.client_id, {})[poll] = None
        self._count += 1

    def remove(self, poll: WaitingPoll) -> None:
        """Remove a poll that is over; its timer will not fire any more."""
        poll.finish()
        self._filters.remove(poll.request.filter)
        del poll.source.waiting[poll]
        of_client = self._by_client[poll.request.client_id]
        del of_client[poll]
        if not of_client:
            del self._by_client[poll.request.client_id]
        self._count -= 1


class Lessees:
    """Counts, per client, the leased messages by group and topic: those kept hidden as long as the client is alive."""

    def __init__(self) -> None:
        self._by_client: dict[str, dict[tuple[str, str], int]] = {}

    def add(self, client_id: str, group: str, topic: str, count: int = 1) -> None:
        """Add to the number of messages leased to the client."""
        of_client = self._by_client.setdefault(client_id, {})
        of_client[group, topic] = of_client.get((group, topic), 0) + count

    def remove(self, client_id: str, group: str, topic: str) -> None:
        """Remove one message. Leases from before the broker's start were never counted, and are ignored."""
        of_client = self._by_client.get(client_id, {})
        count = of_client.get((group, topic))
        if count is None:
            return
        if count > 1:
            of_client[group, topic] = count - 1
            return
        del of_client[group, topic]
        if not of_client:
            del self._by_client[client_id]

    def remove_client(self, client_id: str) -> Sequence[tuple[str, str]]:
        """Remove a client that is gone; return the groups and topics on which it held messages."""
        return tuple(self._by_client.pop(client_id, ()))
