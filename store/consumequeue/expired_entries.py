"""Removing the entries of records that the log no longer has, from queues in RocksDB.

RocketMQ does it in a compaction filter, which looks at every key and drops units with a physical offset below the
log's minimum M. Physical offsets ascend with queue offsets, so those units are the beginning of their queue: one
search for its end and one range delete do the same without a native filter. The next compactions give the space back.

Per queue nothing is kept in memory. What a round has done is in the stored minima, which every reader may use: the
first kept unit, or (M, maximum) for a queue that is empty. A round that was killed begins anew and passes over those.

    chosen by its stored bounds      what is to be done
    ---------------------------      ------------------
    minimum at or above M            nothing: an earlier round did it
    maximum below M                  all units go, no search
    else                             search the first unit at or above M
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kv import KeyRange, KeyValueEngine
from store.consumequeue.rocks_layout import (
    BOUND,
    BOUND_SIZE,
    I64,
    OFFSET_FAMILY,
    UNIT,
    UNITS_FAMILY,
    StoredBound,
    minimum_key_beside,
    parse_maximum_key,
    unit_prefix,
)
from store.consumequeue.search import FoundUnit, first_at_least
from store.offsets import PhysicalOffset, QueueOffset

SHORT_QUEUE: Final = 16
"""The first so many units are read in one go: in a store of very many queues that is all of one."""

_FIRST_KEY: Final = b""


@dataclass(slots=True)
class ExpiredEntries:
    """What one step found: ranges of units that may go, and the minima to store with that."""

    next_key: bytes | None
    """Where the next step goes on; None behind the last queue."""
    queues: int = 0
    """How many queues were looked at."""
    units: int = 0
    """How many units go, at most: holes count."""
    ranges: list[KeyRange] = field(default_factory=list)
    minima: list[tuple[bytes, bytes]] = field(default_factory=list)


class ExpiredEntrySearch:
    """Steps through all queues in key order. Only reads, so it may run on a thread of its own beside the writer.

    What a step found stays right while the queues grow. It does not while topics are deleted or the log is
    truncated: whoever writes it must know that neither happened since (`RocksConsumeQueues.drop`).
    """

    def __init__(self, engine: KeyValueEngine, minimum: PhysicalOffset) -> None:
        self._units = engine.family(UNITS_FAMILY)
        self._offsets = engine.family(OFFSET_FAMILY)
        self._minimum = minimum

    def step(self, key: bytes = _FIRST_KEY, *, rows_max: int = 1_000) -> ExpiredEntries:
        """Look at the next queues, from `key` on: at most `rows_max` rows of bounds."""
        rows = self._offsets.scan(KeyRange(key, None), limit=rows_max)
        found = ExpiredEntries(rows[-1][0] + b"\0" if len(rows) == rows_max else None)
        maxima = [row for row in rows if len(row[1]) == BOUND_SIZE and parse_maximum_key(row[0]) is not None]
        if not maxima:
            return found
        found.queues = len(maxima)
        minimum_keys = [minimum_key_beside(key) for key, _ in maxima]
        minima = self._offsets.get_many(minimum_keys)
        last = _bounds([value for _, value in maxima])
        first = _bounds([value or _NO_MINIMUM for value in minima])
        chosen = np.flatnonzero(first["physical"] < self._minimum)
        for index in chosen.tolist():
            maximum = StoredBound(PhysicalOffset(int(last[index]["physical"])), QueueOffset(int(last[index]["queue"])))
            begin = max(0, int(first[index]["queue"]))
            self._choose(found, maxima[index][0], minimum_keys[index], begin, maximum)
        return found

    def _choose(
        self, found: ExpiredEntries, maximum_key: bytes, minimum_key: bytes, begin: int, maximum: StoredBound
    ) -> None:
        queue = parse_maximum_key(maximum_key)
        assert queue is not None
        prefix = unit_prefix(queue)
        end = maximum.queue_offset + 1
        if maximum.physical_offset < self._minimum:
            kept = StoredBound(self._minimum, QueueOffset(end))
        else:
            first = self._first_kept(prefix, begin, end)
            if first is None:  # its last unit is missing: the maximum says that there is one
                return
            kept = StoredBound(first.physical_offset, first.queue_offset)
        if kept.queue_offset > begin:
            found.ranges.append(KeyRange(prefix + I64.pack(begin), prefix + I64.pack(kept.queue_offset)))
            found.units += kept.queue_offset - begin
        found.minima.append((minimum_key, BOUND.pack(*kept)))

    def _first_kept(self, prefix: bytes, begin: int, end: int) -> FoundUnit | None:
        def unit_at_or_after(start: int, before: int) -> FoundUnit | None:
            pairs = self._units.scan(KeyRange(prefix + I64.pack(start), prefix + I64.pack(before)), limit=1)
            return _found_unit(*pairs[0]) if pairs else None

        keys = KeyRange(prefix + I64.pack(begin), prefix + I64.pack(end))
        for unit in (_found_unit(*pair) for pair in self._units.scan(keys, limit=SHORT_QUEUE)):
            if unit.physical_offset >= self._minimum:
                return unit
            begin = unit.queue_offset + 1
        return first_at_least(unit_at_or_after, begin, end, self._minimum)


_NO_MINIMUM: Final = BOUND.pack(-1, 0)
_BOUND_DTYPE: Final = np.dtype([("physical", ">i8"), ("queue", ">i8")])
assert _BOUND_DTYPE.itemsize == BOUND_SIZE, "dtype and struct disagree"


def _bounds(values: list[bytes]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    return np.frombuffer(b"".join(values), dtype=_BOUND_DTYPE)


def _found_unit(key: bytes, value: bytes) -> FoundUnit:
    return FoundUnit(
        QueueOffset(I64.unpack_from(key, len(key) - I64.size)[0]), PhysicalOffset(UNIT.unpack_from(value)[0])
    )
