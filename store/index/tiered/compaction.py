"""Turn chains into runs: the items of a slot lie together, so that one read returns all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import SegmentFile
from quarry_mq.store.index.chains import Items
from quarry_mq.store.index.tiered.chain_file import ChainedFile, IndexShape
from quarry_mq.store.index.tiered.layout import (
    CRC_SIZE,
    HEADER_SIZE,
    NO_RUN,
    SLOT,
    FileHeader,
    Kind,
    item_of,
    pack_slots,
    run_checksum,
    runs_at,
)
from quarry_mq.store.index.tiered.runs import slots_in

Integers = NDArray[np.int64]
ITEMS_AT_ONCE: Final = 1 << 18
"""The largest number of items copied together, unless one slot has more: some dozen megabytes of memory."""


class Compaction:
    """Makes the compacted form of one sealed file."""

    def __init__(self, source: ChainedFile, shape: IndexShape) -> None:
        self._source = source
        self._item = item_of(shape.payload)
        self._slot_of = source.all_items()["hash"].astype(np.int32) % source.header.slots
        self._counts: Integers = np.bincount(self._slot_of, minlength=source.header.slots)
        self._sizes = self._counts * self._item.itemsize + np.where(self._counts > 0, CRC_SIZE, 0)
        self._runs_at = runs_at(source.header.slots)

    @property
    def file_size(self) -> int:
        """The size of the compacted file in bytes."""
        return int(self._runs_at + self._sizes.sum())

    def write(self, target: SegmentFile) -> FileHeader:
        """Fill a new file of that size; the header last. Not durable yet. Releases the interpreter now and then."""
        slots = np.zeros(len(self._counts), SLOT)
        begins = self._runs_at + np.cumsum(self._sizes) - self._sizes
        slots["position"] = np.where(self._counts > 0, begins, NO_RUN)
        slots["size"] = self._sizes
        target.write(HEADER_SIZE, pack_slots(slots))
        position = self._runs_at
        for first, end in self._portions():
            packed = self._runs(first, end)
            target.write(position, packed)
            position += len(packed)
        header = self._source.header._replace(kind=Kind.RUNS, file_size=target.size)
        target.write(0, header.pack())
        return header

    def check(self, target: SegmentFile) -> None:
        """Compare the file, as it is read back, with the source. Raises StoreDamaged."""
        view = target.view()
        wrong = FileHeader.unpack(view[:HEADER_SIZE]).items != self._source.header.items
        slots = slots_in(target.path, view, len(self._counts))
        wrong |= bool((slots["size"] != self._sizes).any())
        for first, end in self._portions():
            if wrong:
                break
            used = first + np.flatnonzero(self._counts[first:end])
            if len(used):
                begin = int(slots["position"][used[0]])
                wrong = view[begin : begin + int(self._sizes[first:end].sum())] != self._runs(first, end)
        if wrong:
            raise StoreDamaged(target.path, f"its content differs from {self._source.path}")

    def _portions(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of slots, with about `ITEMS_AT_ONCE` items each."""
        portion = (np.cumsum(self._counts) - self._counts) // ITEMS_AT_ONCE
        begins = np.flatnonzero(np.diff(portion, prepend=-1)).tolist()
        yield from zip(begins, [*begins[1:], len(self._counts)], strict=True)

    def _runs(self, first: int, end: int) -> bytes:
        """Return the runs of the slots [first, end), one after the other."""
        rows = np.flatnonzero((self._slot_of >= first) & (self._slot_of < end))[::-1]
        rows = rows[np.argsort(self._slot_of[rows], kind="stable")]
        stored = self._source.all_items()[rows]
        picked: Items = np.empty(len(rows), self._item)
        for name in self._item.names or ():
            picked[name] = stored[name]
        items = picked.tobytes()
        parts: list[bytes] = []
        begin = 0
        used = np.flatnonzero(self._counts[first:end])
        sizes = self._counts[first:end][used] * self._item.itemsize
        for slot, size in zip((first + used).tolist(), sizes.tolist(), strict=True):
            run = items[begin : begin + size]
            parts += (run, run_checksum(slot, run))
            begin += size
        return b"".join(parts)
