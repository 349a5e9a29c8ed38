"""The module remembers which records were deleted with their topic: they stay in the log until their segments expire.

The rows are in the family `meta` of `quarry/`, one for each topic that was deleted while the log had records of it:

    key    "deleted:" and the topic (UTF-8)
    value  i64, where the log ended then

A topic that is created again has new queues, so reads through queues are correct. Code that finds records in another
way (by their keys, by their offsets), or expects queues to have them, has to ask here.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.state.identity import META

_PREFIX: Final = b"deleted:"
_ROWS: Final = KeyRange(_PREFIX, b"deleted;")
_OFFSET: Final = Struct(">q")


class DeletedTopics:
    """The table holds the rows of deleted topics. They are written one by one, and durable with the next synchronous
    write.

    May be used from any thread.
    """

    def __init__(self, engine: KeyValueEngine) -> None:
        self._engine = engine
        self._family = engine.family(META)

    def deleted(self, topic: str, end: PhysicalOffset) -> None:
        """Note that every record of the topic below the end of the log is deleted."""
        batch = self._engine.batch()
        batch.put(self._family, _PREFIX + topic.encode(), _OFFSET.pack(end))
        self._engine.write(batch)

    def below(self, topic: str) -> PhysicalOffset:
        """Return the offset below which records of the topic were deleted with it; 0 if the log has no such records."""
        value = self._family.get(_PREFIX + topic.encode())
        return PhysicalOffset(0 if value is None else _OFFSET.unpack(value)[0])

    def settle(self, minimum: PhysicalOffset, end: PhysicalOffset) -> None:
        """Adapt the rows to a log from `minimum` to `end`: new records take the place of those lost at its end."""
        batch = self._engine.batch()
        for key, value in self._family.iterate(_ROWS):
            (below,) = _OFFSET.unpack(value)
            if below <= minimum:
                batch.delete(self._family, key)
            elif below > end:
                batch.put(self._family, key, _OFFSET.pack(end))
        if len(batch):
            self._engine.write(batch)
