"""Dispatch requests as columns: thousands of records for the consume queues, without an object per record."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.message import DispatchRequest
from quarry_mq.store.offsets import QueueId

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
