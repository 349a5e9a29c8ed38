"""Entries of queues in RocksDB by their keys (docs/formats/consume-queue.md)."""

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
"""Makes an entry of its fields, without a call in Python: the queue offset, then those of a unit, in its order."""


def entries_of(pairs: Sequence[tuple[bytes, bytes]]) -> list[ConsumeQueueEntry]:
    """The entries of units, which are given by their keys and values. Raises struct.error for what is none."""
    return [
        _new_entry(ConsumeQueueEntry, _unpack_offset(key, len(key) - I64.size) + _unpack_unit(unit))
        for key, unit in pairs
    ]


class RocksEntries:
    """Reads the family of units. Raises `kv.KvError`."""

    def __init__(self, units: Family) -> None:
        self._units = units
        self._entries_of: Callable[[list[tuple[bytes, bytes]]], list[ConsumeQueueEntry]] = entries_of

    def use(self, native: Native) -> None:
        """Make entries with the native part."""
        self._entries_of = native.EntryMaker(ConsumeQueueEntry).make

    def read(self, first_key: bytes, end_key: bytes, count: int) -> list[ConsumeQueueEntry]:
        """At most `count` from `first_key` on, all of them below `end_key`. So many there are, nearly always: only
        where a queue began elsewhere than at 0, or was cut, are there fewer.
        """
        if count <= 0:
            return []
        if count == 1 and (unit := self._units.get(first_key)) is not None:
            return self._entries_of([(first_key, unit)])  # half the price of a scan
        return self._entries_of(self._units.take(KeyRange(first_key, end_key), count))

    def last(self, keys: KeyRange) -> ConsumeQueueEntry | None:
        """The one with the largest key."""
        found = self._entries_of(self._units.scan(keys, limit=1, reverse=True))
        return found[0] if found else None
