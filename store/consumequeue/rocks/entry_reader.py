"""Read the entries of queues in RocksDB by their keys (docs/formats/consume-queue.md), one by one or as columns.

Columns are read beside the thread that writes the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from quarry_mq.kv import Family, KeyRange, KeyValueEngine
from quarry_mq.store.consumequeue.rocks_layout import (
    BOUND_SIZE,
    ENTRIES_FAMILY,
    ENTRY,
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
from quarry_mq.store.consumequeue.search import EntryWindow, FoundEntry, joined
from quarry_mq.store.message import ConsumeQueueEntry, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.native import Native

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
        return RocksQueueEntries(self._entries, entry_prefix(queue), maximum, minimum)

    def close(self) -> None:
        """Do nothing: no resource is kept open."""


class RocksQueueEntries:
    def __init__(self, entries: Family, prefix: bytes, maximum: bytes | None, minimum: bytes | None) -> None:
        self._entries = entries
        self._prefix = prefix
        self.begin = self.maximum = self.last_physical = 0
        if maximum is not None:
            last = parse_bound(maximum)
            self.maximum = last.queue_offset + 1
            self.last_physical = int(last.physical_offset)
        if minimum is not None:
            self.begin = max(0, int(parse_bound(minimum).queue_offset))

    def entry_at_or_after(self, start: int, end: int) -> FoundEntry | None:
        pairs = self._entries.scan(self._keys(start, end), limit=1)
        if not pairs:
            return None
        key, value = pairs[0]
        physical_offset = int.from_bytes(value[: I64.size], signed=True)
        return FoundEntry(QueueOffset(I64.unpack_from(key, len(self._prefix))[0]), PhysicalOffset(physical_offset))

    def window(self, start: int, end: int) -> EntryWindow:
        start, end = max(start, self.begin), min(end, self.maximum)
        # nearly always every offset has an entry; a queue with holes is read twice
        return self._columns(self._entries.take(self._keys(start, end), end - start) if start < end else [])

    def _keys(self, start: int, end: int) -> KeyRange:
        return KeyRange(self._prefix + I64.pack(start), self._prefix + I64.pack(end))

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


_unpack_entry: Final = ENTRY.unpack
_unpack_offset: Final = I64.unpack_from
_new_entry: Final[Callable[[type[ConsumeQueueEntry], tuple[int, ...]], ConsumeQueueEntry]] = tuple.__new__
"""Makes an entry from its fields without a Python call: the queue offset, then the stored fields in stored order."""


def entries_of(pairs: Sequence[tuple[bytes, bytes]]) -> list[ConsumeQueueEntry]:
    """Return the entries with these keys and values. Raises struct.error for a row that is not an entry."""
    return [
        _new_entry(ConsumeQueueEntry, _unpack_offset(key, len(key) - I64.size) + _unpack_entry(entry))
        for key, entry in pairs
    ]


class RocksEntries:
    """Reads entries from their family. Raises `kv.KvError`."""

    def __init__(self, entries: Family) -> None:
        self._entries = entries
        self._entries_of: Callable[[list[tuple[bytes, bytes]]], list[ConsumeQueueEntry]] = entries_of

    def use(self, native: Native) -> None:
        """Make entries with the native part."""
        self._entries_of = native.EntryMaker(ConsumeQueueEntry).make

    def read(self, first_key: bytes, end_key: bytes, count: int) -> list[ConsumeQueueEntry]:
        """Return at most `count` entries from `first_key` on, all of them below `end_key`.

        There are nearly always `count` of them. There are fewer only where a queue does not begin at 0, or was
        truncated.
        """
        if count <= 0:
            return []
        if count == 1 and (entry := self._entries.get(first_key)) is not None:
            return self._entries_of([(first_key, entry)])  # half the price of a scan
        return self._entries_of(self._entries.take(KeyRange(first_key, end_key), count))

    def last(self, keys: KeyRange) -> ConsumeQueueEntry | None:
        """Return the entry with the largest key in the range; None when there is none."""
        found = self._entries_of(self._entries.scan(keys, limit=1, reverse=True))
        return found[0] if found else None
