"""Search of one consume queue of any kind, and the columns in which many entries are read at once.

A queue is searched by physical offset, by a predicate, and by store time as RocketMQ does (`offset_at_time`):

| messages stored at | asked for | LOWER                           | UPPER                              |
|--------------------|-----------|---------------------------------|------------------------------------|
| 10, 20, 20, 30     | 20        | 1: the first at or after it     | 2: the last at or before it        |
|                    | 25        | 3                               | 2                                  |
|                    | 5         | 0: all of them are after it     | 0: none is before it, so the first |
|                    | 31        | 4: the next one will be (rmq#8736) | 3                               |

The result lies in the bounds of the queue. Store times ascend in a log of ours. In one of RocketMQ's, some may not,
because its clock was set back; the result is then one of several offsets that fit.

Entries of one queue are read as columns, a window of queue offsets at a time, from either kind of queues. This is for
reading a whole store beside the thread that writes it: nothing is shared with that thread but the disk and the engine,
and nothing is kept from one queue to the next.

Dispatch requests are columns, too: thousands of records for the consume queues, without an object per record.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.errors import MessageGivenUp
from quarry_mq.store.message import (
    ConsumeQueueEntry,
    DispatchRequest,
    PhysicalOffset,
    QueueBounds,
    QueueId,
    QueueOffset,
)

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class EntryColumns:
    """Consume queue entries in log order; entries in light queues follow the entry in the record's own queue.

    Every array has the shape (n,) and the dtype int64.
    """

    queues: tuple[QueueId, ...]
    """The distinct queues, in no particular order."""
    queue_index: Integers
    """The index into `queues` of each entry's queue."""
    queue_offset: Integers
    physical_offset: Integers
    size: Integers
    tags_code: Integers
    store_timestamp_ms: Integers

    def __len__(self) -> int:
        return len(self.queue_index)

    def grouped(self) -> EntryColumns:
        """Return the same entries ordered by queue, in log order within each queue."""
        return self.select(np.argsort(self.queue_index, kind="stable"))

    def by_queue(self) -> Iterator[tuple[QueueId, EntryColumns]]:
        """Yield each queue with its entries in log order."""
        grouped = self.grouped()
        begins = np.searchsorted(grouped.queue_index, np.arange(len(self.queues) + 1))
        for queue, begin, end in zip(self.queues, begins.tolist(), begins[1:].tolist(), strict=False):
            yield queue, grouped.select(slice(begin, end))

    def last_of_queues(self) -> Integers:
        """Return the row of the last entry of each of `queues`. Each must have an entry."""
        rows = np.empty(len(self.queues), np.int64)
        rows[self.queue_index] = np.arange(len(self))  # of equal indexes numpy keeps the last one
        return rows

    def compact(self) -> EntryColumns:
        """Return the same entries without the `queues` that have none."""
        present, queue_index = np.unique(self.queue_index, return_inverse=True)
        return replace(self, queues=tuple(self.queues[each] for each in present.tolist()), queue_index=queue_index)

    @classmethod
    def joined(cls, parts: Sequence[EntryColumns]) -> EntryColumns:
        """Return the entries of all parts, one part after the other."""
        numbers: dict[QueueId, int] = {}
        indexes = []
        for part in parts:
            places = np.array([numbers.setdefault(queue, len(numbers)) for queue in part.queues], np.int64)
            indexes.append(places[part.queue_index])
        columns = [
            np.concatenate([np.empty(0, np.int64), *(getattr(part, name) for part in parts)])
            for name in ("queue_offset", "physical_offset", "size", "tags_code", "store_timestamp_ms")
        ]
        return cls(tuple(numbers), np.concatenate([np.empty(0, np.int64), *indexes]), *columns)

    def select(self, rows: slice | Integers | NDArray[np.bool_]) -> EntryColumns:
        """Return the entries in these rows, with all `queues`."""
        return EntryColumns(
            self.queues,
            self.queue_index[rows],
            self.queue_offset[rows],
            self.physical_offset[rows],
            self.size[rows],
            self.tags_code[rows],
            self.store_timestamp_ms[rows],
        )


class ColumnRequests(Sequence[DispatchRequest]):
    """Requests that a queue store may read as columns. Used as a sequence, it makes each request on access."""

    @property
    @abstractmethod
    def entries(self) -> EntryColumns:
        """The entries of all requests."""


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


@dataclass(frozen=True, slots=True, eq=False)
class EntryWindow:
    """The real entries in a range of queue offsets, ascending. Arrays of shape (n,), int64."""

    queue_offset: Integers
    physical_offset: Integers
    size: Integers
    tags_code: Integers

    def __len__(self) -> int:
        return len(self.queue_offset)

    def select(self, rows: Integers | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> EntryWindow:
        return EntryWindow(self.queue_offset[rows], self.physical_offset[rows], self.size[rows], self.tags_code[rows])


class QueueEntries(Protocol):
    """Read one queue as it was when it was opened; entries added since may or may not be seen."""

    begin: int
    """No visible entry is below this queue offset."""
    maximum: int
    """The next free queue offset; 0: there is no such queue."""
    last_physical: int
    """The physical offset of the last entry; 0 when there is none."""

    def entry_at_or_after(self, start: int, end: int) -> FoundEntry | None:
        """Return the first entry of [start, end)."""

    def window(self, start: int, end: int) -> EntryWindow:
        """Return the entries of [start, end), none at or above `maximum`."""


class EntryReader(Protocol):
    """Reads all queues of one kind. Use it on one thread. Raises kv.KvError, OSError, StoreDamaged."""

    @property
    def queues(self) -> Callable[[], Iterator[QueueId]]:
        """Lists the queues in the order of keys in RocksDB."""

    def open(self, queue: QueueId) -> QueueEntries:
        """Return the queue as it is now. FileNotFoundError here or from the result: the queue is just being removed."""

    def close(self) -> None: ...


def joined(parts: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> Integers:
    """Return the parts one after the other as one array."""
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)
