"""The module computes how one record changes the rows of pending messages. That depends on the log alone, so it is the
same live and when the log is read again.

| record | effect |
|---|---|
| in the timer topic | waits until its time |
| in the timer topic, a copy of another | waits until its time; the other one waits no longer |
| in the timer topic, recalling another | the other one waits no longer |
| in the schedule topic | waits as long as its delay level says |
| in the half topic | waits for its producer |
| in the operation topic | the half messages it lists are resolved |
| a committed message | its half message is committed |
| a delivered copy | its original waits no longer |

A copy names its original in the field that RocketMQ calls prepared transaction offset, as a committed message names its
half message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from quarry_mq.protocol.messages.property_names import (
    CHECKED_TIMES,
    DELIVER_AT_MS,
    DEQUEUED_MS,
    RECALLED_KEY,
    ROLL_TIMES,
    TAGS,
    TIMER_OUT_MS,
    TRANSACTION_RECOVERY_S,
    UNIQUE_KEY,
)
from quarry_mq.protocol.messages.system_flag import TRANSACTION_MASK, TransactionState
from quarry_mq.protocol.names import HALF_TOPIC, OPERATION_TOPIC, SCHEDULE_TOPIC
from quarry_mq.store.message import DispatchRequest
from quarry_mq.store.offsets import PhysicalOffset, QueueOffset
from quarry_mq.store.pending.rows import DueMessage, HalfMessage, Resolution
from quarry_mq.store.pending.topics import OPERATION_DONE, TIMER_TOPIC
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.record.properties import EncodedProperties, has_property
from quarry_mq.store.record.tags import tags_code

ReadRecord = Callable[[PhysicalOffset], StoredMessage | None]
"""A function that returns the record at an offset; None where the log has none, or none any more."""

_DEQUEUED: Final = DEQUEUED_MS.encode()
DIGITS_MAX: Final = 18
CHECKS_MAX: Final = 2**31 - 1
RECOVERY_MAX_MS: Final = 2**53
"""The largest recovery time that is taken from a record: a time to which it is added still fits its row."""


class Waits:
    """A delayed message begins to wait."""

    __slots__ = ("message",)

    def __init__(self, message: DueMessage) -> None:
        self.message = message


class WaitsForProducer:
    """A half message begins to wait. A half message that was checked replaces an earlier one with the same id.

    `recovery_ms` is how long its producer must not be asked, 0 where the message does not say.
    """

    __slots__ = ("checks", "message", "recovery_ms")

    def __init__(self, message: HalfMessage, *, recovery_ms: int, checks: int) -> None:
        self.message = message
        self.recovery_ms = recovery_ms
        self.checks = checks


class Released:
    """A delayed message waits no longer."""

    __slots__ = ("message",)

    def __init__(self, message: DueMessage) -> None:
        self.message = message


class Recalled:
    """The delayed message with this id that is due at this time is not to be delivered: RocketMQ's way to recall."""

    __slots__ = ("due_ms", "message_id")

    def __init__(self, due_ms: int, message_id: str) -> None:
        self.due_ms = due_ms
        self.message_id = message_id


class Resolved:
    """A half message waits no longer. Its operation record alone does not say whether it was committed
    or rolled back.
    """

    __slots__ = ("queue_offset", "resolution")

    def __init__(self, queue_offset: QueueOffset, resolution: Resolution) -> None:
        self.queue_offset = queue_offset
        self.resolution = resolution


Change = Waits | WaitsForProducer | Released | Recalled | Resolved


def may_change(request: DispatchRequest) -> bool:
    """Return whether the record has an effect at all; most have none, and this is called for every record."""
    return (
        request.topic in _BY_TOPIC
        or request.system_flag & TRANSACTION_MASK == TransactionState.COMMIT
        or has_property(request.properties, DEQUEUED_MS, _DEQUEUED)
    )


def may_any_change(requests: Sequence[DispatchRequest]) -> bool:
    """Return False if none of the records has an effect. This takes a third of the time of calling `may_change` for
    each.
    """
    if not _BY_TOPIC.keys().isdisjoint([request[0] for request in requests]):
        return True
    stored: list[bytes] = []
    for _, _, _, _, _, _, _, system_flag, properties, _ in requests:
        if system_flag & TRANSACTION_MASK or not isinstance(properties, EncodedProperties):
            return True
        stored.append(properties.raw)
    return _DEQUEUED in b"\0".join(stored)  # a property's name contains no zero byte


