"""How far messages that wait have got, the way RocketMQ tells it: one place per queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quarry_mq.store.offsets import QueueId, QueueOffset
from quarry_mq.store.pending.before import HeldBefore
from quarry_mq.store.pending.changes import ReadRecord
from quarry_mq.store.pending.messages import HeldMessages
from quarry_mq.store.pending.topics import HALF_TOPIC, TIMER_TOPIC
from quarry_mq.store.record.tags import SCHEDULE_TOPIC

LEVELS: Final = 18
TIMERS: Final = QueueId(TIMER_TOPIC, 0)
HALVES: Final = QueueId(HALF_TOPIC, 0)


def progress_now(
    held: HeldMessages, read: ReadRecord, end_of: Callable[[QueueId], QueueOffset], now_ms: int
) -> HeldBefore:
    """The first message that waits in each queue, or the queue's end.

    In the queues of delay levels and of half messages nothing behind it was delivered before it. Of timers some were:
    who goes on from here delivers them again. Reads every delayed message that waits.
    """
    first: dict[QueueId, QueueOffset] = {}
    for message in held.waiting_messages():
        record = read(message.physical_offset)
        if record is not None:
            queue = QueueId(record.topic, record.queue_number)
            first[queue] = min(first.get(queue, record.queue_offset), record.queue_offset)
    halves = held.halves(QueueOffset(0), 1)
    if halves:
        first[HALVES] = halves[0].queue_offset

    def reached(queue: QueueId) -> QueueOffset:
        return first[queue] if queue in first else end_of(queue)

    scheduled = {number: reached(QueueId(SCHEDULE_TOPIC, number)) for number in range(LEVELS)}
    return HeldBefore(
        scheduled={number: offset for number, offset in scheduled.items() if offset},
        timers_read=reached(TIMERS),
        timers_read_ms=now_ms,
        halves=reached(HALVES),
    )
