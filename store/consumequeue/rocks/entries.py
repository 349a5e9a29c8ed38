"""Read the entries of queues in RocksDB by their keys (docs/formats/consume-queue.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from quarry_mq.kv import Family, KeyRange
from quarry_mq.store.consumequeue.rocks_layout import ENTRY, I64
from quarry_mq.store.message import ConsumeQueueEntry
from quarry_mq.store.native import Native

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