def changes_of(request: DispatchRequest, read: ReadRecord) -> Iterator[Change]:
    """Yield the effects of the record. `read` is called only where they are not in the request."""
    by_topic = _BY_TOPIC.get(request.topic)
    if by_topic is not None:
        yield from by_topic(request, read)
        return
    record = read(request.physical_offset)
    original = None if record is None else read(PhysicalOffset(record.prepared_transaction_offset))
    if record is None or original is None:
        return
    if request.system_flag & TRANSACTION_MASK == TransactionState.COMMIT:
        if original.topic == HALF_TOPIC:
            yield Resolved(original.queue_offset, Resolution.COMMITTED)
    elif _is_copy(record, original):
        yield Released(_due(original))


def due_of_request(request: DispatchRequest) -> DueMessage | None:
    """Return when a record that was just dispatched is due; None if it does not wait for a time."""
    if request.topic == SCHEDULE_TOPIC:
        return DueMessage(request.tags_code, request.physical_offset, request.size)
    if request.topic == TIMER_TOPIC and RECALLED_KEY not in request.properties:
        properties = request.properties
        due_ms = _time_of(properties.get(DELIVER_AT_MS), properties.get(TIMER_OUT_MS))
        return DueMessage(due_ms, request.physical_offset, request.size)
    return None


def _is_copy(record: StoredMessage, original: StoredMessage) -> bool:
    """Return whether the record is a copy of this original. RocketMQ's copies name none, which looks like offset 0."""
    same = record.properties.get(UNIQUE_KEY) == original.properties.get(UNIQUE_KEY)
    return same and original.topic in (TIMER_TOPIC, SCHEDULE_TOPIC)


def _due(record: StoredMessage) -> DueMessage:
    if record.topic == SCHEDULE_TOPIC:
        due_ms = tags_code(SCHEDULE_TOPIC, record.properties, record.store_timestamp_ms)
    else:
        due_ms = _time_of(record.properties.get(DELIVER_AT_MS), record.properties.get(TIMER_OUT_MS))
    return DueMessage(due_ms, record.physical_offset, record.size)


def _time_of(wanted: str | None, rounded: str | None) -> int:
    """Return the due time in ms. A message that names none is due at once."""
    return number_of(wanted) or number_of(rounded) or 0


def number_of(text: str | None) -> int | None:
    """Return the number that the text is; None for another text."""
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > DIGITS_MAX:
        return None
    return int(text)


def _timer(request: DispatchRequest, read: ReadRecord) -> Iterator[Change]:
    properties = request.properties
    due_ms = _time_of(properties.get(DELIVER_AT_MS), properties.get(TIMER_OUT_MS))
    recalled = properties.get(RECALLED_KEY)
    record = read(request.physical_offset) if recalled is not None or ROLL_TIMES in properties else None
    original = None if record is None else read(PhysicalOffset(record.prepared_transaction_offset))
    if recalled is None:
        yield Waits(DueMessage(due_ms, request.physical_offset, request.size))
        if record is not None and original is not None and _is_copy(record, original):
            yield Released(_due(original))
        return
    message_id = recalled.rpartition("+")[2]
    is_named = record is not None and record.prepared_transaction_offset > 0  # 0: by RocketMQ, naming none
    if is_named and original is not None and original.properties.get(UNIQUE_KEY) == message_id:
        yield Released(_due(original))
    else:
        yield Recalled(due_ms, message_id)


def _scheduled(request: DispatchRequest, _read: ReadRecord) -> Iterator[Change]:
    yield Waits(DueMessage(request.tags_code, request.physical_offset, request.size))


def _half(request: DispatchRequest, _read: ReadRecord) -> Iterator[Change]:
    properties = request.properties
    message = HalfMessage(
        request.queue_offset,
        request.physical_offset,
        request.size,
        request.store_timestamp_ms,
        properties.get(UNIQUE_KEY, ""),
    )
    yield WaitsForProducer(
        message,
        recovery_ms=min(1000 * (number_of(properties.get(TRANSACTION_RECOVERY_S)) or 0), RECOVERY_MAX_MS),
        checks=min(number_of(properties.get(CHECKED_TIMES)) or 0, CHECKS_MAX),
    )


def _operation(request: DispatchRequest, read: ReadRecord) -> Iterator[Change]:
    record = read(request.physical_offset)
    if record is None or request.properties.get(TAGS) != OPERATION_DONE:
        return
    for text in bytes(record.body).decode("ascii", "replace").split(","):
        offset = number_of(text)
        if offset is not None:
            yield Resolved(QueueOffset(offset), Resolution.ROLLED_BACK)


_BY_TOPIC: Final = {
    TIMER_TOPIC: _timer,
    SCHEDULE_TOPIC: _scheduled,
    HALF_TOPIC: _half,
    OPERATION_TOPIC: _operation,
}
