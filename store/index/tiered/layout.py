"""The layout of files of the tiered index (docs/formats/key-index.md, section 2).

A file that is being filled, and a sealed one:

    bytes 0-63   header
    then         4 bytes of each slot, then items with `previous`, as `store.index.chains` has them

A compacted one:

    bytes 0-63   header
    then         parts of 4096 bytes: 511 slots, u32 their CRC-32, begun with the part's number, and four zeros
      slot       u32 position of its run in the file, u32 bytes of the run; 0xFFFFFFFF and 0 without items, also in
                 the slots after the last one
    then         the runs: the items of one slot, the newest first, and u32 their CRC-32, begun with the slot's number

Big-endian. An item has the fields `hash` (i32), `time` (u32, ms after the header's begin), then those of its payload.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from quarry_mq.store.index.chains import ChainShape

_HEADER: Final = Struct(">4sHHIIIIqqqqI")
_CRC: Final = Struct(">I")
HEADER_SIZE: Final = 64
assert _HEADER.size + _CRC.size == HEADER_SIZE, "table and struct disagree"

VERSION: Final = 1
SLOT: Final = np.dtype([("position", ">u4"), ("size", ">u4")])
SLOT_SIZE: Final = 8
PART_SIZE: Final = 4096
PART_SLOTS: Final = PART_SIZE // SLOT_SIZE - 1
NO_RUN: Final = 0xFFFF_FFFF
CRC_SIZE: Final = 4
Slots = NDArray[np.void]
"""An array of the dtype SLOT."""
SPAN_MAX_MS: Final = 2**32 - 1
"""The longest time between the first and the last item of one file: 49 days."""
assert SLOT.itemsize == SLOT_SIZE, "table and dtype disagree"


class Kind(Enum):
    """The kind of content after the header; the value is the first bytes of a file."""

    CHAINS = b"QIXC"
    RUNS = b"QIXR"


class HeaderDamaged(ValueError):
    """The first bytes of a file are not a header. The text gives the reason."""


class FileHeader(NamedTuple):
    """The header of a file. `items` is the number of items, `items_max` the number for which the file was made.

    Times are in ms. Places are those of the first and the last item in the indexed source (`IndexShape`). The checksum
    is that of all items of a sealed file, 0 in other files.
    """

    kind: Kind
    payload_size: int
    slots: int
    items_max: int
    items: int
    file_size: int
    begin_ms: int
    end_ms: int
    begin_place: int
    end_place: int
    items_checksum: int

    def pack(self) -> bytes:
        packed = _HEADER.pack(self.kind.value, VERSION, self.payload_size, *self[2:])
        return packed + _CRC.pack(crc32(packed))

    @classmethod
    def unpack(cls, stored: bytes | memoryview) -> FileHeader:
        """Parse the first bytes of a file. Raises HeaderDamaged."""
        stored = bytes(stored[:HEADER_SIZE])
        if len(stored) < HEADER_SIZE:
            raise HeaderDamaged(f"{len(stored)} bytes instead of {HEADER_SIZE}")
        if _CRC.unpack_from(stored, _HEADER.size)[0] != crc32(stored[: _HEADER.size]):
            raise HeaderDamaged("its CRC does not match")
        magic, version, *others = _HEADER.unpack_from(stored)
        if version != VERSION or magic not in {kind.value for kind in Kind}:
            raise HeaderDamaged(f"magic {magic!r}, version {version}")
        return cls(Kind(magic), *others)

    def may_hold(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether some items may have times in [begin_ms, end_ms]."""
        return self.items > 0 and self.begin_ms <= end_ms and self.end_ms >= begin_ms


def parts_of(slots: int) -> int:
    """Return the number of parts that hold this many slots."""
    return -(-slots // PART_SLOTS)


def runs_at(slots: int) -> int:
    """Return the position of the first run."""
    return HEADER_SIZE + parts_of(slots) * PART_SIZE


def pack_slots(slots: Slots) -> bytes:
    """Return the parts that hold the slots."""
    padded: Slots = np.zeros(parts_of(len(slots)) * PART_SLOTS, SLOT)
    padded["position"] = NO_RUN
    padded[: len(slots)] = slots
    table: Slots = np.zeros((parts_of(len(slots)), PART_SLOTS + 1), SLOT)
    table[:, :-1] = padded.reshape(-1, PART_SLOTS)
    table["position"][:, -1] = [crc32(part[:-1].data, number) for number, part in enumerate(table)]
    return table.tobytes()


def unpack_part(number: int, stored: bytes | memoryview) -> Slots:
    """Return the slots of a part. Raises ValueError when they are not those that were written."""
    if len(stored) == PART_SIZE:
        part: Slots = np.frombuffer(stored, SLOT)
        if part[-1].item() == (crc32(part[:-1].data, number), 0):
            return part[:-1]
    raise ValueError(f"part {number} of its slots differs from what was written")


def run_checksum(slot: int, items: bytes | memoryview) -> bytes:
    """Return the checksum at the end of a run. It covers the slot's number, so runs cannot be exchanged."""
    return _CRC.pack(crc32(items, slot))


def chained_item(payload: np.dtype[np.void]) -> np.dtype[np.void]:
    """Return the dtype of an item of a file of chains."""
    return np.dtype([*_fields(payload), ("previous", ">i4")])


def item_of(payload: np.dtype[np.void]) -> np.dtype[np.void]:
    """Return the dtype of an item of a compacted file."""
    return np.dtype(_fields(payload))


def _fields(payload: np.dtype[np.void]) -> list[tuple[str, np.dtype[np.generic]]]:
    assert payload.fields is not None, "a payload has fields"
    own = [("hash", np.dtype(">i4")), ("time", np.dtype(">u4"))]
    return [*own, *((name, payload.fields[name][0]) for name in payload.names or ())]


def chain_shape(slots: int, items_max: int, payload: np.dtype[np.void]) -> ChainShape:
    """Return the positions of slots and items in a file of chains."""
    item = chained_item(payload)
    # items are numbered from 1, and there is no space for an item 0
    items_at = HEADER_SIZE + 4 * slots - item.itemsize
    return ChainShape(slots=slots, items_max=items_max, slots_at=HEADER_SIZE, slot_size=4, items_at=items_at, item=item)
