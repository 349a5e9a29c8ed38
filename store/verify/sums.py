"""Two collections of units, compared without being sorted or kept.

Records come in the order of the log, units in the order of their queues, and neither fits into memory. So both
are summed: the log is divided into pieces, and each piece has the number of its units and the sum of their hashes,
which does not depend on the order. Pieces with equal sums hold equal units (two different collections collide
with a probability of about 2^-64, by a hash that is keyed anew in each process); the others are looked into.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from struct import Struct
from typing import Final

import numpy as np

from store.consumequeue import ConsumeQueueEntry, UnitColumns
from store.offsets import PhysicalOffset, QueueId

PIECE_BYTES: Final = 16 << 20
"""Of log. A terabyte has 65,536 pieces: 20 MiB of sums."""

_ROW: Final = Struct(">qqiqq")
"""Packed, because Python's hash of an integer is no hash: those of -1 and -2 are equal."""
_ROWS: Final = np.dtype(
    [
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_timestamp_ms", ">i8"),
    ]
)
assert _ROWS.itemsize == _ROW.size, "struct and dtype disagree"


class Sums:
    """Number and sum of hashes of the units of each piece. What is not compared is left out of the hash."""

    def __init__(self, *, with_time: bool) -> None:
        self._with_time = with_time
        self._sums: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, queue: QueueId, entry: ConsumeQueueEntry, *, with_offset: bool = True) -> None:
        offset, physical_offset, size, tags_code, store_timestamp_ms = entry
        row = _ROW.pack(
            offset if with_offset else 0,
            physical_offset,
            size,
            tags_code,
            (store_timestamp_ms or 0) if self._with_time else 0,
        )
        total = self._sums[physical_offset // PIECE_BYTES]
        total[0] += 1
        total[1] += hash((queue, row))

    def add_all(self, units: UnitColumns, *, by_place: Callable[[QueueId], bool]) -> None:
        """`add` each of them; of queues that are `by_place` without its offset."""
        rows = np.zeros(len(units), _ROWS)
        counted = np.array([not by_place(queue) for queue in units.queues], np.bool_)
        rows["queue_offset"] = np.where(counted[units.queue_index], units.queue_offset, 0) if len(units) else 0
        rows["physical_offset"] = units.physical_offset
        rows["size"] = units.size
        rows["tags_code"] = units.tags_code
        if self._with_time:
            rows["store_timestamp_ms"] = units.store_timestamp_ms
        packed, size = rows.tobytes(), _ROW.size
        queues, sums = units.queues, self._sums
        pieces = (units.physical_offset // PIECE_BYTES).tolist()
        for row, (index, piece) in enumerate(zip(units.queue_index.tolist(), pieces, strict=True)):
            total = sums[piece]
            total[0] += 1
            total[1] += hash((queues[index], packed[row * size : (row + 1) * size]))

    def differing(self, other: Sums) -> list[int]:
        """Numbers of the pieces that differ, ascending."""
        pieces = self._sums.keys() | other._sums.keys()
        nothing = [0, 0]
        mine, theirs = self._sums, other._sums
        return sorted(piece for piece in pieces if mine.get(piece, nothing) != theirs.get(piece, nothing))


def piece_of(at: PhysicalOffset) -> int:
    return at // PIECE_BYTES
