"""The module remembers which queues were deleted, and where the log ended then: the log has no record of a deletion.

The records of a deleted queue stay in the log until their segments expire. With these rows the queues are a function of
the log and of `quarry/`: a record below a deletion of its queue has no entry there. The rows are in the family `meta`:

    key    "deleted:" and the topic (UTF-8)
    value  i64, where the log ended when the topic was deleted last

    key    "removed:", i64, where the log ended, and the name of a light queue (UTF-8)
    value  empty

A topic has one row, which is durable before its queues are deleted. Light queues may be a million, so their rows are in
the order of the log: a start reads the newest ones, and those of expired segments are removed by one range delete. They
become durable before the removal does, and before the light queue gets another message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from threading import Lock
from typing import Final, NamedTuple

from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.kv.keys import prefix_end, prefix_range
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.state.identity import META

_TOPIC: Final = b"deleted:"
_LIGHT: Final = b"removed:"
_OFFSET: Final = Struct(">q")
_NAME: Final = len(_LIGHT) + _OFFSET.size


class Deletion(NamedTuple):
    """A deletion is of a topic or a light queue, of all records below an offset."""

    name: str
    below: PhysicalOffset


class Deletions:
    """The table holds the rows of deleted topics and of removed light queues. May be used from any thread.

    A deletion "at" an offset deleted all records of its queue below this offset and none at or above it.
    """

    def __init__(self, engine: KeyValueEngine) -> None:
        self._engine = engine
        self._family = engine.family(META)
        self._lock = Lock()
        """Held while the row of a topic is replaced: `drop_below` must not drop the note on a deletion of now."""
        self._unsettled: dict[str, bytes] = {}
        """The rows of light queues that were removed since `settle`, by name."""

    # -- writing

    def topic_deleted(self, topic: str, end: PhysicalOffset) -> None:
        """Note durably that a topic is deleted at the end of the log; 0 takes the note back."""
        batch = self._engine.batch()
        key = _TOPIC + topic.encode()
        if end:
            batch.put(self._family, key, _OFFSET.pack(end))
        else:
            batch.delete(self._family, key)
        with self._lock:
            self._engine.write(batch, sync=True)

    def light_queues_removed(self, names: Iterable[str], end: PhysicalOffset) -> None:
        """Note that light queues are removed at the end of the log; `settle` makes the notes durable."""
        rows = {name: _LIGHT + _OFFSET.pack(end) + name.encode() for name in names}
        batch = self._engine.batch()
        batch.put_all(self._family, [(row, b"") for row in rows.values()])
        with self._lock:
            self._engine.write(batch)
            self._unsettled |= rows

    def settle(self, name: str | None = None) -> None:
        """Make the notes on removed light queues durable; with a name, only if this queue has such a note.

        A power cut that takes a note brings the light queue back. No newer message may be among its messages then, and
        its removal may not be durable without the note.
        """
        with self._lock:
            if self._unsettled if name is None else name in self._unsettled:
                batch = self._engine.batch()
                batch.put(self._family, next(iter(self._unsettled.values())), b"")
                self._engine.write(batch, sync=True)  # what was written before becomes durable with it
                self._unsettled.clear()

    def drop_below(self, minimum: PhysicalOffset) -> None:
        """Drop the notes on deletions below the beginning of the log: it has no deleted records of these any more.

        Deletions at the beginning stay: their queues may not be flushed since.
        """
        with self._lock:
            batch = self._engine.batch()
            for topic, below in self.topics().items():
                if below < minimum:
                    batch.delete(self._family, _TOPIC + topic.encode())
            expired = KeyRange(_LIGHT, _LIGHT + _OFFSET.pack(minimum))
            if self._family.scan(expired, limit=1):
                batch.delete_range(self._family, expired)
            if len(batch):
                self._engine.write(batch)

    def lower_to(self, end: PhysicalOffset) -> None:
        """Move deletions above the end of the log to the end: new records take the place of the records lost there."""
        batch = self._engine.batch()
        for topic, below in self.topics().items():
            if below > end:
                batch.put(self._family, _TOPIC + topic.encode(), _OFFSET.pack(end))
        for key, _ in self._light_rows(PhysicalOffset(end + 1)):
            batch.delete(self._family, key)
            batch.put(self._family, _LIGHT + _OFFSET.pack(end) + key[_NAME:], b"")
        if len(batch):
            self._engine.write(batch)

    # -- reading

    @staticmethod
    def is_row(key: bytes) -> bool:
        """Return whether a row of `meta` is about a deletion."""
        return key.startswith((_TOPIC, _LIGHT))

    @staticmethod
    def read_row(key: bytes, value: bytes) -> Deletion | None:
        """Return what a row of `meta` says about a deletion; None for other rows."""
        if key.startswith(_TOPIC):
            return Deletion(key[len(_TOPIC) :].decode(), PhysicalOffset(_OFFSET.unpack(value)[0]))
        if key.startswith(_LIGHT):
            return Deletion(key[_NAME:].decode(), PhysicalOffset(_OFFSET.unpack_from(key, len(_LIGHT))[0]))
        return None

    def topic_deleted_at(self, topic: str) -> PhysicalOffset:
        """Return where the topic was deleted last; 0 if the log has no records from before a deletion."""
        value = self._family.get(_TOPIC + topic.encode())
        return PhysicalOffset(0 if value is None else _OFFSET.unpack(value)[0])

    def topics(self) -> dict[str, PhysicalOffset]:
        """Return where each deleted topic was deleted last."""
        return {
            key[len(_TOPIC) :].decode(): PhysicalOffset(_OFFSET.unpack(value)[0])
            for key, value in self._family.iterate(prefix_range(_TOPIC))
        }

    def light_queues_since(self, at: PhysicalOffset) -> dict[str, PhysicalOffset]:
        """Return where each light queue was removed last, of those removed at or above an offset."""
        return {
            key[_NAME:].decode(): PhysicalOffset(_OFFSET.unpack_from(key, len(_LIGHT))[0])
            for key, _ in self._light_rows(at)
        }

    def _light_rows(self, at: PhysicalOffset) -> Iterator[tuple[bytes, bytes]]:
        return self._family.iterate(KeyRange(_LIGHT + _OFFSET.pack(at), prefix_end(_LIGHT)))

    def since(self, at: PhysicalOffset) -> set[str]:
        """Return the topics and light queues that were deleted at or above an offset."""
        return {*self.light_queues_since(at), *(topic for topic, below in self.topics().items() if below >= at)}
