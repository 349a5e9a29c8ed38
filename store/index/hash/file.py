"""One of RocketMQ's index files, to read and to add to."""

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
from quarry_mq.store.index.items import KeyItems
from quarry_mq.store.index.keys import Hashes
from quarry_mq.store.offsets import PhysicalOffset

Integers = NDArray[np.int64]
_SECOND_MS: Final = 1000


class HashHit(NamedTuple):
    """An item with the hash that was asked for: perhaps of another key."""

    physical_offset: PhysicalOffset
    stored_ms: int
    """Rounded down to seconds behind the file's begin."""


class HashIndexFile:
    """Items in the order of their records. One thread adds and flushes, others may query.

    A query sees the items that were there when it began.
    """

    def __init__(self, file: SegmentFile, shape: ChainShape) -> None:
        """Raises StoreDamaged when the size is not that of the shape: the file was made with other settings."""
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
        """How many more items fit."""
        return self.shape.items_max + 1 - self._header.next_number

    def add(self, hashes: Hashes, physical_offsets: Integers, stored_ms: Integers) -> None:
        """Add items, in log order: at least one, and not more than there is room for."""
        header = self._header
        is_first = header.next_number <= 1
        begin_ms = int(stored_ms[0]) if is_first else header.begin_ms
        items = np.empty(len(hashes), ITEM)
        items["hash"] = hashes
        items["physical_offset"] = physical_offsets
        items["time_s"] = _seconds(stored_ms - begin_ms)
        if is_first:
            # of a new file RocketMQ counts the first one from what the header was made with
            items["time_s"][0] = _seconds(stored_ms[:1] - header.begin_ms)[0] if header.begin_ms > 0 else 0
        slots_used = self._chains.add(header.next_number, items, hashes)
        # last: who reads by the count finds all of it
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
        """The items with a hash whose records may have been stored in [begin_ms, end_ms], newest first."""
        header = self._header
        for number in self._chains.chain(hashed, header.next_number):
            item = self._chains.items(number, number + 1)[0]
            # the first one's time does not count from the begin, which it is
            stored_ms = header.begin_ms + (_SECOND_MS * int(item["time_s"]) if number > 1 else 0)
            if stored_ms + _SECOND_MS <= begin_ms:
                return  # nor are older ones
            if int(item["hash"]) == hashed and stored_ms <= end_ms:
                yield HashHit(PhysicalOffset(int(item["physical_offset"])), stored_ms)

    def stored(self, begin: int, end: int) -> KeyItems:
        """The items with the numbers [begin, end), from 1, times to the second."""
        items = self._chains.items(begin, end)
        times_s = items["time_s"].astype(np.int64)
        if begin == 1 and len(times_s):
            times_s[0] = 0  # which does not count from the begin, as it is that
        places = items["physical_offset"].astype(np.int64)
        return KeyItems(items["hash"].astype(np.int32), places, self._header.begin_ms + _SECOND_MS * times_s)

    def check(self) -> None:
        """Raises StoreDamaged when slots, items and header do not agree with each other."""
        header = self._header
        items = self._chains.items(1, header.next_number)
        offsets = items["physical_offset"].astype(np.int64)
        is_right = not len(items) or (offsets[0], offsets[-1]) == (header.begin_offset, header.end_offset)
        if not is_right or (np.diff(offsets) < 0).any() or (items["hash"] < 0).any():
            raise StoreDamaged(self.path, "its items are not in the order that its header tells")
        if not self._chains.is_right(header.next_number):
            raise StoreDamaged(self.path, "an item is not in the chain of its hash")

    def go_on_from(self, before: HashHeader) -> None:
        """A new file's header begins with where the file before it ended."""
        self._set(HashHeader(before.end_ms, before.end_ms, before.end_offset, before.end_offset, 0, 1))

    def restore(self, header: HashHeader) -> None:
        """Go back to a header that the file had: the items below its count are whole, all else is made from them."""
        self._set(header._replace(slots_used=self._chains.rebuild(header.next_number)))

    def flush(self) -> None:
        """Make all that was added durable. Raises OSError."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _set(self, header: HashHeader) -> None:
        self._file.write(0, header.pack())
        self._header = header


def _seconds(milliseconds: Integers) -> Integers:
    return np.clip(milliseconds // _SECOND_MS, 0, TIME_S_MAX)
