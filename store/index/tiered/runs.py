"""Compacted files, read: one small read for the slot, one for its run, wherever the file is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from store.errors import StoreDamaged
from store.index.tiered.filling import Found, IndexShape
from store.index.tiered.layout import CRC_SIZE, HEADER_SIZE, NO_RUN, SLOT, SLOT_SIZE, FileHeader, item_of, run_checksum


class RangeReader(Protocol):
    """Where the bytes of one file are read."""

    @property
    def path(self) -> Path:
        """Where the file is, or what it is called in an object store."""

    def read(self, position: int, size: int) -> bytes | memoryview:
        """Exactly these bytes. Raises OSError where they cannot be had."""


class CompactedFile:
    """One file. Any thread."""

    def __init__(self, reader: RangeReader, shape: IndexShape, header: FileHeader) -> None:
        self._reader = reader
        self._shape = shape
        self.header = header

    def find(self, hashed: int) -> Iterator[Found]:
        """The items with a hash, the newest first. Raises OSError; StoreDamaged for bytes that nobody wrote."""
        slot = hashed % self.header.slots
        stored = np.frombuffer(self._reader.read(HEADER_SIZE + slot * SLOT_SIZE, SLOT_SIZE), SLOT)[0]
        position, size = int(stored["position"]), int(stored["size"])
        item = item_of(self._shape.payload)
        if (position, size) == (NO_RUN, 0):
            return
        runs_at = HEADER_SIZE + self.header.slots * SLOT_SIZE
        is_run = size > CRC_SIZE and (size - CRC_SIZE) % item.itemsize == 0
        if not is_run or position < runs_at or position + size > self.header.file_size:
            raise StoreDamaged(self._reader.path, f"slot {slot} names {size} bytes at {position}")
        run = self._reader.read(position, size)
        if run[-CRC_SIZE:] != run_checksum(slot, run[:-CRC_SIZE]):
            raise StoreDamaged(self._reader.path, f"the {size} bytes at {position} are not those of slot {slot}")
        items = np.frombuffer(run[:-CRC_SIZE], item)
        names = list(self._shape.payload_names)
        for row in np.flatnonzero(items["hash"] == hashed).tolist():
            yield Found(self.header.begin_ms + int(items[row]["time"]), items[row][names])
