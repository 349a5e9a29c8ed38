"""The committed offsets of consumer groups: the next queue offset of each (group, topic, queue).

Keys (docs/formats/metadata.md §4), `counted` being a u32 length and the bytes:

    0x01 counted(group) counted(topic) u32(queue)   -> i64 next offset, big endian
    0x02 counted(topic) counted(group)              -> nothing: the group has offsets of the topic

The second kind is an index: deleting a topic touches its own groups and not the millions of others. An index
row may outlive its offsets; it then leads to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from struct import Struct
from typing import Final

from quarry_mq.kv import KeyRange, KeyValueEngine, WriteBatch
from quarry_mq.kv.keys import counted, prefix_range, read_counted, read_u32, u32
from quarry_mq.protocol.names import LIGHT_QUEUE_PREFIX, is_light_queue
from quarry_mq.store.message import QueueId, QueueOffset

OFFSETS_FAMILY: Final = "offsets"

OFFSET_KEY: Final = b"\x01"
INDEX_KEY: Final = b"\x02"
VALUE: Final = Struct(">q")

PAGE_ROWS: Final = 1024
INDEXED_MAX: Final = 65_536
"""Pairs of group and topic cached as indexed (about 20 MiB). An evicted one costs a small row when next staged."""


class ConsumerOffsetTable:
    """The next queue offsets, in the family `offsets`.

    Offsets are staged into batches of the caller, who writes them in the order in which they were staged,
    each before the engine is closed. Reads see what was written. One thread stages.
    """

    def __init__(self, engine: KeyValueEngine) -> None:
        self._family = engine.family(OFFSETS_FAMILY)
        self._indexed: dict[str, set[str]] = {}  # groups by topic, oldest first
        self._indexed_count = 0

    def get(self, group: str, queue: QueueId) -> QueueOffset | None:
        """Return the group's next offset of the queue; None when it has never committed one. Never creates a row."""
        value = self._family.get(_offset_key(group, queue))
        return None if value is None else QueueOffset(VALUE.unpack(value)[0])

    def get_all(self, group: str, topic: str, numbers: Sequence[int]) -> list[QueueOffset | None]:
        """Return what `get` returns for some queues of a topic, read together."""
        prefix = _group_prefix(group) + counted(topic.encode())
        values = self._family.get_many([prefix + u32(number) for number in numbers])
        return [None if value is None else QueueOffset(VALUE.unpack(value)[0]) for value in values]

    def reads(self, group: str, topic: str) -> bool:
        """Return whether the group has an offset of any queue of the topic, including staged ones."""
        if group in self._indexed.get(topic, ()):
            return True
        return bool(self._family.scan(prefix_range(_group_prefix(group) + counted(topic.encode())), limit=1))

    def stage(self, batch: WriteBatch, group: str, queue: QueueId, offset: QueueOffset) -> None:
        """Add the new offset to the batch."""
        if group not in self._indexed.get(queue.topic, ()):
            batch.put(self._family, _index_key(queue.topic, group), b"")
            self._indexed.setdefault(queue.topic, set()).add(group)
            self._indexed_count += 1
            while self._indexed_count > INDEXED_MAX:
                self._evict(next(iter(self._indexed)))
        batch.put(self._family, _offset_key(group, queue), VALUE.pack(offset))

    def stage_index_again(self) -> None:
        """Stage index rows again after batches were lost: each goes into the next batch with an offset of its pair."""
        self._indexed.clear()
        self._indexed_count = 0

    def of_group(self, group: str) -> Iterator[tuple[QueueId, QueueOffset]]:
        """Yield all offsets of a group, by topic (shorter names first) and queue, read a page at a time."""
        prefix = _group_prefix(group)
        for key, value in self._rows(prefix):
            yield _queue_in(key, len(prefix)), QueueOffset(VALUE.unpack(value)[0])

    def page_of(self, group: str, after: QueueId | None = None, limit: int = PAGE_ROWS) -> list[QueueId]:
        """Return the next queues in which the group has an offset, in the order of `of_group`, after `after` if set."""
        prefix = _group_prefix(group)
        keys = prefix_range(prefix)
        if after is not None:
            keys = KeyRange(_offset_key(group, after) + b"\0", keys.end)
        return [_queue_in(key, len(prefix)) for key, _ in self._family.scan(keys, limit=limit)]

    def topics_of(self, group: str, *, light_queues: bool = True) -> Iterator[str]:
        """Yield the topics in which the group has an offset, shorter names first.

        Costs one search for each topic, not a step per queue. Without light queues, of which a group may have a
        million, it costs no step for each of those either.
        """
        prefix = _group_prefix(group)
        keys = prefix_range(prefix)
        while rows := self._family.scan(keys, limit=1):
            key = rows[0][0]
            topic, at = read_counted(key, len(prefix))
            name = topic.decode()
            is_passed_over = not light_queues and is_light_queue(name)
            if not is_passed_over:
                yield name
            # light queues whose names have the same length are neighbours
            after = prefix_range(key[: at - len(topic) + len(LIGHT_QUEUE_PREFIX)] if is_passed_over else key[:at]).end
            assert after is not None  # a key of offsets does not begin with 0xFF
            keys = KeyRange(after, keys.end)

    def readers_of(self, topic: str) -> Iterator[str]:
        """Yield the groups that have or had an offset in the topic, as far as it is written, a page at a time."""
        prefix = _topic_prefix(topic)
        for key, _ in self._rows(prefix):
            yield read_counted(key, len(prefix))[0].decode()

    def all_rows(self) -> Iterator[tuple[str, QueueId, QueueOffset]]:
        """Yield all offsets of all groups, read a page at a time."""
        for key, value in self._rows(OFFSET_KEY):
            group, at = read_counted(key, len(OFFSET_KEY))
            yield group.decode(), _queue_in(key, at), QueueOffset(VALUE.unpack(value)[0])

    def delete_group(self, batch: WriteBatch, group: str) -> None:
        """Add the deletion of all the group's offsets. Costs one step per row of the group."""
        topics = {queue.topic for queue, _ in self.of_group(group)}
        # Topics staged in this or an earlier batch, perhaps not yet written.
        topics.update(topic for topic, groups in self._indexed.items() if group in groups)
        self._delete_prefix(batch, _group_prefix(group))
        for topic in topics:
            batch.delete(self._family, _index_key(topic, group))
            known = self._indexed.get(topic, set())
            if group in known:
                known.remove(group)
                self._indexed_count -= 1
            if not known:
                self._indexed.pop(topic, None)

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups that have an offset in the topic, including staged ones."""
        prefix = _topic_prefix(topic)
        groups = {read_counted(key, len(prefix))[0].decode() for key, _ in self._rows(prefix)}
        groups.update(self._indexed.get(topic, ()))
        return groups

    def delete_topic(self, batch: WriteBatch, topic: str, groups: Set[str] | None = None) -> None:
        """Add the deletion of all groups' offsets of the topic. Costs one step per group that has any.

        `groups` are the `groups_of` the topic, if the caller has them already.
        """
        groups = self.groups_of(topic) if groups is None else groups
        self._evict(topic)
        if is_light_queue(topic):
            # they are deleted by the hundred thousand, and range deletes in a memtable make each read slower
            for group in groups:
                batch.delete(self._family, _offset_key(group, QueueId(topic, 0)))
                batch.delete(self._family, _index_key(topic, group))
            return
        for group in groups:
            self._delete_prefix(batch, _group_prefix(group) + counted(topic.encode()))
        self._delete_prefix(batch, _topic_prefix(topic))

    def delete_pair(self, batch: WriteBatch, group: str, topic: str) -> None:
        """Add the deletion of the group's offsets of the topic."""
        self._evict(topic)
        self._delete_prefix(batch, _group_prefix(group) + counted(topic.encode()))
        batch.delete(self._family, _index_key(topic, group))

    def _evict(self, topic: str) -> None:
        """Evict the cached groups of a topic: each then costs an index row when next staged."""
        self._indexed_count -= len(self._indexed.pop(topic, ()))

    def lower(self, engine: KeyValueEngine, maximum_of: Callable[[QueueId], QueueOffset]) -> int:
        """Lower offsets above their queue's max offset to it; return how many. Costs one step per offset."""
        lowered = 0
        batch = engine.batch()
        for key, value in self._rows(OFFSET_KEY):
            _, at = read_counted(key, len(OFFSET_KEY))
            topic, at = read_counted(key, at)
            maximum = maximum_of(QueueId(topic.decode(), read_u32(key, at)[0]))
            if VALUE.unpack(value)[0] > maximum:
                batch.put(self._family, key, VALUE.pack(maximum))
                lowered += 1
        engine.write(batch, sync=True)
        return lowered

    def _rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        keys = prefix_range(prefix)
        while True:
            page = self._family.scan(keys, limit=PAGE_ROWS)
            yield from page
            if len(page) < PAGE_ROWS:
                return
            keys = KeyRange(page[-1][0] + b"\0", keys.end)

    def _delete_prefix(self, batch: WriteBatch, prefix: bytes) -> None:
        # A range, not the keys found: it also covers rows staged earlier in the same batch.
        batch.delete_range(self._family, prefix_range(prefix))


def _group_prefix(group: str) -> bytes:
    return OFFSET_KEY + counted(group.encode())


def _topic_prefix(topic: str) -> bytes:
    return INDEX_KEY + counted(topic.encode())


def _offset_key(group: str, queue: QueueId) -> bytes:
    return _group_prefix(group) + counted(queue.topic.encode()) + u32(queue.number)


def _index_key(topic: str, group: str) -> bytes:
    return _topic_prefix(topic) + counted(group.encode())


def _queue_in(key: bytes, at: int) -> QueueId:
    """Return the queue that a key names after its group."""
    topic, at = read_counted(key, at)
    return QueueId(topic.decode(), read_u32(key, at)[0])
