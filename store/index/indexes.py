"""The key indexes of one store."""

from __future__ import annotations

from typing import Final, NamedTuple

from quarry_mq.store.index.hash.index import HashIndex
from quarry_mq.store.index.message_index import MessageIndex
from quarry_mq.store.index.tiered.tiered_index import TieredIndex


class KeyIndexes(NamedTuple):
    """The open indexes. `followers` keep up with the log, and the first one is queried.

    `hash_files` and `tiered` are the files that the followers write, or None.
    """

    followers: tuple[MessageIndex, ...]
    hash_files: HashIndex | None
    tiered: TieredIndex | None

    @property
    def full_until_ms(self) -> int:
        """The last store time in RocketMQ's full, and so durable, index files; 0 when they are not kept."""
        full = () if self.hash_files is None else self.hash_files.full
        return full[-1].header.end_ms if full else 0


NO_INDEXES: Final = KeyIndexes((), None, None)
