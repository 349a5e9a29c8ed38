"""Show scheduled messages and prepared transactions: the first of each, and how many are due when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import DAY_MS, Clock
from quarry_mq.protocol.messages.property_names import REAL_TOPIC, UNIQUE_KEY
from quarry_mq.server.observability.samples import WaitingStats
from quarry_mq.server.pending import DelayedDelivery, TransactionChecks
from quarry_mq.server.tasks import PAUSE_S, Worker
from quarry_mq.store.errors import BrokerError
from quarry_mq.store.message import PhysicalOffset, QueueOffset
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.pending import CheckDue, DueMessage, HalfMessage
from quarry_mq.store.record import StoredMessage

FOREVER_MS: Final = 1 << 62
WITHIN_MS: Final = (60_000, 3_600_000, DAY_MS, 7 * DAY_MS)
DUE_LOOKED_AT_MAX: Final = 100_000
CHECKS_LOOKED_AT_MAX: Final = 10_000
ROWS_AT_ONCE: Final = 500
"""Seconds between two reads: each read keeps the interpreter's lock for a millisecond."""


class TimerView(NamedTuple):
    """A scheduled message. `record` is None if it cannot be read."""

    due: DueMessage
    record: StoredMessage | None

    @property
    def topic(self) -> str:
        return _property(self.record, REAL_TOPIC)

    @property
    def message_id(self) -> str:
        return _property(self.record, UNIQUE_KEY)


class TransactionView(NamedTuple):
    """A prepared transaction. `record` is None if it cannot be read, `check` if it was not found."""

    half: HalfMessage
    record: StoredMessage | None
    check: CheckDue | None

    @property
    def topic(self) -> str:
        return _property(self.record, REAL_TOPIC)


class PendingView(NamedTuple):
    """Count pending messages. `due`: the number of timers looked at, by the shortest of `WITHIN_MS` they are due in."""

    timers: int | None
    transactions: int | None
    first_timers: list[TimerView]
    first_transactions: list[TransactionView]
    due: dict[int, int]
    due_looked_at: int
    late_ms: int


class PendingLook:
    """Reads what is pending. Lives on the event loop's thread; rows and records are read on the thread of `worker`."""

    def __init__(
        self,
        store: MessageStore,
        delays: DelayedDelivery,
        checks: TransactionChecks,
        *,
        stats: WaitingStats,
        worker: Worker,
        clock: Clock,
    ) -> None:
        self._store = store
        self._pending = store.pending
        self._delays = delays
        self._checks = checks
        self._stats = stats
        self._worker = worker
        self._clock = clock
        self._halves_from = QueueOffset(0)
        """No prepared message is below this offset, so the database need not skip those that were resolved before."""

    async def pending(self, limit: int) -> PendingView:
        """Return at most `limit` scheduled messages and transactions. Raises kv.KvError."""
        first = self._delays.first_waiting()
        timers = await self._worker.run(self._timers, first, limit)
        transactions = await self._worker.run(self._first_transactions, limit, self._checks.checked_until_ms)
        due, looked_at = await self._due(first)
        stats = self._stats
        return PendingView(stats.timers, stats.halves, timers, transactions, due, looked_at, stats.late_ms)

    def _timers(self, first: DueMessage | None, limit: int) -> list[TimerView]:
        if first is None:
            return []
        return [
            TimerView(each, self._record(each.physical_offset)) for each in self._pending.due(FOREVER_MS, limit, first)
        ]

    async def _due(self, first: DueMessage | None) -> tuple[dict[int, int], int]:
        due, looked_at = dict.fromkeys(WITHIN_MS, 0), 0
        now_ms = self._clock.wall_ms()
        while first is not None and looked_at < DUE_LOOKED_AT_MAX:
            rows = await self._worker.run(self._pending.due, FOREVER_MS, ROWS_AT_ONCE, first)
            for each in rows:
                within_ms = next((bound for bound in WITHIN_MS if each.due_ms - now_ms <= bound), None)
                if within_ms is not None:
                    due[within_ms] += 1
            looked_at += len(rows)
            first = rows[-1].following if len(rows) == ROWS_AT_ONCE else None
            await asyncio.sleep(PAUSE_S)
        return due, looked_at

    def _first_transactions(self, limit: int, checked_until_ms: int) -> list[TransactionView]:
        halves = self._pending.halves(self._halves_from, limit)
        if halves:
            self._halves_from = halves[0].queue_offset
        checks = self._checks_of({each.queue_offset for each in halves}, checked_until_ms)
        return [
            TransactionView(each, self._record(each.physical_offset), checks.get(each.queue_offset)) for each in halves
        ]

    def _checks_of(self, wanted: set[QueueOffset], from_ms: int) -> dict[QueueOffset, CheckDue]:
        """Return the next check of each transaction, if it is among the checks that are due first."""
        found: dict[QueueOffset, CheckDue] = {}
        looked_at = 0
        while len(found) < len(wanted) and looked_at < CHECKS_LOOKED_AT_MAX:
            rows = self._pending.checks_due(from_ms, FOREVER_MS, ROWS_AT_ONCE)
            found.update((each.queue_offset, each) for each in rows if each.queue_offset in wanted)
            looked_at += len(rows)
            if len(rows) < ROWS_AT_ONCE:
                break
            from_ms = self._past(rows, from_ms)
        return found

    @staticmethod
    def _past(rows: Sequence[CheckDue], from_ms: int) -> int:
        """Return the time to continue at: that of the last row, or 1 ms later if all rows have the same time."""
        last_ms = rows[-1].at_ms
        return last_ms if last_ms > from_ms else last_ms + 1

    def _record(self, at: PhysicalOffset) -> StoredMessage | None:
        try:
            return self._store.record_at(at)
        except (BrokerError, KvError, OSError):
            return None


def _property(record: StoredMessage | None, name: str) -> str:
    return "" if record is None else record.properties.get(name, "")
