"""Select the requested records among those that share a hash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from quarry_mq.store.index.keys import key_text, keys_of
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.record import StoredMessage

TIME_MAX_MS: Final = 2**63 - 1
"""A time later than every store time."""


@dataclass(frozen=True, slots=True)
class WantedMessages:
    """A request for messages of a topic with a key, stored in [begin_ms, end_ms]."""

    topic: str
    key: str
    begin_ms: int
    end_ms: int
    _seen: set[PhysicalOffset] = field(default_factory=set, init=False)

    @property
    def text(self) -> str:
        """The text whose hash an index stores."""
        return key_text(self.topic, self.key)

    def matches(self, record: StoredMessage) -> bool:
        return (
            record.topic == self.topic
            and self.begin_ms <= record.store_timestamp_ms <= self.end_ms
            and self.key in keys_of(record.properties)
        )

    def accept(
        self, at: PhysicalOffset, read: Callable[[PhysicalOffset], StoredMessage | None]
    ) -> StoredMessage | None:
        """Return the record at an offset that an index names, if it matches and was not named before."""
        if at in self._seen:
            return None
        self._seen.add(at)
        record = read(at)
        return record if record is not None and self.matches(record) else None
