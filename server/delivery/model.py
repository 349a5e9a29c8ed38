"""The values that go in and out of delivery, and what it needs from the rest of the broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from quarry_mq.server.filters import MessageFilter
from quarry_mq.store.message import ConsumeQueueEntry
from quarry_mq.store.offsets import PhysicalOffset, QueueBounds, QueueExtent, QueueId, QueueOffset
from quarry_mq.store.record import StoredMessage


class NewGroupStart(Enum):
    """Where a group starts in a queue it has never read."""

    AUTO = (
        "auto"  # RocketMQ's rule: a queue still whole (and not larger than memory likes) from its start, else its end
    )
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliverySettings:
    new_group_start: NewGroupStart = NewGroupStart.AUTO
    auto_start_max_bytes: int = 8 << 30
    lease_ms: int = 60_000
    lease_total_ms: int = 3 * 3_600_000
    hidden_max_ms: int = 12 * 3_600_000
    waiting_polls_max: int = 20_000
    waiting_polls_per_client_max: int = 10_000
    in_flight_per_group_max: int = 10_000_000
    subscriptions_max: int = 250_000
    entries_scanned_per_pass: int = 4_096
    answer_bytes_max: int = 8 << 20
    """Of records in one receive's answer, which lies in memory as a whole until its client has read it. Two of the
    largest messages of the default limits: below that more bytes per answer make nothing faster."""


class ReceiveRequest(NamedTuple):
    """What one receive asks for. `invisible_ms` None: the server leases the messages to the client and renews."""

    group: str
    topic: str
    queue_numbers: range
    filter: MessageFilter
    batch_size: int
    invisible_ms: int | None
    client_id: str
    is_ordered: bool = False
    """Whether the group consumes each queue in order: a queue waits while one of its messages is hidden."""
    attempt_id: str = ""
    """Of an ordered group: who repeats a receive under the same id gets the same messages."""
    attempts_max: int | None = None
    """Deliveries of one message before it goes to the dead letters; None: no limit."""
    highest_queue_first: bool = False
    """Whether queues of higher numbers are served first: those of messages with higher priority."""


class Delivered(NamedTuple):
    """One message as it is handed out, hidden for `invisible_ms` from now."""

    record: StoredMessage
    receipt_handle: str
    attempt: int
    invisible_ms: int


Again = Callable[[], ReceiveRequest]
"""What a receive asks for as things are when it is woken. Raises what speaks against it by then."""

Received = Callable[[Sequence[Delivered], Exception | None], None]
"""How a receive ends: messages (none when its time is up), or an error."""


class MessageSource(Protocol):
    """What delivery reads from the store."""

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def extents_of_all(self, queues: Sequence[QueueId]) -> list[QueueExtent]:
        """Of each of some different queues, at a part of the price."""

    def maximum(self, queue: QueueId) -> QueueOffset:
        """That of the bounds alone, which costs less."""

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]: ...

    def read(self, entry: ConsumeQueueEntry) -> StoredMessage: ...

    def queues_of(self, topic: str) -> list[QueueId]:
        """Those that ever got a message; for who is about to ask for their bounds."""

    def iterate_queues(self, topic: str) -> list[QueueId]: ...

    @property
    def appended_up_to(self) -> PhysicalOffset: ...


class Faults(Protocol):
    """Hears of errors that no receive ends with."""

    def report(self, error: Exception, **where: object) -> None: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """The part of an event loop that delivery needs."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer: ...


class Place(Enum):
    """Ends of a queue that a group may be moved to."""

    EARLIEST = "earliest"
    LATEST = "latest"


class StoredSince(NamedTuple):
    """The first message of a queue that was stored at this time or later; behind the last one if there is none."""

    time_ms: int


ResetTarget = Place | StoredSince | QueueOffset
