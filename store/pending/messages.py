"""The module keeps the index of pending messages up to date as the log grows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from quarry_mq.kv import KeyRange, KeyValueEngine, WriteBatch
from quarry_mq.protocol.messages.property_names import UNIQUE_KEY
from quarry_mq.store.commitlog import CommitLogReader
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.message import DispatchRequest
from quarry_mq.store.offsets import PhysicalOffset, QueueOffset
from quarry_mq.store.pending.before import PendingBefore
from quarry_mq.store.pending.changes import (
    Change,
    ReadRecord,
    Recalled,
    Released,
    Resolved,
    Waits,
    WaitsForProducer,
    changes_of,
    may_any_change,
    may_change,
)
from quarry_mq.store.pending.rows import (
    ALL_HALVES,
    ALL_TIMERS,
    EVERYTHING,
    FAMILY,
    WATERMARK_KEY,
    CheckDue,
    DueMessage,
    HalfMessage,
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
from quarry_mq.store.settings import CHECK_AFTER_MS

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
        """Open the rows. `check_after_ms`: how soon the producer of a half message is asked, unless the message says
        otherwise.
        """
        self._engine = engine
        self._family = engine.family(FAMILY)
        self._read = read
        self._before = before
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
            if not may_change(request) or (self._before is not None and self._before.is_over(request)):
                continue
            for change in changes_of(request, self._read):
                if len(batch) and _looks_at_rows(change):
                    self._write(batch, request.physical_offset)
                    batch = self._engine.batch()
                self._stage(batch, change)
        if len(batch):
            self._write(batch, up_to)
        self._up_to = up_to

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

    def close(self) -> None:
        self._engine.close()

    def _stage(self, batch: WriteBatch, change: Change) -> None:
        match change:
            case Waits(message=message):
                batch.put(self._family, message.key, message.row)
                self.timer_changes += 1
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
