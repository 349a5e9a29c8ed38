"""Entries of one queue as columns, a window of queue offsets at a time, from either kind of queues.

For reading a whole store beside the thread that writes it: nothing is shared with that thread but the disk and the
engine, and nothing is kept from one queue to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from quarry_mq.store.consumequeue.columns import Integers
from quarry_mq.store.consumequeue.search import FoundEntry
from quarry_mq.store.offsets import QueueId


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
