"""The index of pending messages, kept up to date as the log grows.

How one record changes the rows depends on the log alone, so it is the same live and when the log is read again:

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

What RocketMQ had delivered before Quarry took over a store is in files beside the log. RocketMQ expresses the progress
of pending messages as one offset per queue, and Quarry's progress is expressed in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from quarry_mq.kv import KeyRange, KeyValueEngine, WriteBatch
from quarry_mq.protocol.messages.property_names import (
    CHECKED_TIMES,
    DELIVER_AT_MS,
    DEQUEUED_MS,
    REAL_TOPIC,
    RECALLED_KEY,
    ROLL_TIMES,
    TAGS,
    TIMER_OUT_MS,
    TRANSACTION_RECOVERY_S,
    UNIQUE_KEY,
)
from quarry_mq.protocol.messages.system_flag import TRANSACTION_MASK, TransactionState
from quarry_mq.protocol.names import HALF_TOPIC, OPERATION_TOPIC, SCHEDULE_TOPIC
from quarry_mq.store.commitlog import CommitLogReader
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.pending.rows import (
    ALL_HALVES,
    ALL_NOTES,
    ALL_TIMERS,
    EVERYTHING,
    FAMILY,
    OPERATION_DONE,
    PROGRESS_KEY,
    TIMER_TOPIC,
    WATERMARK_KEY,
    CheckDue,
    DueMessage,
    HalfMessage,
    Note,
    Resolution,
    check_key,
    checks_between,
    half_key,
    id_key,
    pack_offset,
    resolved_key,
    timer_key,
    timers_until,
    unpack_offset,
)
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.record.properties import EncodedProperties, has_property, tags_code
from quarry_mq.store.settings import CHECK_AFTER_MS

VERSION: Final = 1
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
"""Prefix of RocketMQ's topics with notes about messages that consumers have received and not yet acknowledged."""
CLOCKS_APART_MS: Final = 3_600_000
"""Milliseconds by which the clock of another broker may be ahead, for which its timers are looked at."""
_DELETED_AT_ONCE: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBefore:
    """The progress says which pending messages of each kind had been delivered or resolved. Queue offsets are
    exclusive.

    `timers_read_ms`: of the timers below `timers_read`, those with an earlier time were delivered.

    `has_taken_notes`: what the notes about messages in flight say is known, so they are not pending any more.
    """

    scheduled: Mapping[int, int] = field(default_factory=dict)
    """Queue offsets by queue number, which is the delay level less one."""
    timers_read: int = 0
    timers_read_ms: int = 0
    halves: int = 0
    has_taken_notes: bool = False

    def is_over(self, request: DispatchRequest | StoredMessage) -> bool:
        """Return whether the record in a topic for pending messages is no longer pending."""
        topic, offset = request.topic, request.queue_offset
        if topic == SCHEDULE_TOPIC:
            return offset < self.scheduled.get(request.queue_number, 0)
        if topic == TIMER_TOPIC:
            if self.has_taken_notes and is_note(request.properties):
                return True
            out_ms = number_of(request.properties.get(TIMER_OUT_MS)) or 0
            return offset < self.timers_read and out_ms < self.timers_read_ms
        return topic == HALF_TOPIC and offset < self.halves

    def is_earlier_than(self, other: PendingBefore) -> bool:
        """Return whether something counts as pending here that is over in the other progress."""
        return (
            any(self.scheduled.get(number, 0) < offset for number, offset in other.scheduled.items())
            or self.timers_read < other.timers_read
            or self.timers_read_ms < other.timers_read_ms
            or self.halves < other.halves
            or self.has_taken_notes < other.has_taken_notes
        )

    def pack(self) -> bytes:
        """Return JSON, to be stored in a row."""
        return json.dumps(
            {
                "version": VERSION,
                "scheduled": {str(number): offset for number, offset in sorted(self.scheduled.items())},
                "timers_read": self.timers_read,
                "timers_read_ms": self.timers_read_ms,
                "halves": self.halves,
                "has_taken_notes": self.has_taken_notes,
            }
        ).encode()

    @classmethod
    def unpack(cls, row: bytes) -> PendingBefore:
        found = json.loads(row)
        return cls(
            scheduled={int(number): offset for number, offset in found["scheduled"].items()},
            timers_read=found["timers_read"],
            timers_read_ms=found["timers_read_ms"],
            halves=found["halves"],
            has_taken_notes=found.get("has_taken_notes", True),
        )


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


class Noted:
    """RocketMQ has noted something about messages in flight."""

    __slots__ = ("note",)

    def __init__(self, note: Note) -> None:
        self.note = note


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


Change = Waits | Noted | WaitsForProducer | Released | Recalled | Resolved


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


