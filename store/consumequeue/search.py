"""Searches in one consume queue of any kind: by physical offset, by another rule, and by store time as RocketMQ does.

By store time (`offset_at_time`):

| messages stored at | asked for | LOWER                           | UPPER                              |
|--------------------|-----------|---------------------------------|------------------------------------|
| 10, 20, 20, 30     | 20        | 1: the first at or after it     | 2: the last at or before it        |
|                    | 25        | 3                               | 2                                  |
|                    | 5         | 0: all of them are after it     | 0: none is before it, so the first |
|                    | 31        | 4: the next one will be (rmq#8736) | 3                               |

An answer lies in the bounds of the queue. Store times ascend in a log of ours; in one of RocketMQ's a clock that was
set back may have left some that do not, and the answer is then one of several that fit.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeVar

from quarry_mq.store.errors import MessageGivenUp
from quarry_mq.store.message import ConsumeQueueEntry
from quarry_mq.store.offsets import PhysicalOffset, QueueBounds, QueueId, QueueOffset


class FoundUnit(NamedTuple):
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset


class Unit(Protocol):
    """Anything that has a place in a queue."""

    @property
    def queue_offset(self) -> QueueOffset: ...


AnyUnit = TypeVar("AnyUnit", bound=Unit)

UnitAtOrAfter = Callable[[int, int], FoundUnit | None]
"""`(start, end)` -> the first unit that exists in [start, end), by queue offset."""


def first_at_least(unit_at_or_after: UnitAtOrAfter, begin: int, end: int, at_least: PhysicalOffset) -> FoundUnit | None:
    """The first unit of [begin, end) whose physical offset is `at_least` that; None when there is none."""
    return first_where(unit_at_or_after, begin, end, lambda unit: unit.physical_offset >= at_least)


def first_where(
    unit_at_or_after: Callable[[int, int], AnyUnit | None], begin: int, end: int, holds: Callable[[AnyUnit], bool]
) -> AnyUnit | None:
    """The first unit of [begin, end) for which `holds`, as it must for all behind it; None when there is none.

    Binary search over queue offsets; physical offsets and store times ascend with them. Each step looks at the next
    unit that exists, so holes (expired units, doubled light-queue names, filler) are passed over.
    """
    found: AnyUnit | None = None
    middle = begin  # the first unit is the answer whenever nothing has expired
    while begin < end:
        unit = unit_at_or_after(middle, end)
        if unit is None:
            end = middle
        elif holds(unit):
            found, end = unit, middle
        else:
            begin = unit.queue_offset + 1
        middle = (begin + end) // 2
    return found


def count_between(
    unit_at_or_after: UnitAtOrAfter, begin: int, end: int, lower: PhysicalOffset, upper: PhysicalOffset
) -> int:
    """How many queue offsets of [begin, end) lie between the first unit at or above `lower` and that of `upper`."""
    first = first_at_least(unit_at_or_after, begin, end, lower)
    if first is None or first.physical_offset >= upper:
        return 0
    after = first_at_least(unit_at_or_after, first.queue_offset, end, upper)
    return (end if after is None else after.queue_offset) - first.queue_offset


NOWHERE: Final = PhysicalOffset((1 << 63) - 1)
"""Behind every record that a log can hold."""


class TimeBoundary(Enum):
    """Which side of a time is meant; of messages stored at that very time all are on that side (rmq#4890)."""

    LOWER = "lower"
    UPPER = "upper"


class TimedQueues(Protocol):
    """The part of a consume queue store that the search asks."""

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def entries(self, queue: QueueId, start: QueueOffset, limit: int) -> list[ConsumeQueueEntry]: ...

    def last_entry_below(self, queue: QueueId, at: PhysicalOffset) -> ConsumeQueueEntry | None: ...


class _TimedUnit(NamedTuple):
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
    """See the table above; the end of the queue where it is empty.

    `time_in_log` is asked for entries that hold no store time themselves (file queues). It may raise MessageGivenUp:
    the next message tells then. Whatever else it raises passes through, StoreDamaged among it.
    """
    bounds = queues.bounds(queue)

    def unit_at_or_after(start: int, before: int) -> _TimedUnit | None:
        while start < before:
            found = queues.entries(queue, QueueOffset(start), 1)
            if not found or found[0].queue_offset >= before:
                return None
            entry = found[0]
            try:
                stored_ms = entry.store_timestamp_ms
                if stored_ms is None:
                    stored_ms = time_in_log(entry)
                return _TimedUnit(entry.queue_offset, entry.physical_offset, stored_ms)
            except MessageGivenUp:
                start = entry.queue_offset + 1
        return None

    def is_behind(unit: _TimedUnit) -> bool:
        return unit.stored_ms >= time_ms if boundary is TimeBoundary.LOWER else unit.stored_ms > time_ms

    behind = first_where(unit_at_or_after, bounds.minimum, bounds.maximum, is_behind)
    if boundary is TimeBoundary.LOWER:
        return bounds.maximum if behind is None else behind.queue_offset
    last = queues.last_entry_below(queue, NOWHERE if behind is None else behind.physical_offset)
    return bounds.minimum if last is None else last.queue_offset
