"""Store index items in chains: one chain for each slot of a hash table, its newest item first.

A file has a header, then slots, then items. Items are numbered from 1 in the order in which they were added. A slot
holds the number of its newest item; an item holds the number of the next older item of its slot; 0 is the end. An item
of slot s has a hash h with h mod (number of slots) = s. RocketMQ's index files and the files of our own index that are
being filled both have this form; they differ in what surrounds the numbers (`ChainShape`).

Slots hold no information that the items do not hold: `rebuild` makes the slots from the items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.fs import SegmentFile
from quarry_mq.store.index.keys import Hashes

Items = NDArray[np.void]
"""A structured array with at least the fields `hash` and `previous`."""
_NUMBER: Final = np.dtype(">i4")
_BUILT_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ChainShape:
    """The positions of slots and items in a file of chains. Sizes and positions are in bytes."""

    slots: int
    items_max: int
    slots_at: int
    slot_size: int
    """The number is in the first four bytes of a slot."""
    items_at: int
    """The position of item number 0, whether or not the file has space for it."""
    item: np.dtype[np.void]

    @property
    def file_size(self) -> int:
        return self.items_at + (self.items_max + 1) * self.item.itemsize

    def position_of(self, number: int) -> int:
        """Return the position at which an item begins."""
        return self.items_at + number * self.item.itemsize


class ChainFile:
    """The slots and items of one file. One thread adds; others may read items below a count they were given."""

    def __init__(self, file: SegmentFile, shape: ChainShape) -> None:
        """Map the file, which must have the size of the shape."""
        self._file = file
        self.shape = shape
        view = file.view()
        slots: NDArray[np.void] = np.frombuffer(
            view,
            np.dtype({"names": ["newest"], "formats": [_NUMBER], "itemsize": shape.slot_size}),
            count=shape.slots,
            offset=shape.slots_at,
        )
        self._slots: NDArray[np.int32] = slots["newest"]
        first = shape.position_of(1)
        self._items: Items = np.frombuffer(view, shape.item, count=shape.items_max, offset=first)

    def items(self, begin: int, end: int) -> Items:
        """Return the items with the numbers [begin, end), as they are stored. Raises OSError."""
        first = self.shape.position_of(begin)
        self._file.fetch(first, self.shape.position_of(end) - first)
        return self._items[begin - 1 : end - 1]

    def add(self, first: int, items: Items, hashes: Hashes) -> int:
        """Write items with the numbers from `first` on and return how many slots got their first item.

        `hashes` are those of the items; the field `previous` is set here. The file must have space for the items. A
        reader that knows of the earlier items finds all of these through the slots at every moment.
        """
        slots = hashes % self.shape.slots
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        is_first = np.ones(len(slots), np.bool_)
        is_first[1:] = ordered[1:] != ordered[:-1]
        is_last = np.roll(is_first, -1)
        numbers = first + order
        before = np.empty(len(slots), np.int32)
        newest = self._valid(self._slots[ordered[is_first]], first)
        before[1:] = numbers[:-1]
        before[is_first] = newest
        items["previous"][order] = before
        write = self._file.write
        write(self.shape.position_of(first), items.tobytes())
        positions = self.shape.slots_at + ordered[is_last].astype(np.int64) * self.shape.slot_size
        values = numbers[is_last].astype(_NUMBER).view("V4").tolist()
        for position, value in zip(positions.tolist(), values, strict=True):
            write(position, value)
        return int((newest == 0).sum())

    @staticmethod
    def _valid(numbers: NDArray[np.int32], end: int) -> NDArray[np.int32]:
        """Return the numbers from slots, 0 for a number that names no item below `end`: a crash left it."""
        return np.where((numbers > 0) & (numbers < end), numbers, 0)

    def chain(self, hashed: int, end: int) -> Iterator[int]:
        """Yield the numbers of the items below `end` in the slot of a hash, newest first.

        Ends where a number is not below the one before it: an intact file has no such number. Raises OSError.
        """
        slot = hashed % self.shape.slots
        self._file.fetch(self.shape.slots_at + slot * self.shape.slot_size, self.shape.slot_size)
        number = int(self._slots[slot])
        while number >= end:
            # skip items added since
            number = self._before(number) if number <= self.shape.items_max else 0
        while number > 0:
            yield number
            before = self._before(number)
            if before >= number:
                return
            number = before

    def _before(self, number: int) -> int:
        return int(self.items(number, number + 1)["previous"][0])

    def is_right(self, end: int) -> bool:
        """Return whether slots and `previous` match the hashes of the items below `end`, and name no other items.

        Raises OSError.
        """
        items = self.items(1, end)
        slots = items["hash"].astype(np.int32) % self.shape.slots
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        is_first = np.diff(ordered, prepend=-1) != 0
        numbers = (1 + order).astype(np.int32)
        before = np.where(is_first, 0, np.roll(numbers, 1))
        if (items["previous"][order] != before).any():
            return False
        self._file.fetch(self.shape.slots_at, self.shape.slots * self.shape.slot_size)
        newest = np.zeros(self.shape.slots, np.int32)
        newest[ordered] = numbers  # ascending within a slot: the last one stays
        return bool((self._valid(self._slots, end) == newest).all())

    def rebuild(self, end: int) -> int:
        """Rebuild the slots from the items below `end`, whose chains are intact. Returns how many slots are in use."""
        shape = self.shape
        newest = np.zeros(shape.slots, np.int32)
        for begin in range(1, end, _BUILT_AT_ONCE):
            items = self.items(begin, min(end, begin + _BUILT_AT_ONCE))
            slots = items["hash"].astype(np.int64) % shape.slots
            np.maximum.at(newest, slots, np.arange(begin, begin + len(items), dtype=np.int32))
        table = np.zeros(shape.slots, np.dtype({"names": ["n"], "formats": [_NUMBER], "itemsize": shape.slot_size}))
        table["n"] = newest
        self._file.write(shape.slots_at, table.tobytes())
        return int(np.count_nonzero(newest))
