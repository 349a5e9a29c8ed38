"""Units of one queue as columns, a window of queue offsets at a time, from either kind of queues.

For reading all of a store beside the thread that writes it: nothing is shared with that thread but the disk and the
engine, and nothing is kept from one queue to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from kv import KeyRange, KeyValueEngine
from store.consumequeue.columns import Integers
from store.consumequeue.file_layout import real, units_in
from store.consumequeue.file_queue import FileQueue, FileShape
from store.consumequeue.open_files import OpenFiles
from store.consumequeue.rocks_layout import (
    BOUND_SIZE,
    I64,
    OFFSET_FAMILY,
    UNIT_DTYPE,
    UNIT_SIZE,
    UNITS_FAMILY,
    maximum_key,
    minimum_key,
    parse_bound,
    parse_maximum_key,
    unit_prefix,
)
from store.consumequeue.search import FoundUnit
from store.disk.protocol import Disk
from store.offsets import PhysicalOffset, QueueId, QueueOffset

MAXIMA_PER_READ: Final = 1_000
OPEN_FILES_MAX: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class UnitWindow:
    """The real units of a stretch of queue offsets, ascending. Arrays of shape (n,), int64."""

    queue_offset: Integers
    physical_offset: Integers
    size: Integers
    tags_code: Integers

    def __len__(self) -> int:
        return len(self.queue_offset)

    def select(self, rows: Integers | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> UnitWindow:
        return UnitWindow(self.queue_offset[rows], self.physical_offset[rows], self.size[rows], self.tags_code[rows])


class QueueUnits(Protocol):
    """One queue as it was when it was opened; units that came since may or may not be seen."""

    begin: int
    """No visible unit is below this queue offset."""
    maximum: int
    """The next free queue offset; 0: there is no such queue."""
    last_physical: int
    """Of the last unit; 0 when there is none."""

    def unit_at_or_after(self, start: int, end: int) -> FoundUnit | None:
        """The first unit of [start, end)."""

    def window(self, start: int, end: int) -> UnitWindow:
        """The units of [start, end), none at or above `maximum`."""


class UnitReader(Protocol):
    """All queues of one kind. Use it on one thread. Raises kv.KvError, OSError, StoreDamaged."""

    @property
    def queues(self) -> Callable[[], Iterator[QueueId]]:
        """Lists them in the order of keys in RocksDB."""

    def open(self, queue: QueueId) -> QueueUnits:
        """The queue as it is now. FileNotFoundError here or in what it returns: it is just being removed."""

    def close(self) -> None: ...


class FileUnitReader:
    """Queue files of `directory`."""

    def __init__(self, disk: Disk, directory: Path, shape: FileShape, queues: Callable[[], Iterator[QueueId]]) -> None:
        self._disk = disk
        self._directory = directory
        self._shape = shape._replace(is_shared=True)
        self._files = OpenFiles(disk, open_max=OPEN_FILES_MAX)
        self.queues = queues

    def open(self, queue: QueueId) -> FileQueueUnits:
        # what is open may have been removed and made anew since
        self._files.close()
        return FileQueueUnits(
            FileQueue(self._disk, self._files, self._directory / queue.topic / str(queue.number), self._shape)
        )

    def close(self) -> None:
        self._files.close()


class FileQueueUnits:
    def __init__(self, queue: FileQueue) -> None:
        self._queue = queue
        self.begin = queue.firsts[0] if queue.firsts else 0
        self.maximum = queue.maximum
        self.last_physical = int(queue.last_physical)
        self.unit_at_or_after = queue.unit_at_or_after

    def window(self, start: int, end: int) -> UnitWindow:
        found = []
        for first, data in self._queue.stretches(start, min(end, self.maximum)):
            units = units_in(memoryview(data))
            rows = np.flatnonzero(real(units))
            found.append((first + rows, units[rows]))
        return UnitWindow(
            _joined([offsets for offsets, _ in found]),
            *(_joined([units[name] for _, units in found]) for name in ("physical_offset", "size", "tags_code")),
        )


class RocksUnitReader:
    """Queues in the families of `engine`."""

    def __init__(self, engine: KeyValueEngine) -> None:
        self._units = engine.family(UNITS_FAMILY)
        self._offsets = engine.family(OFFSET_FAMILY)

    def queues(self) -> Iterator[QueueId]:
        start = b""
        while True:
            # page by page: an iterator that lives for hours keeps tables alive that compaction has replaced
            rows = self._offsets.scan(KeyRange(start, None), limit=MAXIMA_PER_READ)
            for key, value in rows:
                if len(value) == BOUND_SIZE and (queue := parse_maximum_key(key)) is not None:
                    yield queue
            if len(rows) < MAXIMA_PER_READ:
                return
            start = rows[-1][0] + b"\0"

    def open(self, queue: QueueId) -> RocksQueueUnits:
        maximum, minimum = self._offsets.get_many([maximum_key(queue), minimum_key(queue)])
        return RocksQueueUnits(self, unit_prefix(queue), maximum, minimum)

    def close(self) -> None:
        """Nothing is kept open."""

    def scan(self, start: bytes, end: bytes, limit: int | None) -> list[tuple[bytes, bytes]]:
        return self._units.scan(KeyRange(start, end), limit=limit)


class RocksQueueUnits:
    def __init__(self, reader: RocksUnitReader, prefix: bytes, maximum: bytes | None, minimum: bytes | None) -> None:
        self._reader = reader
        self._prefix = prefix
        self.begin = self.maximum = self.last_physical = 0
        if maximum is not None:
            last = parse_bound(maximum)
            self.maximum = last.queue_offset + 1
            self.last_physical = int(last.physical_offset)
        if minimum is not None:
            self.begin = max(0, int(parse_bound(minimum).queue_offset))

    def unit_at_or_after(self, start: int, end: int) -> FoundUnit | None:
        pairs = self._scan(start, end, limit=1)
        if not pairs:
            return None
        key, value = pairs[0]
        physical_offset = int.from_bytes(value[: I64.size], signed=True)
        return FoundUnit(QueueOffset(I64.unpack_from(key, len(self._prefix))[0]), PhysicalOffset(physical_offset))

    def window(self, start: int, end: int) -> UnitWindow:
        return self._columns(self._scan(max(start, self.begin), min(end, self.maximum)))

    def _scan(self, start: int, end: int, *, limit: int | None = None) -> list[tuple[bytes, bytes]]:
        if start >= end:
            return []
        return self._reader.scan(self._prefix + I64.pack(start), self._prefix + I64.pack(end), limit)

    def _columns(self, pairs: list[tuple[bytes, bytes]]) -> UnitWindow:
        sizes = set(map(len, (value for _, value in pairs)))
        if sizes - {UNIT_SIZE}:
            pairs = [pair for pair in pairs if len(pair[1]) == UNIT_SIZE]  # the others are no units
        keys = np.frombuffer(
            b"".join([key for key, _ in pairs]), np.dtype([("prefix", f"V{len(self._prefix)}"), ("offset", ">i8")])
        )
        units = np.frombuffer(b"".join([value for _, value in pairs]), UNIT_DTYPE)
        return UnitWindow(
            _joined([keys["offset"]]),
            *(_joined([units[name]]) for name in ("physical_offset", "size", "tags_code")),
        )


def _joined(parts: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> Integers:
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)
