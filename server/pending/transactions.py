"""Ends transactions: a half message becomes a message, or nothing, as its producer decides.

When a producer does not decide, a live producer of the topic is asked over its telemetry stream: first when the half
message has waited for as long as its producer wanted (or `check_after_ms`), then at intervals. After too many checks
without a decision the transaction is rolled back. A check that no producer was there to receive does not count.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import structlog
from isal.isal_zlib import crc32

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.messages.property_names import PRODUCER_GROUP, REAL_TOPIC
from quarry_mq.server.append.copies import Copies, is_final
from quarry_mq.server.delivery.handles import HandleKey, Purpose
from quarry_mq.server.delivery.model import ErrorSink
from quarry_mq.server.errors import InvalidTransactionId, NotWaiting
from quarry_mq.server.pending.copies import committed, given_up, resolved
from quarry_mq.server.pending.delays import PendingStore
from quarry_mq.server.settings.sections import TransactionsSection
from quarry_mq.store.errors import Busy, MessageGivenUp, OffsetOutOfRange
from quarry_mq.store.lru_cache import LruCache
from quarry_mq.store.message import Appended, Message, QueueOffset
from quarry_mq.store.pending import CheckDue, HalfMessage, Resolution
from quarry_mq.store.record import StoredMessage

_FORM: Final = re.compile(r"([0-9A-F]{16})([0-9A-F]{16}|[0-9A-F]{8})", re.ASCII)
_CHECK_DIGITS: Final = 8
_OFFSET_MAX: Final = 2**63 - 1


class NamedTransaction(NamedTuple):
    """The transaction that an id names. Without a proof anybody may have made the id."""

    queue_offset: QueueOffset
    is_proven: bool


def encode_transaction_id(queue_offset: int, topic: str, key: HandleKey) -> str:
    digits = f"{queue_offset:016X}"
    return digits + key.proof(Purpose.TRANSACTION, topic, fields=digits.encode()).hex().upper()


def decode_transaction_id(text: str, topic: str, key: HandleKey) -> NamedTransaction:
    """Decode an id. Raises InvalidTransactionId for any text that was not made for this topic."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidTransactionId("cannot found transaction data: the transaction id does not belong to this topic")
    digits, rest = found.groups()
    is_proven = len(rest) > _CHECK_DIGITS
    if is_proven:
        is_of_topic = key.proves(bytes.fromhex(rest), Purpose.TRANSACTION, topic, fields=digits.encode())
    else:
        is_of_topic = int(rest, 16) == crc32(f"{digits}{topic}".encode())
    if not is_of_topic or int(digits, 16) > _OFFSET_MAX:
        raise InvalidTransactionId("cannot found transaction data: the transaction id does not belong to this topic")
    return NamedTransaction(QueueOffset(int(digits, 16)), is_proven)


log = structlog.get_logger(__name__)

CHECKED_AT_ONCE: Final = 64
"""Number of producers that are asked before other work gets its turn."""
LOOK_INTERVAL_S: Final = 1.0
PAUSE_S: Final = 0.01
CLOCK_MARGIN_MS: Final = 60_000
"""Milliseconds by which a clock that is set back may place a check before those that were handled already."""
SENDERS_REMEMBERED: Final = 65_536

Ended = Callable[[Exception | None], None]
Ask = Callable[[str, str, StoredMessage, str], bool]
"""Sends a client a check (its id, the topic, the half message's record, the transaction's id).

Returns False if the client is gone.
"""


class Producers(Protocol):
    def producers_of(self, topic: str) -> Sequence[str]:
        """Return the ids of live producers that declared the topic."""

    def ask_group(self, half: HalfMessage, record: StoredMessage) -> bool:
        """Ask a producer of the group that the half message names; return False without one."""


class TransactionMetrics(Protocol):
    def transaction_ended(self, resolution: Resolution) -> None: ...

    def transaction_checked(self) -> None: ...

    def transaction_given_up(self) -> None: ...


