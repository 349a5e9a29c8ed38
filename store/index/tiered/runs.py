"""Compacted files of the tiered index: the items of a slot lie together as a run, so that one read returns all of them.

Compaction turns chains into runs. Compacted files are read in the same way, local or remote: one small read for a part
of the slots, one for the run of a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import SegmentFile
from quarry_mq.store.index.chains import Items
from quarry_mq.store.index.tiered.chain_file import READ_AT_ONCE, ChainedFile, Found, IndexItems, IndexShape
from quarry_mq.store.index.tiered.layout import (
    CRC_SIZE,
    HEADER_SIZE,
    NO_RUN,
    PART_SIZE,
    PART_SLOTS,
    SLOT,
    FileHeader,
    Kind,
    Slots,
    item_of,
    pack_slots,
    parts_of,
    run_checksum,
    runs_at,
    unpack_part,
)

LoadPart = Callable[[int], Slots]
KeepParts = Callable[[int, LoadPart], Slots]
"""Returns a part of the slots by its number: from memory, or loaded by the function."""


class RangeReader(Protocol):
    """Reads the bytes of one file."""

    @property
    def path(self) -> Path:
        """The path of the file, or its name in an object store."""

    def read(self, position: int, size: int) -> bytes:
        """Read exactly these bytes. Raises OSError if that is impossible."""


class CompactedFile:
    """Read one compacted file. Any thread may call."""

    def __init__(
        self, reader: RangeReader, shape: IndexShape, header: FileHeader, keep: KeepParts | None = None
    ) -> None:
        self._reader = reader
        self._shape = shape
        self._keep = keep
        self.header = header

    def find(self, hashed: int) -> Iterator[Found]:
        """Yield the items with a hash, the newest first. Raises OSError; StoreDamaged for corrupt bytes."""
        slot = hashed % self.header.slots
        number, place = divmod(slot, PART_SLOTS)
        part = self._load(number) if self._keep is None else self._keep(number, self._load)
        position, size = int(part["position"][place]), int(part["size"][place])
        item = item_of(self._shape.payload)
        if (position, size) == (NO_RUN, 0):
            return
        is_run = size > CRC_SIZE and (size - CRC_SIZE) % item.itemsize == 0
        if not is_run or position < runs_at(self.header.slots) or position + size > self.header.file_size:
            raise StoreDamaged(self._reader.path, f"slot {slot} names {size} bytes at {position}")
        run = self._reader.read(position, size)
        if run[-CRC_SIZE:] != run_checksum(slot, run[:-CRC_SIZE]):
            raise StoreDamaged(self._reader.path, f"the {size} bytes at {position} do not belong to slot {slot}")
        items = np.frombuffer(run[:-CRC_SIZE], item)
        names = list(self._shape.payload_names)
        for row in np.flatnonzero(items["hash"] == hashed).tolist():
            yield Found(self.header.begin_ms + int(items[row]["time"]), items[row][names])

    def _load(self, number: int) -> Slots:
        stored = self._reader.read(HEADER_SIZE + number * PART_SIZE, PART_SIZE)
        return _part(self._reader.path, number, stored)


def items_in_runs(path: Path, content: memoryview, header: FileHeader, shape: IndexShape) -> Iterator[IndexItems]:
    """Yield all items of a file, run by run, some hundred thousand at a time. Raises StoreDamaged for its slots."""
    item = item_of(shape.payload)
    slots = slots_in(path, content, header.slots)
    used = np.flatnonzero(slots["size"])
    begins = slots["position"][used].astype(np.int64)
    counts = (slots["size"][used].astype(np.int64) - CRC_SIZE) // item.itemsize
    octets = np.frombuffer(content, np.uint8)
    ends = np.cumsum(counts)
    for part in np.split(np.arange(len(used)), np.flatnonzero(np.diff(ends // READ_AT_ONCE)) + 1):
        within = np.arange(int(counts[part].sum())) - np.repeat(np.cumsum(counts[part]) - counts[part], counts[part])
        positions = np.repeat(begins[part], counts[part]) + within * item.itemsize
        rows = octets[positions[:, np.newaxis] + np.arange(item.itemsize)]
        yield shape.items_of(rows.view(item).reshape(-1), header.begin_ms)


def slots_in(path: Path, content: memoryview, slots: int) -> Slots:
    """Return all slots of a file. Raises StoreDamaged."""
    begins = range(HEADER_SIZE, runs_at(slots), PART_SIZE)
    parts = [_part(path, number, content[begin : begin + PART_SIZE]) for number, begin in enumerate(begins)]
    assert len(parts) == parts_of(slots)
    return np.concatenate(parts)[:slots]


def _part(path: Path, number: int, stored: bytes | memoryview) -> Slots:
    try:
        return unpack_part(number, stored)
    except ValueError as damage:
        raise StoreDamaged(path, str(damage)) from damage


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
