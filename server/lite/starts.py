"""Computes the offset of a lite topic at which a new subscription begins."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol

from quarry_mq.store.consumequeue.search import TimeBoundary
from quarry_mq.store.offsets import QueueBounds, QueueId, QueueOffset


class StartKind(Enum):
    STANDING = "where the group stands"
    OLDEST = "the oldest message"
    NEWEST = "what comes from now on"
    OFFSET = "an offset"
    TAIL = "the last so many messages"
    TIME = "the first message not older than a time"


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a subscription. `value` is an offset, a number of messages, or ms since 1970, as the kind says."""

    kind: StartKind
    value: int = 0

    STANDING: ClassVar[Start]
    OLDEST: ClassVar[Start]


Start.STANDING = Start(StartKind.STANDING)
Start.OLDEST = Start(StartKind.OLDEST)


class Queues(Protocol):
    """The part of the message store that finding a start needs."""

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def maximum(self, queue: QueueId) -> QueueOffset: ...

    def offset_at_time(self, queue: QueueId, time_ms: int, boundary: TimeBoundary) -> QueueOffset: ...


def offset_of(queues: Queues, queue: QueueId, start: Start) -> QueueOffset | None:
    """Return the offset, kept between the queue's min and max offset; None for the group's committed offset."""
    if start.kind is StartKind.STANDING:
        return None
    if start.kind is StartKind.NEWEST:
        return queues.maximum(queue)  # clients ask for it in thousands of queues, and bounds cost a search
    bounds = queues.bounds(queue)
    match start.kind:
        case StartKind.OLDEST:
            return bounds.minimum
        case StartKind.TAIL:
            wanted = bounds.maximum - start.value
        case StartKind.TIME:
            wanted = queues.offset_at_time(queue, start.value, TimeBoundary.LOWER)
        case _:
            wanted = start.value
    return QueueOffset(min(max(wanted, bounds.minimum), bounds.maximum))