class Transactions:
    """Commits and rolls back transactions. Lives on the event loop's thread."""

    def __init__(
        self,
        store: PendingStore,
        copies: Copies,
        *,
        clock: Clock,
        metrics: TransactionMetrics,
        handle_key: HandleKey,
    ) -> None:
        self._pending = store.pending
        self._records = store
        self._copies = copies
        self._clock = clock
        self._metrics = metrics
        self._handle_key = handle_key
        self._ending: dict[QueueOffset, tuple[Resolution, list[Ended]]] = {}
        self._senders: LruCache[int, str] = LruCache(SENDERS_REMEMBERED)

    def sender_of(self, half: HalfMessage) -> str | None:
        """Return the id of the client that sent the half message, if it is remembered."""
        return self._senders.get(half.queue_offset)

    def is_ending(self, half: HalfMessage) -> bool:
        return half.queue_offset in self._ending

    def id_of(self, half: HalfMessage, topic: str) -> str:
        return encode_transaction_id(half.queue_offset, topic, self._handle_key)

    def began(self, topic: str, queue_offset: QueueOffset, client_id: str) -> str:
        """Note that a client's half message is stored at an offset of the half queue. Return the transaction's id."""
        if self._senders.is_full:
            self._senders.rotate()
        self._senders.put(queue_offset, client_id)
        return encode_transaction_id(queue_offset, topic, self._handle_key)

    def end(self, topic: str, message_id: str, transaction_id: str, resolution: Resolution, ended: Ended) -> None:
        """Commit or roll back; `ended` is called when that is stored. Repeating the same decision is fine.

        Raises InvalidTransactionId for a transaction that does not exist
        or ended otherwise, Busy while it is about to end otherwise.
        """
        queue_offset, is_proven = decode_transaction_id(transaction_id, topic, self._handle_key)
        half = self._pending.half(queue_offset)
        if half is None:
            if self._pending.resolution(queue_offset) is not resolution:
                raise InvalidTransactionId(
                    "cannot found transaction data: there is no such transaction, or it ended the other way"
                )
            ended(None)
            return
        if not is_proven and half.physical_offset >= self._handle_key.since:
            raise InvalidTransactionId("cannot found transaction data: the transaction id is not one of this broker")
        if message_id and half.message_id != message_id:
            raise InvalidTransactionId("the transaction belongs to another message")
        self._end(topic, half, resolution, ended)

    def end_half(
        self,
        queue_offset: QueueOffset,
        physical_offset: int,
        producer_group: str,
        resolution: Resolution,
        ended: Ended,
    ) -> None:
        """Commit or roll back the half message at these offsets, which a producer of the group has sent; as `end` does.

        Raises InvalidTransactionId, Busy.
        """
        half = self._pending.half(queue_offset)
        if half is None:
            if self._pending.resolution(queue_offset) is not resolution:
                raise InvalidTransactionId("no half message lies there, or the transaction ended the other way")
            ended(None)
            return
        if half.physical_offset != physical_offset:
            raise InvalidTransactionId(f"the half message {queue_offset} does not lie at offset {physical_offset}")
        try:
            properties = self._records.record_at(half.physical_offset).properties
        except (OffsetOutOfRange, MessageGivenUp) as gone:
            raise InvalidTransactionId(f"the half message is lost: {gone}") from gone
        if properties.get(PRODUCER_GROUP) != producer_group:
            raise InvalidTransactionId("the half message belongs to another producer group")
        self._end(properties.get(REAL_TOPIC, ""), half, resolution, ended)

    def _end(self, topic: str, half: HalfMessage, resolution: Resolution, ended: Ended) -> None:
        ending = self._ending.get(half.queue_offset)
        if ending is not None:
            if ending[0] is not resolution:
                raise Busy("the transaction is about to end the other way")
            ending[1].append(ended)
            return
        try:
            record = self._records.record_at(half.physical_offset)
            if record.properties.get(REAL_TOPIC) != topic:
                raise InvalidTransactionId("the transaction belongs to another topic")
            messages = self._ending_of(half, record, resolution)
        except (OffsetOutOfRange, MessageGivenUp, NotWaiting) as gone:
            raise InvalidTransactionId(f"the half message is lost: {gone}") from gone
        self._store_end(half, resolution, messages, [ended])

    def _ending_of(self, half: HalfMessage, record: StoredMessage, resolution: Resolution) -> list[Message]:
        """Return the messages that end the transaction.

        They go in one append, so that all or nothing of it is in the log.
        """
        host = self._copies.store_host()
        operation = resolved(half.queue_offset, store_host=host, now_ms=self._clock.wall_ms())
        return [committed(record, store_host=host), operation] if resolution is Resolution.COMMITTED else [operation]

    def _store_end(
        self, half: HalfMessage, resolution: Resolution, messages: Sequence[Message], ended: list[Ended]
    ) -> None:
        self._ending[half.queue_offset] = (resolution, ended)

        def stored(_appended: Sequence[Appended], error: Exception | None) -> None:
            if error is not None and len(messages) > 1 and resolution is Resolution.ROLLED_BACK and is_final(error):
                # it must not wait for ever: append the last message alone, which ends the transaction
                log.error("a half message that was given up cannot be kept", topic=messages[0].topic, error=str(error))
                self._store_end(half, resolution, messages[-1:], ended)
                return
            _, waiting = self._ending.pop(half.queue_offset)
            if error is None:
                self._metrics.transaction_ended(resolution)
            for each in waiting:
                each(error)

        self._copies.send(messages, stored)

    def give_up(self, half: HalfMessage, record: StoredMessage | None) -> None:
        """Roll back a transaction that nobody decides, and keep its half message if it can be read."""
        host = self._copies.store_host()
        beside = [] if record is None else [given_up(record, store_host=host)]
        operation = resolved(half.queue_offset, store_host=host, now_ms=self._clock.wall_ms())
        self._metrics.transaction_given_up()
        self._store_end(half, Resolution.ROLLED_BACK, [*beside, operation], [])


