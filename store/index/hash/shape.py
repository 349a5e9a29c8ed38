"""Find out how many slots an index file has: RocketMQ does not store it, and reads a file by its settings."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.index.chains import ChainShape
from quarry_mq.store.index.hash.layout import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE, HashHeader, shape_of

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
