"""The module has a type for each kind of offset and address, so that they are not mixed up."""

from __future__ import annotations

from typing import Final, NamedTuple, NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""A physical offset is a byte address in the endless commit log."""

QueueOffset = NewType("QueueOffset", int)
"""A queue offset is the index of an entry in one consume queue."""

QUEUE_NUMBER_MAX: Final = 2**31 - 1
"""Queue numbers are signed 32-bit integers on the wire and on disk."""


class QueueId(NamedTuple):
    """A queue id names one consume queue: a topic and the number of the queue in it (light queues: always 0)."""

    topic: str
    number: int


class QueueBounds(NamedTuple):
    """The bounds of a queue are its min offset (first kept entry, inclusive) and max offset (next free index,
    exclusive).

    The queue is empty when they are equal.
    """

    minimum: QueueOffset
    maximum: QueueOffset


class QueueExtent(NamedTuple):
    """The extent of a queue is its bounds, and where the record of its first entry lies: None when the
    queue is empty.
    """

    minimum: QueueOffset
    maximum: QueueOffset
    begins_at: PhysicalOffset | None
