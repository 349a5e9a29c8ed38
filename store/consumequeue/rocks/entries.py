"""Read the entries of queues in RocksDB by their keys (docs/formats/consume-queue.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from quarry_mq.kv import Family, KeyRange
from quarry_mq.store.consumequeue.rocks_layout import I64, UNIT
from quarry_mq.store.message import ConsumeQueueEntry
from quarry_mq.store.native import Native

_unpack_unit: Final = UNIT.unpack
_unpack_offset: Final = I64.unpack_from
_new_entry: Final[Callable[[type[ConsumeQueueEntry], tuple[int, ...]], ConsumeQueueEntry]] = tuple.__new__
"""Makes an entry from its fields without a Python call: the queue offset, then the stored fields in stored order."""


def entries_of(pairs: Sequence[tuple[bytes, bytes]]) -> list[ConsumeQueueEntry]:
    """Return the entries with these keys and values. Raises struct.error for a row that is not an entry."""
    return [
        _new_entry(ConsumeQueueEntry, _unpack_offset(key, len(key) - I64.size) + _unpack_unit(unit))
        for key, unit in pairs
    ]


class RocksEntries:
    """Reads entries from their family. Raises `kv.KvError`."""

    def __init__(self, units: Family) -> None:
        self._units = units
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
        if count == 1 and (unit := self._units.get(first_key)) is not None:
            return self._entries_of([(first_key, unit)])  # half the price of a scan
        return self._entries_of(self._units.take(KeyRange(first_key, end_key), count))

    def last(self, keys: KeyRange) -> ConsumeQueueEntry | None:
        """Return the entry with the largest key in the range; None when there is none."""
        found = self._entries_of(self._units.scan(keys, limit=1, reverse=True))
        return found[0] if found else None
