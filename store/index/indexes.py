"""The key indexes of one store."""

from __future__ import annotations

from typing import Final, NamedTuple

from quarry_mq.store.index.hash.index import HashIndex
from quarry_mq.store.index.message_index import MessageIndex
from quarry_mq.store.index.tiered.tiered_index import TieredIndex


class KeyIndexes(NamedTuple):
    """`followers` are kept up with the log; the first is asked. The others are what they write, where there are any."""

    followers: tuple[MessageIndex, ...]
    hash_files: HashIndex | None
    tiered: TieredIndex | None

    @property
    def full_until_ms(self) -> int:
        """The last store time in RocketMQ's index files that are full, and so durable; 0 where nobody keeps them up."""
        full = () if self.hash_files is None else self.hash_files.full
        return full[-1].header.end_ms if full else 0


NO_INDEXES: Final = KeyIndexes((), None, None)
