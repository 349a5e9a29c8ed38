"""Dispatch requests as columns: what queues need of thousands of records, without an object per record."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store.message import DispatchRequest
from store.offsets import QueueId

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
        order = np.argsort(self.queue_index, kind="stable")
        return UnitColumns(
            self.queues,
            self.queue_index[order],
            self.queue_offset[order],
            self.physical_offset[order],
            self.size[order],
            self.tags_code[order],
            self.store_timestamp_ms[order],
        )

    def last_of_queues(self) -> Integers:
        """The row of the last unit of each of `queues`. Each has one."""
        rows = np.empty(len(self.queues), np.int64)
        rows[self.queue_index] = np.arange(len(self))  # of equal indexes numpy keeps the last one
        return rows


class ColumnRequests(Sequence[DispatchRequest]):
    """Requests that a queue store may take as columns. As a sequence each is made when it is asked for."""

    @property
    @abstractmethod
    def units(self) -> UnitColumns:
        """The units of all requests."""
