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
