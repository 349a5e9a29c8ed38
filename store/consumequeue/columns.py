"""Dispatch requests as columns: what queues need of thousands of records, without an object per record."""

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
class UnitColumns:
    """Consume queue units in log order, those of light queues right behind the record's own.

    Every array has the shape (n,) and the dtype int64.
    """

    queues: tuple[QueueId, ...]
    """The distinct queues, in no particular order."""
    queue_index: Integers
    """Which of `queues` a unit belongs to."""
    queue_offset: Integers
    physical_offset: Integers
    size: Integers
    tags_code: Integers
    store_timestamp_ms: Integers

    def __len__(self) -> int:
        return len(self.queue_index)

    def grouped(self) -> UnitColumns:
        """The same units queue by queue, those of a queue still in log order."""
        return self.select(np.argsort(self.queue_index, kind="stable"))

    def by_queue(self) -> Iterator[tuple[QueueId, UnitColumns]]:
        """The units of each queue, in log order, queue by queue."""
        grouped = self.grouped()
        begins = np.searchsorted(grouped.queue_index, np.arange(len(self.queues) + 1))
        for queue, begin, end in zip(self.queues, begins.tolist(), begins[1:].tolist(), strict=False):
            yield queue, grouped.select(slice(begin, end))

    def last_of_queues(self) -> Integers:
        """The row of the last unit of each of `queues`. Each has one."""
        rows = np.empty(len(self.queues), np.int64)
        rows[self.queue_index] = np.arange(len(self))  # of equal indexes numpy keeps the last one
        return rows

    def compact(self) -> UnitColumns:
        """The same units with only those of `queues` that have any."""
        present, queue_index = np.unique(self.queue_index, return_inverse=True)
        return replace(self, queues=tuple(self.queues[each] for each in present.tolist()), queue_index=queue_index)

    @classmethod
    def joined(cls, parts: Sequence[UnitColumns]) -> UnitColumns:
        """The units of several, one after the other."""
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

    def select(self, rows: slice | Integers | NDArray[np.bool_]) -> UnitColumns:
        """Some of the units, with all `queues`."""
        return UnitColumns(
            self.queues,
            self.queue_index[rows],
            self.queue_offset[rows],
            self.physical_offset[rows],
            self.size[rows],
            self.tags_code[rows],
            self.store_timestamp_ms[rows],
        )


class ColumnRequests(Sequence[DispatchRequest]):
    """Requests that a queue store may take as columns. As a sequence each is made when it is asked for."""

    @property
    @abstractmethod
    def units(self) -> UnitColumns:
        """The units of all requests."""
