"""Offsets and addresses that must not be mixed up."""

from __future__ import annotations

from typing import Final, NamedTuple, NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte address in the endless commit log."""

QueueOffset = NewType("QueueOffset", int)
"""Index of an entry in one consume queue."""

QUEUE_NUMBER_MAX: Final = 2**31 - 1
"""Queue numbers are signed 32-bit integers on the wire and on disk."""


class QueueId(NamedTuple):
    """One consume queue: a topic and the number of the queue in it (light queues: always 0)."""

    topic: str
    number: int


class QueueBounds(NamedTuple):
    """First kept entry (inclusive) and next free index (exclusive). Empty when they are equal."""

    minimum: QueueOffset
    maximum: QueueOffset


class QueueExtent(NamedTuple):
    """The bounds of a queue, and where the record of its first entry lies: None when it is empty."""

    minimum: QueueOffset
    maximum: QueueOffset
    begins_at: PhysicalOffset | None
