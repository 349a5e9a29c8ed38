"""Trace a message: in which queues it is, and what has become of it for each group that reads them.

No trace is written: the record says in which queues it is, and a group's rows and offset say the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.delivery import Delivery, InFlightTable, StateWriter
from quarry_mq.store.consumequeue.dispatch import LIGHT_QUEUE_NUMBER, StoredNumbering, light_queues
from quarry_mq.store.offsets import QueueId, QueueOffset
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.state.in_flight_key import subscription_prefix

GROUPS_MAX: Final = 1_000
"""Groups that are traced in one queue."""


class MessageState(Enum):
    """The state of a message of a queue for a group."""

    WAITING = "it has not been handed out"
    IN_FLIGHT = "a client has it"
    RETRYING = "it was handed out and not acknowledged: the next receive gets it"
    DONE = "it was acknowledged, passed over by the group's filter, or went to the dead letters"


class GroupTrace(NamedTuple):
    """The state for one group.

    If the message is in flight, it was delivered `attempts` times, the last time to `client_id`, and is redelivered at
    `visible_at_ms`; otherwise these are 0 and "".
    """

    group: str
    state: MessageState
    attempts: int = 0
    visible_at_ms: int = 0
    client_id: str = ""


class QueueTrace(NamedTuple):
    """The state of a message in one queue. `is_there`: the queue still has it. At most `GROUPS_MAX` groups, by name."""

    queue: QueueId
    offset: QueueOffset
    is_there: bool
    groups: list[GroupTrace]


class MessageTracer:
    """Traces messages. Lives on the event loop's thread."""

    def __init__(self, store: OpenStore, delivery: Delivery, writer: StateWriter, clock: Clock) -> None:
        self._store = store
        self._delivery = delivery
        self._writer = writer
        self._clock = clock
        self._in_flight = InFlightTable(store.state_engine)

    def trace(self, record: StoredMessage) -> list[QueueTrace]:
        """Trace the message in its queue, then in its light queues."""
        self._writer.write_now()  # from here on the rows are complete
        return [self._queue(queue, offset) for queue, offset in _queues_of(record)]

    def _queue(self, queue: QueueId, offset: QueueOffset) -> QueueTrace:
        bounds = self._store.messages.bounds(queue)
        groups = islice(sorted(self._store.offsets.groups_of(queue.topic)), GROUPS_MAX)
        traced = [each for group in groups if (each := self._group(group, queue, offset)) is not None]
        return QueueTrace(queue, offset, bounds.minimum <= offset < bounds.maximum, traced)

    def _group(self, group: str, queue: QueueId, offset: QueueOffset) -> GroupTrace | None:
        """Return the state for a group; None if it has not read this queue."""
        next_offset = self._delivery.next_offset(group, queue)
        if next_offset is None:
            return None
        row = self._in_flight.get(subscription_prefix(group, queue.topic), queue.number, offset)
        if row is None:
            return GroupTrace(group, MessageState.DONE if offset < next_offset else MessageState.WAITING)
        is_hidden = row.visible_at_ms > self._clock.wall_ms()
        state = MessageState.IN_FLIGHT if is_hidden else MessageState.RETRYING
        return GroupTrace(group, state, row.attempt, row.visible_at_ms, row.client_id)


def _queues_of(record: StoredMessage) -> Iterator[tuple[QueueId, QueueOffset]]:
    yield QueueId(record.topic, record.queue_number), record.queue_offset
    for name, offset in light_queues(record.topic, record.properties, record.physical_offset, StoredNumbering()):
        yield QueueId(name, LIGHT_QUEUE_NUMBER), offset
