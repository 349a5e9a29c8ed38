"""The progress of one consumer group on one topic."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from quarry_mq.server.delivery.model import Again, Received, ReceiveRequest, Timer
from quarry_mq.server.delivery.state.inflight import DueEntry, InFlight, InFlightTable
from quarry_mq.store.offsets import QueueId, QueueOffset
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
