"""The module does one sweep that removes entries below the log's minimum M from the consume queues, in steps of two
halves.

    prepare      blocks: finds out what to remove, or makes removals durable. Runs on its own thread
    carry_out    a millisecond of changes, until there are no more. Runs on the thread that dispatches

Between the two, the queues may grow, topics may be deleted, M may grow. So an entry that was found is removed only if
it is still to be removed. Readers honour M all the time, so they notice nothing of a sweep.

A crash at any moment undoes a sweep in whole or in part; the next one begins at the first queue and skips what is done.
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
"""Bounds examined at a time: one to two milliseconds with the interpreter's lock, which other threads wait for."""

RANGES_PER_FLUSH: Final = 16_384
"""Range deletes in the memtable. The first read after a write has to sort them: one to two milliseconds."""

ROWS_PER_STEP: Final = 2_048
"""Range deletes, or min offsets, written in a step: one to two milliseconds."""

LOOKS_PER_SLICE: Final = 16
"""File queues examined at a time: about 50 us each."""

FILES_PER_STEP: Final = 4
"""Queue files removed in a step: 6 MB each, some hundred microseconds."""

Pause = Callable[[], bool]
"""A function that waits after a slice of work; it returns True if the work is to end."""


_Row = TypeVar("_Row")


def never_pause() -> bool:
    """Never pause: a `Pause` for work that nothing waits for."""
    return False


class QueueSweep(Protocol):
    """A queue round is one sweep over one kind of queues. An error of either half (`kv.KvError`) ends it; then a new
    one begins.
    """

    entries: int
    """An upper bound of the entries removed so far."""
    files: int
    """Files removed so far."""

    def prepare(self) -> bool:
        """Find out what to do next; return False when nothing is left. Then everything done is durable."""

    def carry_out(self) -> bool:
        """Do a part of it; return False when nothing is left of it."""


class RocksSweep:
    """The sweep handles some thousand queues at a time: search, range deletes, a flush, and then the min offsets.

    The order matters because reads are slow while a memtable holds many range deletes, and because a min offset must
    not survive a crash that takes the range delete back. `dropped` gets the number of entries that went with each
    flush, on the thread of `prepare`.
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
        self._key: bytes | None = b""  # the first key that is not done; None after the last queue
        self._removals = queues.removals
        self._found: ExpiredEntries | None = None
        self._ranges: deque[KeyRange] = deque()
        self._min_offsets: deque[tuple[bytes, bytes]] = deque()
        self.entries = 0
        self.kept_entries = 0
        """An upper bound of the entries that stay in the queues done so far."""
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
            # Queues were removed since, and may have begun again: search again. Examine fewer at a time, so that the
            # sweep gets through a time of many removals.
            self._ranges.clear()
            self._found = None
            self._ranges_wanted = 1
        if self._min_offsets and not self._queues.store_min_offsets(_take(self._min_offsets), removals=self._removals):
            self._min_offsets.clear()  # a min offset that is not stored costs a later search more time, nothing else
        return bool(self._ranges or self._min_offsets)

    def _find(self, key: bytes) -> ExpiredEntries:
        self._removals = self._queues.removals
        found = self._search.step(key, rows_max=self._rows_per_slice)
        while found.next_key is not None and len(found.ranges) < self._ranges_wanted and not self._pause():
            found.add(self._search.step(found.next_key, rows_max=self._rows_per_slice))
        return found

    def _finish(self, found: ExpiredEntries) -> None:
        """Flush once all ranges that were found are dropped, and continue with their min offsets."""
        if found.ranges:
            self._queues.flush_entries()
            self._dropped(found.entries)
        self._min_offsets.extend(found.min_offsets)
        self._key = found.next_key
        self._found = None
        self._ranges_wanted = min(2 * self._ranges_wanted, self._ranges_per_flush)
        self.entries += found.entries
        self.kept_entries += found.kept_entries


def _take(rows: deque[_Row]) -> list[_Row]:
    return [rows.popleft() for _ in range(min(ROWS_PER_STEP, len(rows)))]


class FileSweep:
    """The sweep removes whole files without entries at or above M, but never a queue's last file: it holds the next
    offset.
    """

    def __init__(self, queues: FileConsumeQueues, minimum: PhysicalOffset, *, pause: Pause = never_pause) -> None:
        self._queues = queues
        self._pause = pause
        self._looked_at = queues.with_expired_files(minimum)
        self._expiring: deque[QueueId] = deque()
        self.minimum: Final = minimum
        self.entries = 0
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
            files, entries = self._queues.remove_expired(
                self._expiring[0], self.minimum, files_max=FILES_PER_STEP - removed
            )
            if not files:
                self._expiring.popleft()
            removed += files
            self.entries += entries
        self.files += removed
        return bool(self._expiring)
