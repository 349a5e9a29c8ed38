"""Where one consumer group stands on one topic."""

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
    """One queue, as the group has got through it.

    `next_offset` is the first message never handed out. `unwritten` are the rows that this pass of the loop has changed
    (None: deleted); all others are in the table. `recent` are some of those, and of `unwritten`, as `RecentRows` keeps
    them.
    """

    __slots__ = ("next_offset", "queue", "recent", "unwritten")

    def __init__(self, queue: QueueId, next_offset: QueueOffset) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.unwritten: dict[QueueOffset, InFlight | None] = {}
        self.recent: dict[QueueOffset, InFlight] = {}


class Subscription:
    """A group's progress in all queues of a topic, and its receives that wait for messages.

    Made when the group first asks, dropped when nothing waits and nobody has used it lately: what an idle group keeps
    is rows in RocksDB, no object.
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
        """None for itself: lite topics have one for each message, which should go without a search for garbage."""
        self.companions: list[Subscription] = []
        """Those of the group's retry topics beside the topic."""
        self.first_number = 0
        """What is added to queue numbers in receipt handles."""
        self.turn = 0
        self.queues: dict[int, QueueProgress] = {}
        self.has_stored_queues = False
        """Whether all queues of the topic that hold messages have been opened; those to come are opened as they do."""
        self.candidates: dict[int, None] = {}
        """Queues that may have something to hand out, least recently served first."""
        self.blocked: dict[int, str] = {}
        """Queues of an ordered group that are blocked, as far as anybody has looked: by which attempt of a receive."""
        self.due_from = EARLIEST
        """Where in the index of times to look for rows that have become visible: none is before."""
        self.unwritten_due_ms = NEVER_MS
        """The earliest time of rows that are not in the index yet, since this pass has not been written."""
        self.times_unknown_from_ms = NEVER_MS
        """From when on rows may become visible of which no wake-up knows: a group may have very many such times."""
        self.is_due = True
        """Whether rows may have become visible that nobody has taken."""
        self.waiting: OrderedDict[WaitingPoll, None] = OrderedDict()
        """Receives that found nothing, oldest first."""
        self.on_ready: Callable[[Subscription], None] | None = None
        """Of a lite topic: hears that there may be messages, since receives wait for many lite topics at once."""
        self.wake_times: set[int] | None = None
        """Of a lite topic: when it will be looked at again. There are too many to wait for times that mean nothing."""
        self.forwarding = 0
        """Messages on their way to the dead letters. Who waits for those behind them waits here."""
        self.is_ordered = False
        """Whether its group consumes in order, as its last receive said."""
        self.last_used_s = 0.0
        self.in_flight_changes = 0
        """How many more rows there are than when the subscription was made."""

    def mark(self, number: int) -> None:
        """The queue may have something to hand out."""
        self.candidates.setdefault(number)
        self.blocked.pop(number, None)

    def served(self, number: int, *, drained: bool) -> None:
        """Put the queue behind the others, or take it off the list when it has nothing left."""
        self.candidates.pop(number, None)
        if not drained:
            self.candidates[number] = None

    def candidate_numbers(self) -> Iterator[int]:
        return iter(tuple(self.candidates))

    @property
    def owner(self) -> Subscription:
        """The subscription whose receives get the messages: that of the topic, if this one is of a retry topic."""
        return self._owner or self

    def attach(self, companion: Subscription) -> None:
        """Get the messages of a retry topic, too."""
        companion._owner = self
        self.companions.append(companion)

    @property
    def parts(self) -> tuple[Subscription, ...]:
        """The subscription itself, and those of its retry topics."""
        return (self, *self.companions) if self.companions else (self,)

    def parts_in_turn(self) -> tuple[Subscription, ...]:
        """Each time another one comes first: none keeps the others waiting."""
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
        """Whether this attempt of a receive holds messages of a queue, which it gets again if it is repeated."""
        return bool(attempt_id) and any(attempt_id in part.blocked.values() for part in self.parts)

    # -- rows

    def row(self, table: InFlightTable, progress: QueueProgress, offset: QueueOffset) -> InFlight | None:
        """The delivery of a message, if it is in flight."""
        if offset in progress.unwritten:
            return progress.unwritten[offset]
        recent = progress.recent.get(offset)
        return table.get(self.prefix, progress.queue.number, offset) if recent is None else recent

    def written_rows(
        self, table: InFlightTable, places: Sequence[tuple[QueueProgress, QueueOffset]]
    ) -> list[InFlight | None]:
        """The deliveries of messages that this pass has not changed."""
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
        """All deliveries of a queue that are in flight, by offset. For queues that have few at a time."""
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
    """One message of a queue, as a group sees it."""

    subscription: Subscription
    progress: QueueProgress
    offset: QueueOffset

    @property
    def is_handed_out(self) -> bool:
        """Whether the group has got there; without a row it is done then."""
        return self.offset < self.progress.next_offset


class Source(Protocol):
    """Of what receives wait for: the messages of a subscription, or those of all lite topics that a client wants."""

    @property
    def waiting(self) -> OrderedDict[WaitingPoll, None]:
        """Receives that found nothing, oldest first."""

    @property
    def may_have_messages(self) -> bool: ...

    @property
    def last_used_s(self) -> float: ...

    def has_given(self, attempt_id: str) -> bool:
        """Whether an attempt of a receive holds messages, which it gets again if it is repeated."""


SourceT = TypeVar("SourceT", bound=Source)


class WaitingPoll:
    """A receive that found nothing and waits."""

    __slots__ = ("again", "done", "received", "request", "since_s", "source", "timer")

    def __init__(
        self, source: Source, request: ReceiveRequest, received: Received, again: Again | None, since_s: float
    ) -> None:
        """It waits since `since_s` on the monotonic clock."""
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
