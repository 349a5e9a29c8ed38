"""Search one consume queue of any kind by physical offset, by a predicate, and by store time as RocketMQ does.

By store time (`offset_at_time`):

| messages stored at | asked for | LOWER                           | UPPER                              |
|--------------------|-----------|---------------------------------|------------------------------------|
| 10, 20, 20, 30     | 20        | 1: the first at or after it     | 2: the last at or before it        |
|                    | 25        | 3                               | 2                                  |
|                    | 5         | 0: all of them are after it     | 0: none is before it, so the first |
|                    | 31        | 4: the next one will be (rmq#8736) | 3                               |

The result lies in the bounds of the queue. Store times ascend in a log of ours. In one of RocketMQ's, some may not,
because its clock was set back; the result is then one of several offsets that fit.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeVar

from quarry_mq.store.errors import MessageGivenUp
from quarry_mq.store.message import ConsumeQueueEntry
from quarry_mq.store.offsets import PhysicalOffset, QueueBounds, QueueId, QueueOffset


class FoundEntry(NamedTuple):
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset


class Entry(Protocol):
    """Describe any object that has a queue offset."""

    @property
    def queue_offset(self) -> QueueOffset: ...


AnyEntry = TypeVar("AnyEntry", bound=Entry)

EntryAtOrAfter = Callable[[int, int], FoundEntry | None]
"""`(start, end)` -> the first entry that exists in [start, end), by queue offset."""


def first_at_least(
    entry_at_or_after: EntryAtOrAfter, begin: int, end: int, at_least: PhysicalOffset
) -> FoundEntry | None:
    """Return the first entry of [begin, end) whose physical offset is at least `at_least`; None when there is none."""
    return first_where(entry_at_or_after, begin, end, lambda entry: entry.physical_offset >= at_least)


def first_where(
    entry_at_or_after: Callable[[int, int], AnyEntry | None], begin: int, end: int, holds: Callable[[AnyEntry], bool]
) -> AnyEntry | None:
    """Return the first entry of [begin, end) for which `holds` is true; None when there is none.

    `holds` must be true for all entries after that one, too. Binary search over queue offsets; physical offsets and
    store times ascend with them. Each step reads the next entry that exists, so holes (expired entries, duplicate
    light-queue names, filler) are skipped.
    """
    found: AnyEntry | None = None
    middle = begin  # the first entry is the result whenever nothing has expired
    while begin < end:
        entry = entry_at_or_after(middle, end)
        if entry is None:
            end = middle
        elif holds(entry):
            found, end = entry, middle
        else:
            begin = entry.queue_offset + 1
        middle = (begin + end) // 2
    return found


def count_between(
    entry_at_or_after: EntryAtOrAfter, begin: int, end: int, lower: PhysicalOffset, upper: PhysicalOffset
) -> int:
    """Count the queue offsets of [begin, end) from the first entry at or above `lower` to that of `upper`."""
    first = first_at_least(entry_at_or_after, begin, end, lower)
    if first is None or first.physical_offset >= upper:
        return 0
    after = first_at_least(entry_at_or_after, first.queue_offset, end, upper)
    return (end if after is None else after.queue_offset) - first.queue_offset


NOWHERE: Final = PhysicalOffset((1 << 63) - 1)
"""A physical offset after every record that a log can hold."""


class TimeBoundary(Enum):
    """The side of a time to search; all messages stored at exactly that time count as on that side (rmq#4890)."""

    LOWER = "lower"
    UPPER = "upper"


class TimedQueues(Protocol):
    """The part of a consume queue store that the search reads."""

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]: ...

    def last_entry_below(self, queue: QueueId, at: PhysicalOffset) -> ConsumeQueueEntry | None: ...


class _TimedEntry(NamedTuple):
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    stored_ms: int


def offset_at_time(
    queues: TimedQueues,
    time_in_log: Callable[[ConsumeQueueEntry], int],
    queue: QueueId,
    time_ms: int,
    boundary: TimeBoundary,
) -> QueueOffset:
    """Return the offset by the table above; in an empty queue, the end of the queue.

    `time_in_log` is called for entries that hold no store time themselves (file queues). If it raises MessageGivenUp,
    the next message decides. Whatever else it raises passes through, including StoreDamaged.
    """
    bounds = queues.bounds(queue)

    def entry_at_or_after(start: int, before: int) -> _TimedEntry | None:
        while start < before:
            found = queues.entries(queue, QueueOffset(start), 1)
            if not found or found[0].queue_offset >= before:
                return None
            entry = found[0]
            try:
                stored_ms = entry.store_timestamp_ms
                if stored_ms is None:
                    stored_ms = time_in_log(entry)
                return _TimedEntry(entry.queue_offset, entry.physical_offset, stored_ms)
            except MessageGivenUp:
                start = entry.queue_offset + 1
        return None

    def is_too_late(entry: _TimedEntry) -> bool:
        return entry.stored_ms >= time_ms if boundary is TimeBoundary.LOWER else entry.stored_ms > time_ms

    after = first_where(entry_at_or_after, bounds.minimum, bounds.maximum, is_too_late)
    if boundary is TimeBoundary.LOWER:
        return bounds.maximum if after is None else after.queue_offset
    last = queues.last_entry_below(queue, NOWHERE if after is None else after.physical_offset)
    return bounds.minimum if last is None else last.queue_offset
