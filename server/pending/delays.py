"""Delivers scheduled messages when they are due.

A scheduled message is delivered by appending a copy of it to its real topic. The copy names the original, so the append
itself ends the wait. Copies on their way are known in memory only: after a crash before the append the message is still
pending, after a crash that comes later the message is not.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol

import structlog
from isal.isal_zlib import crc32

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.messages.property_names import REAL_TOPIC, UNIQUE_KEY
from quarry_mq.server.append.copies import Copies, is_final
from quarry_mq.server.delivery.handles import PROOF_SIZE, HandleKey, Purpose
from quarry_mq.server.delivery.model import ErrorSink, Timer, Timers
from quarry_mq.server.errors import InvalidRecallHandle, NotWaiting
from quarry_mq.server.pending.copies import carried_over, delivered, recall
from quarry_mq.server.tasks import settle
from quarry_mq.store.errors import MessageGivenUp, OffsetOutOfRange
from quarry_mq.store.message import Appended, DispatchRequest, PhysicalOffset
from quarry_mq.store.pending import DueMessage, PendingMessages, due_of_request
from quarry_mq.store.record import StoredMessage

VERSION: Final = 2
UNPROVEN_VERSION: Final = 1
_FIELDS: Final = Struct(">Bqq")
_CHECK: Final = Struct(">I")
_HEAD: Final = _FIELDS.size + PROOF_SIZE
assert _HEAD == 25


class RecallHandle(NamedTuple):
    """The decoded fields of a recall handle. Without a proof anybody may have made it."""

    due_ms: int
    physical_offset: PhysicalOffset
    message_id: str
    is_proven: bool = True

    def encode(self, topic: str, key: HandleKey) -> str:
        fields, message_id = _FIELDS.pack(VERSION, self.due_ms, self.physical_offset), self.message_id.encode()
        proof = key.proof(Purpose.RECALL, topic, fields=fields + message_id)
        return urlsafe_b64encode(fields + proof + message_id).decode("ascii")

    @classmethod
    def decode(cls, text: str, topic: str, key: HandleKey) -> RecallHandle:
        """Decode a handle. Raises InvalidRecallHandle for any text that `encode` did not make for this topic."""
        try:
            raw = urlsafe_b64decode(text.encode("ascii"))
        except (UnicodeEncodeError, Base64Error, ValueError):
            raise InvalidRecallHandle("recall handle is invalid: it cannot be decoded") from None
        if urlsafe_b64encode(raw).decode("ascii") != text:
            raise InvalidRecallHandle(
                "recall handle is invalid: not base64"
            )  # the decoder ignores text after the padding
        is_proven = raw[:1] != bytes([UNPROVEN_VERSION])
        head = _HEAD if is_proven else _FIELDS.size + _CHECK.size
        fields, proof, message_id = raw[: _FIELDS.size], raw[_FIELDS.size : head], raw[head:]
        if not message_id or not (_is_proof if is_proven else _is_check)(proof, fields, message_id, topic, key):
            raise InvalidRecallHandle(
                "recall failed, topic not match: the recall handle belongs to another topic, or is not one of this "
                "broker"
            )
        _, due_ms, at = _FIELDS.unpack(fields)
        if due_ms < 0 or at < 0:
            raise InvalidRecallHandle("recall handle is invalid: not one of this broker")
        return cls(due_ms, PhysicalOffset(at), message_id.decode(errors="replace"), is_proven)


def _is_proof(proof: bytes, fields: bytes, message_id: bytes, topic: str, key: HandleKey) -> bool:
    return fields[0] == VERSION and key.proves(proof, Purpose.RECALL, topic, fields=fields + message_id)


def _is_check(check: bytes, fields: bytes, message_id: bytes, topic: str, _key: HandleKey) -> bool:
    return _CHECK.pack(crc32(message_id + b"\0" + topic.encode(), crc32(fields))) == check


log = structlog.get_logger(__name__)

LOOKED_AT_MAX: Final = 256
"""Number of due messages that are handled before other work gets its turn: some milliseconds."""
UNDER_WAY_MAX: Final = 4_096
"""Largest number of copies that were sent and are not stored yet."""
UNDER_WAY_PAUSE_S: Final = 0.05
FOREVER_MS: Final = 2**62
LOOK_INTERVAL_S: Final = 1.0
"""Seconds until a clock that was set forward is noticed."""
RETRY_INTERVAL_S: Final = 1.0
"""Seconds to wait after a failure: the disk is full, or a record cannot be read."""

Recalled = Callable[[Exception | None], None]


class PendingStore(Protocol):
    """The part of the message store that pending messages need."""

    @property
    def pending(self) -> PendingMessages: ...

    def record_at(self, at: PhysicalOffset) -> StoredMessage:
        """Return the record that lies at a physical offset.

        Raises OffsetOutOfRange if the log does not hold the offset (any more), StoreDamaged, MessageGivenUp.
        """


class DelayMetrics(Protocol):
    def delayed_delivered(self, late_s: float) -> None: ...

    def delayed_lost(self) -> None: ...


class DelayedDelivery:
    """Delivers, recalls and carries over scheduled messages. Lives on the event loop's thread."""

    def __init__(
        self,
        store: PendingStore,
        copies: Copies,
        *,
        topic_exists: Callable[[str], bool],
        clock: Clock,
        timers: Timers,
        error_reporter: ErrorSink,
        metrics: DelayMetrics,
        handle_key: HandleKey,
    ) -> None:
        self._pending = store.pending
        self._records = store
        self._copies = copies
        self._topic_exists = topic_exists
        self._clock = clock
        self._timers = timers
        self._error_reporter = error_reporter
        self._metrics = metrics
        self._handle_key = handle_key
        self._under_way: set[DueMessage] = set()
        self._next: DueMessage | None = None
        """Every message before this one is under way or delivered. None: not known."""
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        self._stopped = False

    def first_waiting(self) -> DueMessage | None:
        """Return the scheduled message that is due first, among those that are not stored for their consumers yet."""
        found = self._pending.first_due(self._next)
        return min([*self._under_way, *([found] if found is not None else [])], default=None)

    def start(self) -> None:
        """Deliver from now on, beginning with what became due while no broker ran."""
        self._look()

    def stop(self) -> None:
        """Begin nothing more: the store is about to close."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def messages_arrived(self, requests: Iterable[DispatchRequest]) -> None:
        """Note the scheduled messages among those that were dispatched; most are none."""
        for request in requests:
            due = due_of_request(request)
            if due is None:
                continue
            if self._next is not None and due < self._next:
                self._next = due
            if self._timer is None or due.due_ms < self._timer_at_ms:
                self._arm(due.due_ms)

    # -- what is due

    def _look(self) -> None:
        """Deliver some of the due messages, and set the timer for the next ones."""
        self._timer = None
        if self._stopped:
            return
        now_ms = self._clock.wall_ms()
        try:
            self._deliver_due(now_ms)
        except Exception as error:  # noqa: BLE001 - what cannot be read now may be read later
            self._error_reporter.report(error, delayed_until_ms=now_ms)
            self._arm(now_ms + int(RETRY_INTERVAL_S * 1000), not_before=True)

    def _deliver_due(self, now_ms: int) -> None:
        if len(self._under_way) >= UNDER_WAY_MAX:
            return  # `_stored` looks again
        found = self._pending.due(now_ms, LOOKED_AT_MAX, start=self._next)
        for message in found:
            if message not in self._under_way:
                self._deliver(message, now_ms)
        if found:
            self._next = found[-1].following
        if len(found) == LOOKED_AT_MAX:
            self._arm(now_ms)
            return
        waiting = self._pending.first_due(self._next)
        if waiting is not None:
            self._next = waiting
            self._arm(waiting.due_ms)

    def _deliver(self, message: DueMessage, now_ms: int) -> None:
        try:
            record = self._records.record_at(message.physical_offset)
            copy = delivered(record, store_host=self._copies.store_host(), now_ms=now_ms)
        except (OffsetOutOfRange, MessageGivenUp, NotWaiting) as gone:
            self._give_up(message, gone)
            return
        except Exception as error:  # noqa: BLE001 - one damaged record does not keep the others
            self._error_reporter.report(error, delayed_until_ms=message.due_ms)
            self._try_again(message)
            return
        is_wanted = self._topic_exists(copy.topic)
        if not is_wanted:
            log.warning("a delayed message goes with its topic", topic=copy.topic, due_ms=message.due_ms)
            copy = recall(record, due_ms=message.due_ms, store_host=self._copies.store_host())

        def stored(appended: Sequence[Appended], error: Exception | None) -> None:
            if is_wanted and error is None:
                self._metrics.delayed_delivered(max(0, appended[0].store_timestamp_ms - message.due_ms) / 1000)
            self._stored(message, error)

        self._under_way.add(message)
        self._copies.send([copy], stored)

    def _stored(self, message: DueMessage, error: Exception | None) -> None:
        self._under_way.discard(message)
        if error is not None and is_final(error):
            self._give_up(message, error)
        elif error is not None:
            self._try_again(message)
            return
        if self._timer is None:
            self._arm(self._clock.wall_ms())

    def _give_up(self, message: DueMessage, error: Exception) -> None:
        log.warning("a delayed message is lost", due_ms=message.due_ms, error=str(error))
        self._metrics.delayed_lost()
        self._pending.drop(message)

    def _try_again(self, message: DueMessage) -> None:
        if self._next is None or message < self._next:
            self._next = message
        self._arm(self._clock.wall_ms() + int(RETRY_INTERVAL_S * 1000), not_before=True)

    def _arm(self, at_ms: int, *, not_before: bool = False) -> None:
        """Set the timer for a time, but for `LOOK_INTERVAL_S` at most: the clock may be set forward meanwhile."""
        if self._stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
        now_ms = self._clock.wall_ms()
        delay_s = max(0, at_ms - now_ms) / 1000
        self._timer_at_ms = at_ms
        self._timer = self._timers.call_later(delay_s if not_before else min(delay_s, LOOK_INTERVAL_S), self._look)

    # -- expiry

    async def carry_over(self, minimum: PhysicalOffset) -> int:
        """Write pending messages below `minimum` again at the end of the log, and return their number.

        The log below `minimum` is about to expire. When the call returns, no pending message is left there. Raises the
        error that prevents the write, or OSError or StoreDamaged for a record that cannot be read.
        """
        count = 0
        while True:
            done, is_left = await self._carry_over_some(minimum)
            count += done
            if not is_left:
                if count:
                    log.info("delayed messages carried over to the end of the log", count=count, log_begins_at=minimum)
                return count
            await asyncio.sleep(UNDER_WAY_PAUSE_S)  # a copy on its way to its consumers ends the wait when it is stored

    async def _carry_over_some(self, minimum: PhysicalOffset) -> tuple[int, bool]:
        """Go once over all pending messages; return how many were written again, and whether some are on their way."""
        start: DueMessage | None = None
        count, is_left = 0, False
        while True:
            found = self._pending.due(FOREVER_MS, LOOKED_AT_MAX, start)
            old = [message for message in found if message.physical_offset < minimum]
            waiting = [message for message in old if message not in self._under_way]
            is_left |= len(waiting) < len(old)
            if waiting:
                count += await self._rewrite(waiting)
            if len(found) < LOOKED_AT_MAX:
                return count, is_left
            start = found[-1].following
            await asyncio.sleep(0)

    async def _rewrite(self, messages: Sequence[DueMessage]) -> int:
        written: list[asyncio.Future[None]] = []
        for message in messages:
            try:
                record = self._records.record_at(message.physical_offset)
            except (OffsetOutOfRange, MessageGivenUp):
                continue  # reported when it is due
            written.append(self._rewrite_one(message, record))
        await asyncio.gather(*written)
        return len(written)

    def _rewrite_one(self, message: DueMessage, record: StoredMessage) -> asyncio.Future[None]:
        """Return a future that is done when the message is written or given up.

        It ends without an error if no copy of the message can be stored: such a message does not block others.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(message)

        def stored(_appended: Sequence[Appended], error: Exception | None) -> None:
            self._under_way.discard(message)
            if error is not None and is_final(error):
                self._give_up(message, error)
                error = None
            elif error is not None:
                self._try_again(message)  # it may have become due meanwhile
            settle(done, None, error)

        self._copies.send([carried_over(record, due_ms=message.due_ms, store_host=self._copies.store_host())], stored)
        return done

    # -- recall

    def recall_handle(self, topic: str, due_ms: int, at: PhysicalOffset, message_id: str) -> str:
        """Return the handle by which its sender may recall a scheduled message that is stored at this offset."""
        return RecallHandle(due_ms, at, message_id).encode(topic, self._handle_key)

    def recall(self, topic: str, handle: str, recalled: Recalled) -> str:
        """Cancel the delivery of a scheduled message and return its id; `recalled` is called when that is stored.

        Raises InvalidRecallHandle for an invalid handle, and for
        one whose message is delivered, recalled or about to be.
        """
        found = RecallHandle.decode(handle, topic, self._handle_key)
        message, record = self._waiting(found, topic)
        self._under_way.add(message)

        def stored(_appended: Sequence[Appended], error: Exception | None) -> None:
            self._under_way.discard(message)
            if error is not None:
                self._try_again(message)
            recalled(error)

        self._copies.send([recall(record, due_ms=message.due_ms, store_host=self._copies.store_host())], stored)
        return found.message_id

    def _waiting(self, handle: RecallHandle, topic: str) -> tuple[DueMessage, StoredMessage]:
        """Find the message that a recall handle names, at its original offset or written again later.

        Raises InvalidRecallHandle.
        """
        message = self._pending.waiting(handle.due_ms, handle.physical_offset)
        if message is not None:
            candidates = [message]
        else:
            start = DueMessage(handle.due_ms, PhysicalOffset(0), 0)
            candidates = self._pending.due(handle.due_ms, LOOKED_AT_MAX, start)
        for each in candidates:
            if each in self._under_way:
                continue
            if not handle.is_proven and each.physical_offset >= self._handle_key.since:
                continue
            try:
                record = self._records.record_at(each.physical_offset)
            except (OffsetOutOfRange, MessageGivenUp):
                continue
            properties = record.properties
            if (properties.get(REAL_TOPIC), properties.get(UNIQUE_KEY)) == (topic, handle.message_id):
                return each, record
        raise InvalidRecallHandle(
            "recall failed, timestamp invalid: the message was delivered or recalled before, or the handle names "
            "another one"
        )
