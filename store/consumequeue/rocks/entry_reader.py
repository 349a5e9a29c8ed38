"""Read entries of consume queues in RocksDB as columns, beside the thread that writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.store.consumequeue.rocks_layout import (
    BOUND_SIZE,
    ENTRIES_FAMILY,
    ENTRY_DTYPE,
    ENTRY_SIZE,
    I64,
    OFFSET_FAMILY,
    entry_prefix,
    maximum_key,
    minimum_key,
    parse_bound,
    parse_maximum_key,
)
from quarry_mq.store.consumequeue.search import FoundEntry
from quarry_mq.store.consumequeue.windows import EntryWindow, joined
from quarry_mq.store.offsets import PhysicalOffset, QueueId, QueueOffset

MAX_OFFSETS_PER_READ: Final = 1_000


class RocksEntryReader:
    """Reads the queues in the families of `engine`."""

    def __init__(self, engine: KeyValueEngine) -> None:
        self._entries = engine.family(ENTRIES_FAMILY)
        self._offsets = engine.family(OFFSET_FAMILY)

    def queues(self) -> Iterator[QueueId]:
        start = b""
        while True:
            # page by page: an iterator that lives for hours keeps alive the tables that compaction has replaced
            rows = self._offsets.scan(KeyRange(start, None), limit=MAX_OFFSETS_PER_READ)
            for key, value in rows:
                if len(value) == BOUND_SIZE and (queue := parse_maximum_key(key)) is not None:
                    yield queue
            if len(rows) < MAX_OFFSETS_PER_READ:
                return
            start = rows[-1][0] + b"\0"

    def open(self, queue: QueueId) -> RocksQueueEntries:
        maximum, minimum = self._offsets.get_many([maximum_key(queue), minimum_key(queue)])
        return RocksQueueEntries(self, entry_prefix(queue), maximum, minimum)

    def close(self) -> None:
        """Do nothing: no resource is kept open."""

    def scan(self, start: bytes, end: bytes, limit: int | None) -> list[tuple[bytes, bytes]]:
        return self._entries.scan(KeyRange(start, end), limit=limit)


class RocksQueueEntries:
    def __init__(self, reader: RocksEntryReader, prefix: bytes, maximum: bytes | None, minimum: bytes | None) -> None:
        self._reader = reader
        self._prefix = prefix
        self.begin = self.maximum = self.last_physical = 0
        if maximum is not None:
            last = parse_bound(maximum)
            self.maximum = last.queue_offset + 1
            self.last_physical = int(last.physical_offset)
        if minimum is not None:
            self.begin = max(0, int(parse_bound(minimum).queue_offset))

    def entry_at_or_after(self, start: int, end: int) -> FoundEntry | None:
        pairs = self._scan(start, end, limit=1)
        if not pairs:
            return None
        key, value = pairs[0]
        physical_offset = int.from_bytes(value[: I64.size], signed=True)
        return FoundEntry(QueueOffset(I64.unpack_from(key, len(self._prefix))[0]), PhysicalOffset(physical_offset))

    def window(self, start: int, end: int) -> EntryWindow:
        return self._columns(self._scan(max(start, self.begin), min(end, self.maximum)))

    def _scan(self, start: int, end: int, *, limit: int | None = None) -> list[tuple[bytes, bytes]]:
        if start >= end:
            return []
        return self._reader.scan(self._prefix + I64.pack(start), self._prefix + I64.pack(end), limit)

    def _columns(self, pairs: list[tuple[bytes, bytes]]) -> EntryWindow:
        sizes = set(map(len, (value for _, value in pairs)))
        if sizes - {ENTRY_SIZE}:
            pairs = [pair for pair in pairs if len(pair[1]) == ENTRY_SIZE]  # rows of another size are not entries
        keys = np.frombuffer(
            b"".join([key for key, _ in pairs]), np.dtype([("prefix", f"V{len(self._prefix)}"), ("offset", ">i8")])
        )
        entries = np.frombuffer(b"".join([value for _, value in pairs]), ENTRY_DTYPE)
        return EntryWindow(
            joined([keys["offset"]]),
            *(joined([entries[name]]) for name in ("physical_offset", "size", "tags_code")),
        )
