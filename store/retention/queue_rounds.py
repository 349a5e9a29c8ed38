"""One round of removing what lies below the log's minimum M from the consume queues, as steps of two halves.

    prepare      blocks: finds out what goes, or makes durable what went. On a thread of its own
    carry_out    a millisecond of changes, until there are no more. On the thread that dispatches

Between the two anything may happen to the queues: they grow, topics are deleted, M grows. What was found is removed
only where it is still true. Readers honour M all the while, so they notice nothing of a round.

A crash at any moment takes a round back in whole or in part; the next one begins at the first queue and passes over
what is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from quarry_mq.kv import KeyRange
from quarry_mq.store.consumequeue import FileConsumeQueues, RocksConsumeQueues
from quarry_mq.store.consumequeue.rocks.expired_entries import ExpiredEntries
from quarry_mq.store.offsets import PhysicalOffset, QueueId

ROWS_PER_SLICE: Final = 256
"""Bounds looked at in one go: one to two milliseconds with the interpreter's lock, which others wait for."""

RANGES_PER_FLUSH: Final = 16_384
"""Range deletes in the memtable. The first read after a write has to sort them: one to two milliseconds."""

ROWS_PER_STEP: Final = 2_048
"""Range deletes, or minima, written in a step: one to two milliseconds."""

LOOKS_PER_SLICE: Final = 16
"""File queues looked at in one go: about 50 us each."""

FILES_PER_STEP: Final = 4
"""Queue files removed in a step: 6 MB each, some hundred microseconds."""

Pause = Callable[[], bool]
"""Waits after a slice of work; True tells to come to an end."""


_Row = TypeVar("_Row")


def never_pause() -> bool:
    """A `Pause` for work that nobody waits for."""
    return False


class QueueRound(Protocol):
    """One round over one kind of queues. Errors of either half (`kv.KvError`) end it; it is begun anew then."""

    units: int
    """Entries removed so far, at most."""
    files: int
    """Files removed so far."""

    def prepare(self) -> bool:
        """Find out what to do next; False when nothing is left. Then it is durable."""

    def carry_out(self) -> bool:
        """Do some of it; False when nothing is left of it."""


class RocksRound:
    """Some thousand queues at a time: search, range deletes, a flush, and then the minima.

    In this order, because reads are slow while a memtable holds many range deletes, and because a minimum must not
    outlive a crash that takes the range delete back. `dropped` is told how many units went with each flush, on the
    thread of `prepare`.
    """

    def __init__(
        self,
        queues: RocksConsumeQueues,
        *,
        dropped: Callable[[int], None],
        pause: Pause = never_pause,
        rows_per_slice: int = ROWS_PER_SLICE,
        ranges_per_flush: int = RANGES_PER_FLUSH,
    ) -> None:
        self._queues = queues
        self._search = queues.expired_entries()
        self._dropped = dropped
        self._pause = pause
        self._rows_per_slice = rows_per_slice
        self._ranges_per_flush = self._ranges_wanted = ranges_per_flush
        self._key: bytes | None = b""  # the first one that is not done; None behind the last queue
        self._removals = queues.removals
        self._found: ExpiredEntries | None = None
        self._ranges: deque[KeyRange] = deque()
        self._minima: deque[tuple[bytes, bytes]] = deque()
        self.units = 0
        self.kept_units = 0
        """Entries that stay in the queues done so far, at most."""
        self.files = 0

    @property
    def minimum(self) -> PhysicalOffset:
        return self._search.minimum

    def prepare(self) -> bool:
        if self._found is not None:
            self._finish(self._found)
            return True
        if self._key is None:
            return False
        self._found = self._find(self._key)
        self._ranges.extend(self._found.ranges)
        return True

    def carry_out(self) -> bool:
        if self._ranges and not self._queues.drop(_take(self._ranges), removals=self._removals):
            # Queues were removed since, and may have begun anew: look again. At fewer, so that a time of many
            # removals is got over.
            self._ranges.clear()
            self._found = None
            self._ranges_wanted = 1
        if self._minima and not self._queues.store_minima(_take(self._minima), removals=self._removals):
            self._minima.clear()  # what is not stored costs a later search more time, nothing else
        return bool(self._ranges or self._minima)

    def _find(self, key: bytes) -> ExpiredEntries:
        self._removals = self._queues.removals
        found = self._search.step(key, rows_max=self._rows_per_slice)
        while found.next_key is not None and len(found.ranges) < self._ranges_wanted and not self._pause():
            found.add(self._search.step(found.next_key, rows_max=self._rows_per_slice))
        return found

    def _finish(self, found: ExpiredEntries) -> None:
        """All ranges of what was found are dropped."""
        if found.ranges:
            self._queues.flush_entries()
            self._dropped(found.units)
        self._minima.extend(found.minima)
        self._key = found.next_key
        self._found = None
        self._ranges_wanted = min(2 * self._ranges_wanted, self._ranges_per_flush)
        self.units += found.units
        self.kept_units += found.kept_units


def _take(rows: deque[_Row]) -> list[_Row]:
    return [rows.popleft() for _ in range(min(ROWS_PER_STEP, len(rows)))]


class FileRound:
    """Whole files that hold nothing at or above M, but for the last one of each queue: it tells its numbering."""

    def __init__(self, queues: FileConsumeQueues, minimum: PhysicalOffset, *, pause: Pause = never_pause) -> None:
        self._queues = queues
        self._pause = pause
        self._looked_at = queues.with_expired_files(minimum)
        self._expiring: deque[QueueId] = deque()
        self.minimum: Final = minimum
        self.units = 0
        self.files = 0

    def prepare(self) -> bool:
        for _ in range(LOOKS_PER_SLICE):
            queue = next(self._looked_at, self)
            if queue is self:
                return bool(self._expiring)
            if isinstance(queue, QueueId):
                self._expiring.append(queue)
        self._pause()
        return True

    def carry_out(self) -> bool:
        removed = 0
        while self._expiring and removed < FILES_PER_STEP:
            files, units = self._queues.remove_expired(
                self._expiring[0], self.minimum, files_max=FILES_PER_STEP - removed
            )
            if not files:
                self._expiring.popleft()
            removed += files
            self.units += units
        self.files += removed
        return bool(self._expiring)