def is_note(properties: Mapping[str, str]) -> bool:
    """Return whether a timer with these properties is RocketMQ's own, about messages in flight."""
    return properties.get(REAL_TOPIC, "").startswith(REVIVE_PREFIX)


def _timer(request: DispatchRequest, read: ReadRecord) -> Iterator[Change]:
    properties = request.properties
    if is_note(properties):
        due_ms = number_of(properties.get(TIMER_OUT_MS)) or 0
        yield Noted(Note(due_ms, request.physical_offset, request.queue_offset))
        return
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


RESOLUTIONS_KEPT: Final = 65_536
"""The number of half messages whose resolution is kept, so that a producer that repeats itself gets the same answer."""
RESOLUTIONS_DELETED: Final = 1_024
"""The number of old resolutions that are deleted at once."""
ROUNDED_MS: Final = 1_000
"""Milliseconds by which RocketMQ's time of a recall may differ from the time of the message that it recalls."""


class PendingMessages:
    """The rows of pending messages, and the watermark: every record in the log below it has had its effect on the rows.

    The watermark is written with the rows that rest on it. So the rows in the database after a crash are never ahead of
    its watermark, and all records from there on are put again.

    One thread changes the rows; other threads may read.
    """

    def __init__(
        self,
        engine: KeyValueEngine,
        read: ReadRecord,
        *,
        before: PendingBefore | None = None,
        check_after_ms: int = CHECK_AFTER_MS,
    ) -> None:
        """Open the rows. `before` is another broker's progress; that of the last `settle` counts more.

        `check_after_ms`: how soon the producer of a half message is asked, unless the message says otherwise.
        """
        self._engine = engine
        self._family = engine.family(FAMILY)
        self._read = read
        progress = self._family.get(PROGRESS_KEY)
        self.before = before if progress is None else PendingBefore.unpack(progress)
        """The progress of the other broker that the rows rest on; None without one."""
        self._check_after_ms = check_after_ms
        stored = self._family.get(WATERMARK_KEY)
        self._up_to = None if stored is None else unpack_offset(stored)
        self._written_up_to = self._up_to
        self.timer_changes = 0
        """The number of waiting delayed messages, less that when this object was made: negative if fewer wait."""
        self.half_changes = 0
        """The number of unresolved half messages, less that when this object was made: negative if fewer are
        unresolved.
        """

    @property
    def up_to(self) -> PhysicalOffset | None:
        """Return the offset below which all records have had their effect; None if the log was never read."""
        return self._up_to

    def statistics(self) -> dict[str, int]:
        """Return statistics of the database, see `kv.KeyValueEngine.statistics`. May be called from any thread."""
        return self._engine.statistics()

    # -- what the log does

    def put(self, requests: Iterable[DispatchRequest], up_to: PhysicalOffset) -> None:
        """Apply the records, in log order. Repeating a range that reaches to the log's end changes nothing."""
        if isinstance(requests, list) and not may_any_change(requests):
            requests = ()
        batch = self._engine.batch()
        for request in requests:
            if not may_change(request):
                continue
            is_over = self.before.is_over(request) if self.before is not None else is_note(request.properties)
            for change in changes_of(request, self._read):
                if is_over and isinstance(change, Waits | Noted | WaitsForProducer):
                    continue
                if len(batch) and _looks_at_rows(change):
                    self._write(batch, request.physical_offset)
                    batch = self._engine.batch()
                self._stage(batch, change)
        if len(batch):
            self._write(batch, up_to)
        self._up_to = up_to

    def settle(self, before: PendingBefore, now_ms: int) -> None:
        """Drop what another broker has delivered or resolved by now, and pass that over from now on.

        Delayed messages that are due more than an hour after `now_ms` are not looked at: none of them was delivered.
        """
        self.before = before
        batch = self._engine.batch()
        for row in self._family.scan(timers_until(max(now_ms, before.timers_read_ms) + CLOCKS_APART_MS)):
            message = DueMessage.parse(*row)
            record = self._read(message.physical_offset)
            if record is not None and before.is_over(record):
                self._stage(batch, Released(message))
            if len(batch) >= _DELETED_AT_ONCE:
                self._engine.write(batch)
                batch = self._engine.batch()
        for half in self._halves_below(before.halves):
            self._stage_resolved(batch, half.queue_offset, Resolution.ROLLED_BACK)
        if before.has_taken_notes:
            batch.delete_range(self._family, ALL_NOTES)
        for note in self._notes_before(before.timers_read_ms):
            if note.queue_offset < before.timers_read:
                batch.delete(self._family, note.key)
        batch.put(self._family, PROGRESS_KEY, before.pack())
        self._engine.write(batch)

    def drop_notes(self) -> None:
        """Delete the notes about messages in flight, and pass them over from now on."""
        self.before = replace(self.before or PendingBefore(), has_taken_notes=True)
        batch = self._engine.batch()
        batch.delete_range(self._family, ALL_NOTES)
        batch.put(self._family, PROGRESS_KEY, self.before.pack())
        self._engine.write(batch)

    def _halves_below(self, offset: int) -> Sequence[HalfMessage]:
        return [HalfMessage.parse(*row) for row in self._family.scan(KeyRange(ALL_HALVES.start, half_key(offset)))]

    def _notes_before(self, due_ms: int) -> Sequence[Note]:
        return [
            Note.parse(*row)
            for row in self._family.scan(KeyRange(ALL_NOTES.start, Note(due_ms, PhysicalOffset(0), QueueOffset(0)).key))
        ]

    def _write(self, batch: WriteBatch, up_to: PhysicalOffset) -> None:
        batch.put(self._family, WATERMARK_KEY, pack_offset(up_to))
        self._engine.write(batch)
        self._written_up_to = up_to

    def delete_all(self) -> None:
        """Delete all rows, as if the log had never been read."""
        batch = self._engine.batch()
        batch.delete_range(self._family, EVERYTHING)
        self._engine.write(batch)
        self._up_to = self._written_up_to = None

    def flush(self) -> None:
        """Make the rows survive a crash. The log below the watermark has to be durable."""
        if self._up_to is not None and self._up_to != self._written_up_to:
            self._write(self._engine.batch(), self._up_to)
        self._engine.flush([FAMILY])

    def checkpoint(self, directory: Path) -> None:
        """Copy the database; see `kv.KeyValueEngine.checkpoint`."""
        self._engine.checkpoint(directory)

    def close(self) -> None:
        self._engine.close()

    def _stage(self, batch: WriteBatch, change: Change) -> None:
        match change:
            case Waits(message=message):
                batch.put(self._family, message.key, message.row)
                self.timer_changes += 1
            case Noted(note=note):
                batch.put(self._family, note.key, note.row)
            case WaitsForProducer():
                self._stage_half(batch, change)
            case Released(message=message):
                batch.delete(self._family, message.key)
                self.timer_changes -= 1
            case Recalled(due_ms=due_ms, message_id=message_id):
                for message in self._waiting_about(due_ms):
                    record = self._read(message.physical_offset)
                    if record is not None and record.properties.get(UNIQUE_KEY) == message_id:
                        batch.delete(self._family, message.key)
                        self.timer_changes -= 1
            case Resolved(queue_offset=offset, resolution=resolution):
                self._stage_resolved(batch, offset, resolution)

    def _waiting_about(self, due_ms: int) -> Sequence[DueMessage]:
        keys = KeyRange(timer_key(due_ms - ROUNDED_MS, 0), timer_key(due_ms + ROUNDED_MS + 1, 0))
        return [DueMessage.parse(*row) for row in self._family.scan(keys)]

    def _stage_half(self, batch: WriteBatch, change: WaitsForProducer) -> None:
        half = change.message
        if change.checks:
            before = self.half_of(half.message_id)
            if before is not None and before.queue_offset != half.queue_offset:
                batch.delete(self._family, before.key)
                self.half_changes -= 1
        self.half_changes += 1
        half = half._replace(check_from_ms=half.check_from_ms + (change.recovery_ms or self._check_after_ms))
        batch.put(self._family, half.key, half.row)
        batch.put(self._family, id_key(half.message_id), pack_offset(half.queue_offset))
        check = CheckDue(half.check_from_ms, half.queue_offset, change.checks)
        batch.put(self._family, check.key, check.row)

    def _stage_resolved(self, batch: WriteBatch, offset: QueueOffset, resolution: Resolution) -> None:
        half = self.half(offset)
        if half is not None:
            self.half_changes -= 1
            batch.delete(self._family, half.key)
            batch.delete(self._family, id_key(half.message_id))
            batch.delete(self._family, check_key(half.check_from_ms, offset))
        if resolution is Resolution.COMMITTED or self.resolution(offset) is None:
            batch.put(self._family, resolved_key(offset), resolution.value)
        if offset % RESOLUTIONS_DELETED == 0 and offset > RESOLUTIONS_KEPT:
            batch.delete_range(self._family, KeyRange(resolved_key(0), resolved_key(offset - RESOLUTIONS_KEPT)))

    # -- queries

    def due(self, until_ms: int, limit: int, start: DueMessage | None = None) -> list[DueMessage]:
        """Return delayed messages whose time is not after `until_ms`, the earliest first, from `start` on.

        Without `start` the database has to pass over all that were ever delivered and are not compacted yet.
        """
        keys = KeyRange(ALL_TIMERS.start if start is None else start.key, timers_until(until_ms).end)
        return [DueMessage.parse(*row) for row in self._family.scan(keys, limit=limit)]

    def waiting_messages(self) -> Iterator[DueMessage]:
        """Iterate over all delayed messages that wait, by their times."""
        return (DueMessage.parse(*row) for row in self._family.iterate(ALL_TIMERS))

    def notes(self) -> Iterator[Note]:
        """Iterate over RocketMQ's notes about messages in flight that it has not delivered to itself."""
        return (Note.parse(*row) for row in self._family.iterate(ALL_NOTES))

    def first_due(self, start: DueMessage | None = None) -> DueMessage | None:
        """Return the delayed message that is due first, from `start` on; None when none waits."""
        keys = KeyRange(ALL_TIMERS.start if start is None else start.key, ALL_TIMERS.end)
        first = self._family.scan(keys, limit=1)
        return DueMessage.parse(*first[0]) if first else None

    def waiting(self, due_ms: int, at: PhysicalOffset) -> DueMessage | None:
        """Return the delayed message with this due time and physical offset; None if it does not wait."""
        key = timer_key(due_ms, at)
        row = self._family.get(key)
        return None if row is None else DueMessage.parse(key, row)

    def drop(self, message: DueMessage) -> None:
        """Delete a delayed message whose record the log does not have any more."""
        batch = self._engine.batch()
        batch.delete(self._family, message.key)
        self._engine.write(batch)
        self.timer_changes -= 1

    def waiting_halves(self) -> Iterator[HalfMessage]:
        """Iterate over all unresolved half messages, by their offsets."""
        return (HalfMessage.parse(*row) for row in self._family.iterate(ALL_HALVES))

    def halves(self, start: QueueOffset, limit: int) -> list[HalfMessage]:
        """Return unresolved half messages from an offset in their queue on."""
        keys = KeyRange(half_key(start), ALL_HALVES.end)
        return [HalfMessage.parse(*row) for row in self._family.scan(keys, limit=limit)]

    def half(self, queue_offset: QueueOffset) -> HalfMessage | None:
        """Return the half message at an offset of its queue; None if it is resolved."""
        key = half_key(queue_offset)
        row = self._family.get(key)
        return None if row is None else HalfMessage.parse(key, row)

    def half_of(self, message_id: str) -> HalfMessage | None:
        """Return the half message with this id; None if it is resolved."""
        row = self._family.get(id_key(message_id))
        return None if row is None else self.half(QueueOffset(unpack_offset(row)))

    def checks_due(self, from_ms: int, until_ms: int, limit: int) -> list[CheckDue]:
        """Return half messages whose producers are to be asked, the earliest first; some may be resolved by now."""
        return [CheckDue.parse(*row) for row in self._family.scan(checks_between(from_ms, until_ms), limit=limit)]

    def check_again(self, before: CheckDue, after: CheckDue | None) -> None:
        """Ask the producer later, or never again. This is not derived from the log: after a crash it may be asked once
        more.
        """
        batch = self._engine.batch()
        batch.delete(self._family, before.key)
        if after is not None:
            batch.put(self._family, after.key, after.row)
        self._engine.write(batch)

    def resolution(self, queue_offset: QueueOffset) -> Resolution | None:
        """Return how a transaction ended; None when it has not, or ended long ago."""
        row = self._family.get(resolved_key(queue_offset))
        return None if row is None else Resolution(row)


