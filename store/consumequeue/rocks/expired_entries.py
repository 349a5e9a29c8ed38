"""Find the entries of records that the log no longer has, in queues in RocksDB.

RocketMQ does it in a compaction filter, which reads every key and drops entries with a physical offset below the
log's min offset M. Physical offsets ascend with queue offsets, so those entries are the beginning of their queue: one
search for the first entry to keep and one range delete do the same without a native filter (ADR 15).

Nothing is kept in memory per queue. The stored min offsets record what was done, and every reader may use them: the
first kept entry, or (M, maximum) for a queue that is empty.

    stored bounds of the queue       action
    --------------------------       ------
    minimum at or above M            none: it was done before
    maximum below M                  remove all entries, no search
    else, at most 64 entries         read them together with those of the neighbouring queues
    else                             binary search for the first entry at or above M
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.store.consumequeue.rocks_layout import (
    BOUND,
    BOUND_SIZE,
    ENTRIES_FAMILY,
    ENTRY,
    I64,
    OFFSET_FAMILY,
    entry_prefix_beside,
    is_maximum,
    minimum_key_beside,
)
from quarry_mq.store.consumequeue.search import FoundEntry, first_at_least
from quarry_mq.store.message import PhysicalOffset, QueueOffset

SHORT_QUEUE: Final = 64
"""Reading this many neighbouring entries takes as long as the seeks of a binary search."""

ENTRIES_PER_SCAN: Final = 1_000
"""Entries read in one call, which keeps the interpreter's lock: a third of a millisecond."""

_FIRST_KEY: Final = b""


@dataclass(slots=True)
class ExpiredEntries:
    """The result of one step: ranges of entries that may be removed, and the min offsets to store afterwards."""

    next_key: bytes | None
    """The key at which the next step continues; None after the last queue."""
    queues: int = 0
    """The number of queues checked."""
    entries: int = 0
    """The largest possible number of entries to remove: holes count."""
    kept_entries: int = 0
    """The largest possible number of entries that stay in the queues checked."""
    ranges: list[KeyRange] = field(default_factory=list)
    min_offsets: list[tuple[bytes, bytes]] = field(default_factory=list)

    def add(self, following: ExpiredEntries) -> None:
        """Add the result of the following step to this one."""
        self.next_key = following.next_key
        self.queues += following.queues
        self.entries += following.entries
        self.kept_entries += following.kept_entries
        self.ranges += following.ranges
        self.min_offsets += following.min_offsets


class _Bounds(NamedTuple):
    """The queues of one step, given by the rows of their bounds."""

    maximum_keys: list[bytes]
    minimum_keys: list[bytes]
    first: NDArray[np.void]
    """The stored min offsets; (-1, 0), below all others, where there is none."""
    last: NDArray[np.void]
    """The stored max offsets."""


class _Queue(NamedTuple):
    """A queue whose first entry to keep must be searched: it lies in [begin, end)."""

    minimum_key: bytes
    prefix: bytes
    begin: int
    end: int


