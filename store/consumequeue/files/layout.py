"""Units (entries) of RocketMQ's consume queue files (docs/formats/consume-queue.md).

    consumequeue/<topic>/<queue number>/<20 digits: position of the file's first byte in the queue>

    bytes 0-7    i64  physical offset of the record
    bytes 8-11   i32  size of the whole record
    bytes 12-19  i64  tags code

Big-endian. Unit k lies at byte 20 * k of the queue; its index is its queue offset. A unit of zeros was never
written. A queue whose first offset is above 0 has filler units before its first real unit.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from quarry_mq.store.consumequeue.columns import Integers

UNIT: Final = Struct(">qiq")  # physical offset, record size, tags code
UNIT_SIZE: Final = 20
assert UNIT.size == UNIT_SIZE, "table and struct disagree"

UNIT_DTYPE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert UNIT_DTYPE.itemsize == UNIT_SIZE, "table and dtype disagree"

FILLER_SIZE: Final = 0x7FFFFFFF
"""The size in a filler unit, (0, 2147483647, 0)."""

RECORD_SIZE_MAX: Final = 1 << 30
"""The largest possible record size: that of a segment. A larger size marks filler, perhaps torn by a power cut."""

Units = npt.NDArray[np.void]
Mask = npt.NDArray[np.bool_]


class StoredColumns(Protocol):
    """Entries as columns of equal length."""

    @property
    def physical_offset(self) -> Integers: ...

    @property
    def size(self) -> Integers: ...

    @property
    def tags_code(self) -> Integers: ...


NAME_SIZE_MAX: Final = 255
"""The longest file name in bytes, on all common file systems."""


def is_file_name(topic: str) -> bool:
    """Return whether a topic or light queue with this name can have queue files."""
    return "/" not in topic and topic not in ("", ".", "..") and len(topic.encode()) <= NAME_SIZE_MAX


def pack_units(units: StoredColumns) -> list[bytes]:
    """Return the stored form of each entry."""
    packed = np.empty(len(units.size), UNIT_DTYPE)
    for name in UNIT_DTYPE.fields or ():
        packed[name] = getattr(units, name)
    values: list[bytes] = packed.view(f"V{UNIT_SIZE}").tolist()
    return values


def units_in(view: memoryview) -> Units:
    """View the whole units of a file or of a slice of it; reads nothing yet."""
    return np.frombuffer(view, dtype=UNIT_DTYPE, count=len(view) // UNIT_SIZE)


def written(units: Units) -> Mask:
    """Return which units were ever written, filler included."""
    mask: Mask = (units["size"] > 0) & (units["physical_offset"] >= 0)
    return mask


def real(units: Units) -> Mask:
    """Return which units index a record. Filler does not, though RocketMQ's recovery counts it as if it did."""
    mask: Mask = written(units) & (units["size"] <= RECORD_SIZE_MAX)
    return mask
