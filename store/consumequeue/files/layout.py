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

from quarry_mq.store.consumequeue.search import Integers

ENTRY: Final = Struct(">qiq")  # physical offset, record size, tags code
ENTRY_SIZE: Final = 20
assert ENTRY.size == ENTRY_SIZE, "table and struct disagree"

ENTRY_DTYPE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert ENTRY_DTYPE.itemsize == ENTRY_SIZE, "table and dtype disagree"

FILLER_SIZE: Final = 0x7FFFFFFF
"""The size in a filler unit, (0, 2147483647, 0)."""

RECORD_SIZE_MAX: Final = 1 << 30
"""The largest possible record size: that of a segment. A larger size marks filler, perhaps torn by a power cut."""

Entries = npt.NDArray[np.void]
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


def pack_entries(entries: StoredColumns) -> list[bytes]:
    """Return the stored form of each entry."""
    packed = np.empty(len(entries.size), ENTRY_DTYPE)
    for name in ENTRY_DTYPE.fields or ():
        packed[name] = getattr(entries, name)
    values: list[bytes] = packed.view(f"V{ENTRY_SIZE}").tolist()
    return values


def entries_in(view: memoryview) -> Entries:
    """View the whole units of a file or of a slice of it; reads nothing yet."""
    return np.frombuffer(view, dtype=ENTRY_DTYPE, count=len(view) // ENTRY_SIZE)


def written(entries: Entries) -> Mask:
    """Return which units were ever written, filler included."""
    mask: Mask = (entries["size"] > 0) & (entries["physical_offset"] >= 0)
    return mask


def real(entries: Entries) -> Mask:
    """Return which units index a record. Filler does not, though RocketMQ's recovery counts it as if it did."""
    mask: Mask = written(entries) & (entries["size"] <= RECORD_SIZE_MAX)
    return mask
