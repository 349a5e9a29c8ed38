"""Read one of RocketMQ's index files, and add to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import SegmentFile
from quarry_mq.store.index.chains import ChainFile, ChainShape
from quarry_mq.store.index.hash.layout import HEADER_SIZE, ITEM, TIME_S_MAX, HashHeader
from quarry_mq.store.index.keys import Hashes, KeyItems
from quarry_mq.store.message import PhysicalOffset

Integers = NDArray[np.int64]
_SECOND_MS: Final = 1000


class HashHit(NamedTuple):
    """An item with the requested hash: perhaps of another key."""

    physical_offset: PhysicalOffset
    stored_ms: int
    """The store time, rounded down to whole seconds after the begin of the file."""


class HashIndexFile:
    """Items in the order of their records. One thread adds and flushes, others may query.

    A query sees the items that were there when it began.
    """

    def __init__(self, file: SegmentFile, shape: ChainShape) -> None:
        """Open the file. Raises StoreDamaged when its size is not the shape's: it was made with other settings."""
        if file.size != shape.file_size:
            raise StoreDamaged(
                file.path,
                f"{file.size} bytes, but {shape.slots} slots and {shape.items_max + 1} items take {shape.file_size}",
            )
        self._file = file
        self._chains = ChainFile(file, shape)
        self._header = HashHeader.unpack(file.view()[:HEADER_SIZE])
        self.shape = shape

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def header(self) -> HashHeader:
        return self._header

    @property
    def room(self) -> int:
        """The number of further items that fit."""
        return self.shape.items_max + 1 - self._header.next_number

    def add(self, hashes: Hashes, physical_offsets: Integers, stored_ms: Integers) -> None:
        """Add items, in log order: at least one, and not more than `room`."""
        header = self._header
        is_first = header.next_number <= 1
        begin_ms = int(stored_ms[0]) if is_first else header.begin_ms
        items = np.empty(len(hashes), ITEM)
        items["hash"] = hashes
        items["physical_offset"] = physical_offsets
        items["time_s"] = _seconds(stored_ms - begin_ms)
        if is_first:
            # in a new file RocketMQ counts the time of the first item from the header's initial begin
            items["time_s"][0] = _seconds(stored_ms[:1] - header.begin_ms)[0] if header.begin_ms > 0 else 0
        slots_used = self._chains.add(header.next_number, items, hashes)
        # last: a reader that goes by the count finds all of the items
        self._set(
            HashHeader(
                begin_ms=begin_ms,
                end_ms=int(stored_ms[-1]),
                begin_offset=int(physical_offsets[0]) if is_first else header.begin_offset,
                end_offset=int(physical_offsets[-1]),
                slots_used=header.slots_used + slots_used,
                next_number=header.next_number + len(hashes),
            )
        )

    def hits(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[HashHit]:
        """Yield the items with a hash whose records may have been stored in [begin_ms, end_ms], newest first."""
        header = self._header
        for number in self._chains.chain(hashed, header.next_number):
            item = self._chains.items(number, number + 1)[0]
            # the first item's stored time does not count from the begin: its time is the begin itself
            stored_ms = header.begin_ms + (_SECOND_MS * int(item["time_s"]) if number > 1 else 0)
            if stored_ms + _SECOND_MS <= begin_ms:
                return  # older items are out of range, too
            if int(item["hash"]) == hashed and stored_ms <= end_ms:
                yield HashHit(PhysicalOffset(int(item["physical_offset"])), stored_ms)

    def stored(self, begin: int, end: int) -> KeyItems:
        """Return the items with the numbers [begin, end), from 1, with times to the second."""
        items = self._chains.items(begin, end)
        times_s = items["time_s"].astype(np.int64)
        if begin == 1 and len(times_s):
            times_s[0] = 0  # the first item's time is the begin itself, see `hits`
        places = items["physical_offset"].astype(np.int64)
        return KeyItems(items["hash"].astype(np.int32), places, self._header.begin_ms + _SECOND_MS * times_s)

    def check(self) -> None:
        """Raise StoreDamaged when slots, items and header do not agree with each other."""
        header = self._header
        items = self._chains.items(1, header.next_number)
        offsets = items["physical_offset"].astype(np.int64)
        is_right = not len(items) or (offsets[0], offsets[-1]) == (header.begin_offset, header.end_offset)
        if not is_right or (np.diff(offsets) < 0).any() or (items["hash"] < 0).any():
            raise StoreDamaged(self.path, "its items are not in the order that its header states")
        if not self._chains.is_right(header.next_number):
            raise StoreDamaged(self.path, "an item is missing in the chain of its hash")

    def go_on_from(self, before: HashHeader) -> None:
        """Set the header of a new file, which begins where the file before it ended."""
        self._set(HashHeader(before.end_ms, before.end_ms, before.end_offset, before.end_offset, 0, 1))

    def restore(self, header: HashHeader) -> None:
        """Return to an earlier header of the file: items below its count are intact, the rest is made from them."""
        self._set(header._replace(slots_used=self._chains.rebuild(header.next_number)))

    def flush(self) -> None:
        """Make all added items durable. Raises OSError."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _set(self, header: HashHeader) -> None:
        self._file.write(0, header.pack())
        self._header = header


def _seconds(milliseconds: Integers) -> Integers:
    return np.clip(milliseconds // _SECOND_MS, 0, TIME_S_MAX)
