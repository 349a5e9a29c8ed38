"""The first broker on a store of RocketMQ takes over the messages that RocketMQ 5 had in flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Protocol

import structlog

from quarry_mq.protocol.messages.property_names import TAGS
from quarry_mq.store.consumequeue import ConsumeQueueStore
from quarry_mq.store.message import QueueOffset
from quarry_mq.store.metadata import ConsumerOffsetTable, TopicTable
from quarry_mq.store.opening.parts import StoreParts
from quarry_mq.store.pending import PendingMessages
from quarry_mq.store.pending.messages import REVIVE_PREFIX, ReadRecord
from quarry_mq.store.rocketmq.in_flight import REVIVE_GROUP, Note, unacknowledged
from quarry_mq.store.state.in_flight_key import pack_position, put_unleased, subscription_prefix

log = structlog.get_logger(__name__)

ENTRIES_AT_ONCE: Final = 1_024


class Tables(Protocol):
    """Tables of a store that are needed here."""

    @property
    def topics(self) -> TopicTable: ...

    @property
    def offsets(self) -> ConsumerOffsetTable: ...


def take_in_flight(parts: StoreParts, tables: Tables, pending: PendingMessages, read: ReadRecord) -> None:
    """Make a row of each message in flight below the position of its group, durably, unless that was done before.

    Messages at or above the position are delivered anyway. After a crash halfway, a repetition makes the same rows.
    """
    before = parts.identity.pending_before
    if before is None or before.has_taken_notes:
        return
    queues, engine, positions = parts.queues.store, parts.state_engine, tables.offsets
    batch, taken = engine.batch(), 0
    for group, queue, offset, visible_at_ms in unacknowledged(_notes(queues, tables, pending, read)):
        minimum, maximum = queues.bounds(queue)
        if minimum <= offset < min(maximum, positions.get(group, queue) or 0):
            key = subscription_prefix(group, queue.topic) + pack_position(queue.number, offset)
            put_unleased(engine, batch, key, visible_at_ms)
            taken += 1
    engine.write(batch, sync=True)
    parts.identity.pending_before = replace(before, has_taken_notes=True)
    pending.drop_notes()
    if taken:
        log.info("messages that RocketMQ had in flight are taken over", messages=taken)


def _notes(queues: ConsumeQueueStore, tables: Tables, pending: PendingMessages, read: ReadRecord) -> Iterator[Note]:
    """Yield the notes that RocketMQ had not dealt with, in no order."""
    for note in pending.notes():
        record = read(note.physical_offset)
        if record is not None:
            yield Note(record.properties.get(TAGS, ""), bytes(record.body))
    for queue in [queue for topic in tables.topics.list(REVIVE_PREFIX) for queue in queues.queues(topic.name)]:
        position = tables.offsets.get(REVIVE_GROUP, queue)
        at = queues.bounds(queue).minimum if position is None else QueueOffset(position + 1)
        while entries := queues.entries(queue, at, ENTRIES_AT_ONCE):
            for entry in entries:
                record = read(entry.physical_offset)
                if record is not None:
                    yield Note(record.properties.get(TAGS, ""), bytes(record.body))
            at = QueueOffset(entries[-1].queue_offset + 1)
