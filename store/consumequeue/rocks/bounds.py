"""Find the min offset of queues in RocksDB: that of the first entry whose record the log still has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quarry_mq.kv import Family, KeyRange
from quarry_mq.store.consumequeue.rocks.known_queues import KnownQueue, KnownQueues
from quarry_mq.store.consumequeue.rocks_layout import I64
from quarry_mq.store.consumequeue.search import FoundUnit, UnitAtOrAfter, first_at_least
from quarry_mq.store.offsets import PhysicalOffset, QueueExtent, QueueOffset

_pack_offset: Final = I64.pack
_unpack_offset: Final = I64.unpack_from


class RocksBounds:
    """Finds the first entries of queues in the family of entries, and caches them in `KnownQueue`.

    `minimum` is the log's min offset. Raises `kv.KvError`.
    """

    def __init__(self, units: Family, known: KnownQueues, minimum: PhysicalOffset) -> None:
        self._units = units
        self._known = known
        self.minimum = minimum

    def is_first_known(self, queue: KnownQueue) -> bool:
        return queue.first is not None and queue.first.physical_offset >= self.minimum

    def first_offset(self, queue: KnownQueue) -> int:
        """Return the current min offset: the first entry whose record the log still has.

        For an empty queue that is the max offset.
        """
        if queue.first is not None and self.is_first_known(queue):
            return queue.first.queue_offset
        if not self._may_have_some(queue):
            return queue.maximum
        begin = self._known.begin_of(queue) if queue.first is None else queue.first.queue_offset
        queue.first = self.search(queue, begin, queue.maximum, self.minimum)
        return queue.maximum if queue.first is None else queue.first.queue_offset

    def extents(self, queues: Sequence[KnownQueue]) -> list[QueueExtent]:
        """Return the extent of each queue; most of those not read before are found with two reads for all."""
        self._look_where_most_begin([each for each in queues if each.first is None and self._may_have_some(each)])
        return [self._extent(each) for each in queues]

    def _extent(self, queue: KnownQueue) -> QueueExtent:
        minimum = QueueOffset(self.first_offset(queue))
        begins_at = queue.first.physical_offset if queue.first is not None and minimum < queue.maximum else None
        return QueueExtent(minimum, QueueOffset(queue.maximum), begins_at)

    def search(self, queue: KnownQueue, begin: int, end: int, at_least: PhysicalOffset) -> FoundUnit | None:
        return first_at_least(self.unit_at_or_after(queue), begin, end, at_least)

    def unit_at_or_after(self, queue: KnownQueue) -> UnitAtOrAfter:
        def unit_at_or_after(start: int, before: int) -> FoundUnit | None:
            keys = KeyRange(queue.prefix + _pack_offset(start), queue.prefix + _pack_offset(before))
            found = self._units.scan(keys, limit=1)
            if not found:
                return None
            key, value = found[0]
            offset, physical_offset = _unpack_offset(key, len(queue.prefix))[0], _unpack_offset(value)[0]
            return FoundUnit(QueueOffset(offset), PhysicalOffset(physical_offset))

        return unit_at_or_after

    def _may_have_some(self, queue: KnownQueue) -> bool:
        return queue.maximum > 0 and queue.last_physical >= self.minimum

    def _look_where_most_begin(self, queues: list[KnownQueue]) -> None:
        """Read the entries at the stored min offset, or at 0. An entry whose record the log still has is the first."""
        if not queues:
            return
        self._known.find_begins(queues)
        begins = [self._known.begin_of(each) for each in queues]
        keys = [each.prefix + _pack_offset(begin) for each, begin in zip(queues, begins, strict=True)]
        for queue, begin, unit in zip(queues, begins, self._units.get_many(keys), strict=True):
            # when RocketMQ truncates, it leaves entries above the max offset
            if unit is not None and begin < queue.maximum and (at := _unpack_offset(unit)[0]) >= self.minimum:
                queue.first = FoundUnit(QueueOffset(begin), PhysicalOffset(at))
