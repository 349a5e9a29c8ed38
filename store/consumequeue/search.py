"""Finding the first unit at or above a physical offset, or of another rule, in any kind of queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from store.offsets import PhysicalOffset, QueueOffset


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
