"""The values that delivery takes and returns, and the interfaces that it needs from the rest of the broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from quarry_mq.server.filters import MessageFilter
from quarry_mq.server.settings.sections import NewGroupStart
from quarry_mq.store.consumequeue import LightQueueStep
from quarry_mq.store.errors import Forbidden
from quarry_mq.store.message import ConsumeQueueEntry, PhysicalOffset, QueueBounds, QueueExtent, QueueId, QueueOffset
from quarry_mq.store.metadata import Group, Topic, TopicType
from quarry_mq.store.record import StoredMessage


class ReceiveRequest(NamedTuple):
    """The terms of one receive. If `invisible_ms` is None, the server leases the messages to the client and renews the
    lease.
    """

    group: str
    topic: str
    queue_numbers: range
    filter: MessageFilter
    batch_size: int
    invisible_ms: int | None
    client_id: str
    is_ordered: bool = False
    """True if the group consumes each queue in order: a queue waits while one of its messages is hidden."""
    attempt_id: str = ""
    """Id of a receive of an ordered group: repeating the receive under the same id gets the same messages."""
    attempts_max: int | None = None
    """Deliveries of one message before it goes to the dead letters; None: no limit."""
    highest_queue_first: bool = False
    """True if queues of higher numbers are served first; they hold messages of higher priority."""
    handed_out_at_ms: int | None = None
    """Time on the clock of delivery at which all messages of the receive begin to be hidden, also those that are
    repeated; None: each begins when it is taken. Clients that know a delivery by its time need one time.
    """
    new_group_start: NewGroupStart | None = None
    """Start of a group that is new on the topic; None: where the settings say."""

    @classmethod
    def of(
        cls,
        topic: Topic,
        group: Group,
        *,
        wanted: MessageFilter,
        batch_size: int,
        invisible_ms: int | None,
        client_id: str,
        attempt_id: str = "",
        is_ordered: bool = False,
    ) -> ReceiveRequest:
        """Return a group's receive from a topic by what both say now. Raises Forbidden for a disabled group.

        `is_ordered` asks for order for a group that is not ordered by its settings.
        """
        if not group.enabled:
            raise Forbidden(f"subscription group no permission, {group.name}: consumer group {group.name} is disabled")
        is_ordered = is_ordered or group.fifo
        return cls(
            group=group.name,
            topic=topic.name,
            queue_numbers=range(topic.queue_count),
            filter=wanted,
            batch_size=batch_size,
            invisible_ms=invisible_ms,
            client_id=client_id,
            is_ordered=is_ordered,
            attempt_id=attempt_id,
            attempts_max=group.max_attempts,
            highest_queue_first=topic.type is TopicType.PRIORITY and not is_ordered,
        )


class Delivered(NamedTuple):
    """Hold one message as it is handed out, hidden for `invisible_ms` from now."""

    record: StoredMessage
    receipt_handle: str
    attempt: int
    invisible_ms: int


Again = Callable[[], ReceiveRequest]
"""Returns the terms of a waiting receive as they are when it is woken. Raises if it is not allowed any more."""

Received = Callable[[Sequence[Delivered], Exception | None], None]
"""Callback with the result of a receive: messages (none when its time is up), or an error."""


class MessageSource(Protocol):
    """The part of the store that delivery reads."""

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def extents_of_all(self, queues: Sequence[QueueId]) -> list[QueueExtent]:
        """Return the extents of several distinct queues, at less cost than one by one."""

    def maximum(self, queue: QueueId) -> QueueOffset:
        """Return the maximum offset alone, which costs less than the bounds."""

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]: ...

    def read(self, entry: ConsumeQueueEntry) -> StoredMessage: ...

    def read_all(self, entries: list[ConsumeQueueEntry]) -> list[StoredMessage] | None:
        """Return the records of these entries as `read` does; None if it would raise for one of them."""

    def queues_of(self, topic: str) -> list[QueueId]:
        """Return the queues that ever got a message; for callers that go on to ask for their bounds."""

    def iterate_queues(self, topic: str) -> list[QueueId]: ...

    def light_queues_ended(self, below: PhysicalOffset, key: bytes, prefix: str = ...) -> LightQueueStep:
        """Return some light queues whose last entry lies below a position, from a key on."""

    @property
    def appended_up_to(self) -> PhysicalOffset: ...


class ErrorSink(Protocol):
    """Reports errors with which no receive ends."""

    def report(self, error: Exception, **where: object) -> None: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """The part of an event loop that delivery needs."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer: ...


class Place(Enum):
    """The ends of a queue that a group may be moved to."""

    EARLIEST = "earliest"
    LATEST = "latest"


class StoredSince(NamedTuple):
    """Position of the first message that was stored at this time or later; after the last message if there is none."""

    time_ms: int


ResetTarget = Place | StoredSince | QueueOffset
