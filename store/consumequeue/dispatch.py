"""Make dispatch requests from stored records when the log is read again (recovery, rebuild, backfill).

Live appends make their requests directly; both ways give equal requests for equal records, which is what makes
derived data a function of the commit log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from quarry_mq.protocol.messages.property_names import LIGHT_QUEUE_OFFSETS, LIGHT_QUEUES
from quarry_mq.protocol.messages.system_flag import TRANSACTION_MASK, TransactionState
from quarry_mq.protocol.names import LIGHT_QUEUE_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_TOPIC_PREFIX
from quarry_mq.store.consumequeue.again import StoredQueues
from quarry_mq.store.lru_cache import LruCache
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.record import StoredMessage, tags_code

LIGHT_QUEUE_NUMBER: Final = 0
_NEVER_LIGHT: Final = (RETRY_PREFIX, SYSTEM_TOPIC_PREFIX, SCHEDULE_TOPIC)

OFFSET_DIGITS_MAX: Final = 18

_NOT_QUEUED: Final = (int(TransactionState.PREPARED), int(TransactionState.ROLLBACK))


class OffsetAssignment(Protocol):
    """The rule that says which entries a record gets, and with which offset in light queues."""

    @property
    def deleted_topics(self) -> Mapping[str, PhysicalOffset]:
        """The offset by topic below which records of the topic get no entry in their own queue."""

    def offset_of(self, name: str, stored: QueueOffset, at: PhysicalOffset) -> QueueOffset | None:
        """Return the offset for the record at `at` whose property says `stored`; None: it needs no entry."""


NO_DELETED_TOPICS: Final[Mapping[str, PhysicalOffset]] = MappingProxyType({})
"""The `deleted_topics` of rules that give every record an entry in its own queue."""


class UndeletedEntries:
    """The entries that another rule gives, without those that were deleted with their queues."""

    def __init__(
        self, rule: OffsetAssignment, topics: Mapping[str, PhysicalOffset], light_queues: Mapping[str, PhysicalOffset]
    ) -> None:
        """Take the offset of the last deletion of each topic and light queue: records below it are deleted."""
        self._rule = rule
        self.deleted_topics = topics
        self._light_queues = light_queues

    def offset_of(self, name: str, stored: QueueOffset, at: PhysicalOffset) -> QueueOffset | None:
        return None if at < self._light_queues.get(name, 0) else self._rule.offset_of(name, stored, at)


class StoredAssignment:
    """Use the offset that the record itself states: the rule of stores whose light queues live in RocksDB."""

    deleted_topics = NO_DELETED_TOPICS

    def offset_of(self, name: str, stored: QueueOffset, at: PhysicalOffset) -> QueueOffset | None:  # noqa: ARG002
        return stored


class DenseAssignment:
    """Assign offsets one after the other without holes: the rule of RocketMQ's file queues.

    A light queue named twice in one message gets one entry in a file queue, though the counter behind the stored
    numbers advances by two. From then on the index in the file and the stored number differ. Readers of a file store
    know the index, so a rebuild keeps it. Where RocksDB already holds the record under its stored number (a
    double-write store), the queue is complete from there on and nothing is added.

    No state of its own is needed to resume: an unknown queue continues after its last entry below the record.
    """

    deleted_topics = NO_DELETED_TOPICS

    def __init__(
        self, queues: StoredQueues, *, ends_where_stored: bool = True, cached_queues_max: int = 262_144
    ) -> None:
        """Continue the offsets of `queues`.

        `ends_where_stored`: a queue that holds a record under its stored number is complete from there on.

        `cached_queues_max` must be above the number of light queues named by records that are not stored yet.
        """
        self._queues = queues
        self._ends_where_stored = ends_where_stored
        # None: the queue is complete from here on
        self._next: LruCache[str, tuple[QueueOffset | None]] = LruCache(cached_queues_max)

    def offset_of(self, name: str, stored: QueueOffset, at: PhysicalOffset) -> QueueOffset | None:
        queue = QueueId(name, LIGHT_QUEUE_NUMBER)
        known = self._next.get(name)
        offset = self._first_offset(queue, stored, at) if known is None else known[0]
        if offset is not None and self._ends_where_stored and self._is_stored(queue, stored, at):
            offset = None
        if self._next.is_full:
            self._next.rotate()
        self._next.put(name, (None if offset is None else QueueOffset(offset + 1),))
        return offset

    def forget(self, name: str) -> None:
        """Forget a light queue that was deleted: its numbers go on where the next record says."""
        self._next.discard(name)

    def _first_offset(self, queue: QueueId, stored: QueueOffset, at: PhysicalOffset) -> QueueOffset:
        before = self._queues.last_entry_below(queue, at)
        return stored if before is None else QueueOffset(before.queue_offset + 1)

    def _is_stored(self, queue: QueueId, stored: QueueOffset, at: PhysicalOffset) -> bool:
        found = self._queues.entries(queue, stored, 1)
        return bool(found) and found[0].queue_offset == stored and found[0].physical_offset == at


def may_name_light_queues(topic: str) -> bool:
    """Return whether records of the topic go to the light queues that they name.

    Copies on their way through the broker (retries, delays) still carry the light-queue names and numbers of the
    original message.
    """
    return not topic.startswith(_NEVER_LIGHT)


def is_queued(system_flag: int) -> bool:
    """Return whether a record appears in its consume queue: prepared and rolled-back ones do not
    (docs/formats/commit-log.md).
    """
    return system_flag & TRANSACTION_MASK not in _NOT_QUEUED


def dispatch_request(record: StoredMessage, assignment: OffsetAssignment) -> DispatchRequest | None:
    """Return the request of one record read back from the log; None if no queue has an entry of the record."""
    properties = record.properties
    request = DispatchRequest(
        topic=record.topic,
        queue_number=record.queue_number,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        size=record.size,
        tags_code=tags_code(record.topic, properties, record.store_timestamp_ms),
        store_timestamp_ms=record.store_timestamp_ms,
        system_flag=record.system_flag,
        properties=properties,
        light_queues=tuple(light_queues(record.topic, properties, record.physical_offset, assignment)),
    )
    is_deleted = record.physical_offset < assignment.deleted_topics.get(record.topic, 0)
    return in_light_queues_alone(request) if is_deleted else request


def in_light_queues_alone(request: DispatchRequest) -> DispatchRequest | None:
    """Return the request for a record whose topic was deleted; None if the record goes to no light queue.

    The queues of a topic are removed with it, but the light queues are not. The first of them takes the place of the
    record's own queue.
    """
    if not request.light_queues:
        return None
    (name, offset), *others = request.light_queues
    return request._replace(
        topic=name, queue_number=LIGHT_QUEUE_NUMBER, queue_offset=offset, light_queues=tuple(others)
    )


def light_queues(
    topic: str, properties: Mapping[str, str], at: PhysicalOffset, assignment: OffsetAssignment
) -> Iterable[tuple[str, QueueOffset]]:
    """Yield the name and queue offset of each light queue that a record with these properties goes to."""
    if LIGHT_QUEUES not in properties or LIGHT_QUEUE_OFFSETS not in properties:
        return
    if not may_name_light_queues(topic):
        return
    names = properties[LIGHT_QUEUES].split(",")
    offsets = properties[LIGHT_QUEUE_OFFSETS].split(",")
    if len(names) != len(offsets):
        return
    seen: set[str] = set()
    for name, stored in zip(names, offsets, strict=True):
        if name in seen or not name.startswith(LIGHT_QUEUE_PREFIX):
            continue
        if not stored.isdecimal() or len(stored) > OFFSET_DIGITS_MAX:
            continue  # too large for the key of an entry
        seen.add(name)
        offset = assignment.offset_of(name, QueueOffset(int(stored)), at)
        if offset is not None:
            yield name, offset