class TransactionChecks:
    """Asks producers about transactions that they have not ended. Lives on the event loop's thread."""

    def __init__(
        self,
        transactions: Transactions,
        store: PendingStore,
        settings: TransactionsSection,
        *,
        producers: Producers,
        ask: Ask,
        clock: Clock,
        error_reporter: ErrorSink,
        metrics: TransactionMetrics,
    ) -> None:
        self._transactions = transactions
        self._pending = store.pending
        self._records = store
        self._settings = settings
        self._producers = producers
        self._ask = ask
        self._clock = clock
        self._error_reporter = error_reporter
        self._metrics = metrics
        self._turn = 0
        self._checked_until_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def configure(self, settings: TransactionsSection) -> None:
        """Apply changed settings to checks from now on."""
        self._settings = settings

    @property
    def checked_until_ms(self) -> int:
        """The time before which no check is due any more."""
        return self._checked_until_ms

    def start(self) -> None:
        """Ask producers from now on."""
        self._check()

    def stop(self) -> None:
        """Begin nothing more: the store is about to close."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        if self._stopped:
            return
        are_more = False
        try:
            are_more = self._check_due(self._clock.wall_ms())
        except Exception as error:  # noqa: BLE001 - what cannot be read now may be read later
            self._error_reporter.report(error)
        self._timer = asyncio.get_running_loop().call_later(PAUSE_S if are_more else LOOK_INTERVAL_S, self._check)

    def _check_due(self, now_ms: int) -> bool:
        """Handle some of the due checks; return whether there may be more."""
        due = self._pending.checks_due(self._checked_until_ms, now_ms, CHECKED_AT_ONCE)
        for check in due:
            try:
                self._check_one(check, now_ms)
            except Exception as error:  # noqa: BLE001 - one damaged record does not keep the others
                self._error_reporter.report(error, half_message=check.queue_offset)
                self._later(check, now_ms, check.checks)
        if len(due) == CHECKED_AT_ONCE:
            return True
        # earlier checks have been rescheduled, or are gone: the database need not skip over them again
        self._checked_until_ms = max(0, now_ms - CLOCK_MARGIN_MS)
        return False

    def _check_one(self, check: CheckDue, now_ms: int) -> None:
        half = self._pending.half(check.queue_offset)
        if half is None or half.check_from_ms > now_ms:
            self._pending.check_again(check, None)
            return
        if self._transactions.is_ending(half):
            self._later(check, now_ms, check.checks)
            return
        try:
            record = self._records.record_at(half.physical_offset)
        except (OffsetOutOfRange, MessageGivenUp) as gone:
            log.warning("a half message is lost", offset=half.physical_offset, error=str(gone))
            self._transactions.give_up(half, None)
            self._later(check, now_ms, check.checks)
            return
        if check.checks >= self._settings.checks_max:
            self._give_up(half, record)
            self._later(check, now_ms, check.checks)
            return
        heard = self._ask_someone(half, record)
        self._later(check, now_ms, check.checks + heard)

    def _later(self, check: CheckDue, now_ms: int, checks: int) -> None:
        after = CheckDue(now_ms + self._settings.check_interval_ms, check.queue_offset, checks)
        self._pending.check_again(check, after)

    def _ask_someone(self, half: HalfMessage, record: StoredMessage) -> bool:
        """Ask the client that sent the half message, else one of its producer group, else one that declared its topic.

        False: none is there.
        """
        topic = record.properties.get(REAL_TOPIC, "")
        transaction_id = self._transactions.id_of(half, topic)
        sender = self._transactions.sender_of(half)
        others = self._producers.producers_of(topic)
        self._turn += 1
        at = self._turn % len(others) if others else 0
        is_asked = (
            (sender is not None and self._ask(sender, topic, record, transaction_id))
            or self._producers.ask_group(half, record)
            or any(self._ask(client_id, topic, record, transaction_id) for client_id in [*others[at:], *others[:at]])
        )
        if is_asked:
            self._metrics.transaction_checked()
        return is_asked

    def _give_up(self, half: HalfMessage, record: StoredMessage) -> None:
        topic = record.properties.get(REAL_TOPIC, "")
        log.warning("a half message was asked about too often", topic=topic, message_id=half.message_id)
        self._transactions.give_up(half, record)