class ExpiredEntrySearch:
    """Steps through all queues in key order. Only reads, so it may run on a thread of its own beside the writer.

    The result of a step stays valid while queues grow, but not when topics are deleted or the log is truncated: the
    caller that writes the result must know that neither happened since (`RocksConsumeQueues.drop`).
    """

    def __init__(self, engine: KeyValueEngine, minimum: PhysicalOffset) -> None:
        self._entries = engine.family(ENTRIES_FAMILY)
        self._offsets = engine.family(OFFSET_FAMILY)
        self.minimum: Final = minimum

    def step(self, key: bytes = _FIRST_KEY, *, rows_max: int = 1_000) -> ExpiredEntries:
        """Check the next queues, from `key` on: at most `rows_max` rows of bounds."""
        rows = self._offsets.scan(KeyRange(key, None), limit=rows_max)
        found = ExpiredEntries(rows[-1][0] + b"\0" if len(rows) == rows_max else None)
        bounds = self._bounds(rows, found.next_key)
        found.queues = len(bounds.maximum_keys)
        if not found.queues:
            return found
        begins = np.maximum(bounds.first["queue"].astype(np.int64), 0)
        ends = bounds.last["queue"].astype(np.int64) + 1
        found.kept_entries = int(np.maximum(ends - begins, 0).sum())
        chosen = bounds.first["physical"] < self.minimum
        empty = chosen & (bounds.last["physical"] < self.minimum)
        for queue in _queues(bounds, empty, begins, ends):
            self._note(found, queue, queue.end, I64.pack(queue.end), I64.pack(self.minimum))
        searched = chosen & ~empty
        short = searched & (ends - begins <= SHORT_QUEUE)
        for indexes in _neighbours(short, ends - begins):
            self._find_together(found, list(_queues(bounds, indexes, begins, ends)))
        for queue in _queues(bounds, searched & ~short, begins, ends):
            self._find_alone(found, queue)
        found.kept_entries -= found.entries
        return found

    def _bounds(self, rows: Sequence[tuple[bytes, bytes]], next_key: bytes | None) -> _Bounds:
        values = dict(rows)
        maximum_keys = [key for key, value in rows if is_maximum(key, value)]
        minimum_keys = [minimum_key_beside(key) for key in maximum_keys]
        min_offsets = [values.get(key) for key in minimum_keys]
        if next_key is not None:
            # a min offset row missing from this page can only lie after the page
            elsewhere = [
                index for index, key in enumerate(minimum_keys) if min_offsets[index] is None and key >= next_key
            ]
            for index, value in zip(
                elsewhere, self._offsets.get_many([minimum_keys[index] for index in elsewhere]), strict=True
            ):
                min_offsets[index] = value
        return _Bounds(
            maximum_keys,
            minimum_keys,
            first=_unpack([value or _NO_MINIMUM for value in min_offsets]),
            last=_unpack([values[key] for key in maximum_keys]),
        )

    def _find_together(self, found: ExpiredEntries, queues: list[_Queue]) -> None:
        """Find the first entries to keep of neighbouring queues: their entries are read in one scan."""
        count_max = sum(queue.end - queue.begin for queue in queues)
        start = queues[0].prefix + I64.pack(queues[0].begin)
        pairs = self._entries.scan(KeyRange(start, queues[-1].prefix + I64.pack(queues[-1].end)), limit=count_max + 1)
        if len(pairs) > count_max:  # there are entries in between that belong to no stored bounds
            for queue in queues:
                self._find_alone(found, queue)
            return
        keys = [key for key, _ in pairs]
        physical = np.frombuffer(b"".join([value for _, value in pairs]), dtype=_ENTRY_DTYPE)["physical"]
        kept = np.append(np.flatnonzero(physical >= self.minimum), len(keys))
        begins, ends, at = [], [], 0
        for queue in queues:
            begins.append(at := bisect_left(keys, queue.prefix + I64.pack(queue.begin), at))
            ends.append(at := bisect_left(keys, queue.prefix + I64.pack(queue.end), at))
        for queue, end, first in zip(queues, ends, kept[np.searchsorted(kept, begins)].tolist(), strict=True):
            if first < end:
                offset = keys[first][-I64.size :]
                self._note(found, queue, I64.unpack(offset)[0], offset, pairs[first][1][: I64.size])

    def _find_alone(self, found: ExpiredEntries, queue: _Queue) -> None:
        prefix = queue.prefix

        def entry_at_or_after(start: int, before: int) -> FoundEntry | None:
            pairs = self._entries.scan(KeyRange(prefix + I64.pack(start), prefix + I64.pack(before)), limit=1)
            return _found_entry(*pairs[0]) if pairs else None

        first = first_at_least(entry_at_or_after, queue.begin, queue.end, self.minimum)
        if first is not None:  # else the queue's last entry is missing, though the stored max offset names it
            self._note(found, queue, first.queue_offset, I64.pack(first.queue_offset), I64.pack(first.physical_offset))

    def _note(self, found: ExpiredEntries, queue: _Queue, kept: int, packed_kept: bytes, packed_place: bytes) -> None:
        """Record that every entry before `kept` is to be removed; `packed_place` is its packed physical offset."""
        if kept > queue.begin:
            found.ranges.append(KeyRange(queue.prefix + I64.pack(queue.begin), queue.prefix + packed_kept))
            found.entries += kept - queue.begin
        found.min_offsets.append((queue.minimum_key, packed_place + packed_kept))


_NO_MINIMUM: Final = BOUND.pack(-1, 0)
_BOUND_DTYPE: Final = np.dtype([("physical", ">i8"), ("queue", ">i8")])
assert _BOUND_DTYPE.itemsize == BOUND_SIZE, "dtype and struct disagree"
_ENTRY_DTYPE: Final = np.dtype([("physical", ">i8"), ("rest", f"V{ENTRY.size - I64.size}")])
assert _ENTRY_DTYPE.itemsize == ENTRY.size, "dtype and struct disagree"


def _unpack(values: list[bytes]) -> NDArray[np.void]:
    return np.frombuffer(b"".join(values), dtype=_BOUND_DTYPE)


def _queues(
    bounds: _Bounds, chosen: NDArray[np.bool_] | NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> Iterator[_Queue]:
    indexes = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
    for index, begin, end in zip(indexes.tolist(), begins[indexes].tolist(), ends[indexes].tolist(), strict=True):
        yield _Queue(bounds.minimum_keys[index], entry_prefix_beside(bounds.maximum_keys[index]), begin, end)


def _neighbours(chosen: NDArray[np.bool_], lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield indexes of chosen queues with no other queue in between, in groups of about `ENTRIES_PER_SCAN` entries."""
    indexes = np.flatnonzero(chosen)
    if not len(indexes):
        return
    cuts = np.flatnonzero(np.diff(indexes) > 1) + 1
    for group in np.split(indexes, cuts):
        scans = np.cumsum(lengths[group]) // ENTRIES_PER_SCAN
        yield from np.split(group, np.flatnonzero(np.diff(scans)) + 1)


def _found_entry(key: bytes, value: bytes) -> FoundEntry:
    return FoundEntry(
        QueueOffset(I64.unpack_from(key, len(key) - I64.size)[0]), PhysicalOffset(ENTRY.unpack_from(value)[0])
    )