def reading(log: CommitLogReader) -> ReadRecord:
    """Return a function that reads records of a log; it returns None where the log has no whole record."""

    def read(at: PhysicalOffset) -> StoredMessage | None:
        try:
            found = log.decode(at)
        except OffsetOutOfRange:
            return None
        return found if isinstance(found, StoredMessage) else None

    return read


def _looks_at_rows(change: Change) -> bool:
    """Return whether the effect depends on the rows of earlier records, which then have to be written first."""
    match change:
        case Recalled() | Resolved():
            return True
        case WaitsForProducer(checks=checks):
            return checks > 0
    return False


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
    timers_read_ms = now_ms
    for message in pending.waiting_messages():
        record = read(message.physical_offset)
        if record is not None:
            queue = QueueId(record.topic, record.queue_number)
            if queue == TIMERS:
                timers_read_ms = min(timers_read_ms, slot_before(message.due_ms))
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
        timers_read_ms=timers_read_ms,
        halves=reached(HALVES),
    )


def slot_before(due_ms: int) -> int:
    """Return the second into which RocketMQ puts a timer; for a full second it is the one before.

    If the first timer that is pending is due at `due_ms`, all timers of earlier seconds were delivered.
    """
    return (due_ms - 1) // ROUNDED_MS * ROUNDED_MS
