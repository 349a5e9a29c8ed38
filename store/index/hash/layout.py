"""The layout of RocketMQ's index files (docs/formats/key-index.md, section 1).

    index/<17 digits: local time of its creation>

    bytes 0-7    i64  store time of the first item, ms
    bytes 8-15   i64  store time of the last item, ms
    bytes 16-23  i64  physical offset of the first item
    bytes 24-31  i64  physical offset of the last item
    bytes 32-35  i32  slots in use
    bytes 36-39  i32  number of items + 1
    then         i32  of each slot, the number of its newest item
    then         20 bytes of each item; that with number 0 is never used

Big-endian. The file contains neither the number of slots nor that of items: both are settings, and the file size must
match them.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.index.chains import ChainShape

_HEADER: Final = Struct(">qqqqii")
HEADER_SIZE: Final = 40
assert _HEADER.size == HEADER_SIZE, "table and struct disagree"

SLOT_SIZE: Final = 4
ITEM: Final = np.dtype([("hash", ">i4"), ("physical_offset", ">i8"), ("time_s", ">i4"), ("previous", ">i4")])
ITEM_SIZE: Final = 20
assert ITEM.itemsize == ITEM_SIZE, "table and dtype disagree"

TIME_S_MAX: Final = 2**31 - 1


class HashHeader(NamedTuple):
    """The header of an index file. Times in ms. `next_number` is that of the next item: the number of items + 1."""

    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    slots_used: int
    next_number: int

    @classmethod
    def unpack(cls, stored: bytes | memoryview) -> HashHeader:
        """Parse the first bytes of a file. The first item has the number 1, whatever is stored."""
        found = cls._make(_HEADER.unpack_from(stored))
        return found._replace(next_number=max(found.next_number, 1))

    def may_hold(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether some of the file's records may have been stored in [begin_ms, end_ms]."""
        return self.next_number > 1 and self.begin_ms <= end_ms and self.end_ms >= begin_ms

    def pack(self) -> bytes:
        return _HEADER.pack(*self)


def shape_of(slots: int, items: int) -> ChainShape:
    """Return the shape of a file with these numbers of slots and items. `items` includes the unused item 0."""
    return ChainShape(
        slots=slots,
        items_max=items - 1,
        slots_at=HEADER_SIZE,
        slot_size=SLOT_SIZE,
        items_at=HEADER_SIZE + slots * SLOT_SIZE,
        item=ITEM,
    )


_OFFSET_AT: Final = 4
"""The position of the physical offset in an item."""
_SLOTS_APART: Final = ITEM_SIZE // SLOT_SIZE
"""The number of slots that fit in the space of one item."""


def find_shape(file: memoryview, likely: ChainShape) -> ChainShape | None:
    """Return the one shape in which the file's items match its header; `likely` is tried first.

    None when no shape or more than one matches, or the file has no item. Reads most of a file that is not `likely`.
    """
    header = HashHeader.unpack(file[:HEADER_SIZE])
    if header.next_number <= 1:
        return likely if len(file) == likely.file_size else None
    if len(file) == likely.file_size and header.next_number <= likely.items_max + 1 and _agrees(file, header, likely):
        return likely
    found = [shape for shape in _with_both_ends(file, header) if _agrees(file, header, shape)]
    return found[0] if len(found) == 1 else None


def _with_both_ends(file: memoryview, header: HashHeader) -> list[ChainShape]:
    """Return the shapes in which the first and the last item have the physical offsets in the header."""
    words, odd = divmod(len(file) - HEADER_SIZE, SLOT_SIZE)
    # slots and items share the words: the fewest items that the header allows leave the most slots
    slots_max = words - _SLOTS_APART * header.next_number
    count = -(-slots_max // _SLOTS_APART)
    if odd or count <= 0:
        return []
    slots_min = slots_max - (count - 1) * _SLOTS_APART
    both = _offsets(file, slots_min, 1, count) == header.begin_offset
    both &= _offsets(file, slots_min, header.next_number - 1, count) == header.end_offset
    return [
        shape_of(slots, (words - slots) // _SLOTS_APART)
        for slots in (slots_min + np.flatnonzero(both) * _SLOTS_APART).tolist()
    ]


def _offsets(file: memoryview, slots_min: int, number: int, count: int) -> NDArray[np.int64]:
    """Return the physical offset of an item for `slots_min` slots, 5 more, 10 more and so on: shape (count,)."""
    first = HEADER_SIZE + slots_min * SLOT_SIZE + number * ITEM_SIZE + _OFFSET_AT
    return np.ndarray((count,), ">i8", file, first, strides=(ITEM_SIZE,))


def _agrees(file: memoryview, header: HashHeader, shape: ChainShape) -> bool:
    """Return whether the number of slots in use and the first and last item match the header."""
    slots = np.frombuffer(file, ">i4", shape.slots, HEADER_SIZE)
    items = np.frombuffer(file, shape.item, header.next_number - 1, shape.position_of(1))
    return (
        int(items[0]["physical_offset"]) == header.begin_offset
        and int(items[-1]["physical_offset"]) == header.end_offset
        and int(np.count_nonzero(slots)) == header.slots_used
        and bool((slots[items["hash"][-1:] % shape.slots] == header.next_number - 1).all())
    )
