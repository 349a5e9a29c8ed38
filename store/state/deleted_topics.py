"""What of a topic was deleted with it: the records stay in the log until their segments expire, and are nobody's.

Family `meta` of `quarry/`, a row for each topic that was deleted while the log had records of it:

Key:   "deleted:" and the topic (UTF-8)
Value: i64, where the log ended then

A topic that is made again has new queues, which tell apart what is read by them. Who finds records otherwise (by their
keys, by where they lie) or expects queues to have them has to ask here.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.state.families import META

_PREFIX: Final = b"deleted:"
_ROWS: Final = KeyRange(_PREFIX, b"deleted;")
_OFFSET: Final = Struct(">q")


class DeletedTopics:
    """The rows. They are written one by one, and durable with the next synchronous write. Any thread."""

    def __init__(self, engine: KeyValueEngine) -> None:
        self._engine = engine
        self._family = engine.family(META)

    def deleted(self, topic: str, end: PhysicalOffset) -> None:
        """Everything of the topic below the end of the log is deleted."""
        batch = self._engine.batch()
        batch.put(self._family, _PREFIX + topic.encode(), _OFFSET.pack(end))
        self._engine.write(batch)

    def below(self, topic: str) -> PhysicalOffset:
        """Records of the topic below the offset were deleted with it; 0: none that the log has."""
        value = self._family.get(_PREFIX + topic.encode())
        return PhysicalOffset(0 if value is None else _OFFSET.unpack(value)[0])

    def settle(self, minimum: PhysicalOffset, end: PhysicalOffset) -> None:
        """The log goes from `minimum` to `end`. What it has lost at its end, new records take the place of."""
        batch = self._engine.batch()
        for key, value in self._family.iterate(_ROWS):
            (below,) = _OFFSET.unpack(value)
            if below <= minimum:
                batch.delete(self._family, key)
            elif below > end:
                batch.put(self._family, key, _OFFSET.pack(end))
        if len(batch):
            self._engine.write(batch)
