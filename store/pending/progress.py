"""The module expresses the progress of pending messages as RocketMQ does: one offset per queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quarry_mq.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC
from quarry_mq.store.offsets import QueueId, QueueOffset
from quarry_mq.store.pending.before import PendingBefore
from quarry_mq.store.pending.changes import ReadRecord
from quarry_mq.store.pending.messages import PendingMessages
from quarry_mq.store.pending.topics import TIMER_TOPIC

LEVELS: Final = 18
TIMERS: Final = QueueId(TIMER_TOPIC, 0)
HALVES: Final = QueueId(HALF_TOPIC, 0)


def progress_now(
    pending: PendingMessages, read: ReadRecord, end_of: Callable[[QueueId], QueueOffset], now_ms: int
) -> PendingBefore:
    """Return for each queue the offset of the first message that is pending, or the queue's end.

    In the queues of delay levels and of half messages, no later message was delivered. Of timers some were: a broker
    that continues from here delivers them again. Reads every delayed message that is pending.
    """
    first: dict[QueueId, QueueOffset] = {}
    for message in pending.waiting_messages():
        record = read(message.physical_offset)
        if record is not None:
            queue = QueueId(record.topic, record.queue_number)
            first[queue] = min(first.get(queue, record.queue_offset), record.queue_offset)
    halves = pending.halves(QueueOffset(0), 1)
    if halves:
        first[HALVES] = halves[0].queue_offset

    def reached(queue: QueueId) -> QueueOffset:
        return first[queue] if queue in first else end_of(queue)

    scheduled = {number: reached(QueueId(SCHEDULE_TOPIC, number)) for number in range(LEVELS)}
    return PendingBefore(
        scheduled={number: offset for number, offset in scheduled.items() if offset},
        timers_read=reached(TIMERS),
        timers_read_ms=now_ms,
        halves=reached(HALVES),
    )
