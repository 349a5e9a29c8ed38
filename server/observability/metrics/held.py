"""Export metrics of scheduled and prepared messages (`server.held`)."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from quarry_mq.store.pending import Resolution

LATE_BUCKETS_S: Final = [0.001 * 4**step for step in range(12)]
"""Bounds from 1 ms, an idle broker, to 70 min, a broker that was off while a night's messages became due."""


class HeldMetrics:
    """Implement `server.held.delays.DelayMetrics` and `server.held.transactions.TransactionMetrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._late = Histogram(
            "quarry_delayed_message_late_seconds",
            "How long after its delivery time a delayed message became visible to consumers",
            buckets=LATE_BUCKETS_S,
            registry=registry,
        )
        self._lost = Counter(
            "quarry_delayed_messages_lost",
            "Delayed messages that were lost because their record had left the log before they were due, or could "
            "not be copied",
            registry=registry,
        )

        ended = Counter("quarry_transactions_ended", "Transactions by how they ended", ["how"], registry=registry)
        self._ended = {each: ended.labels(how=each.name.lower()) for each in Resolution}
        self._checked = Counter(
            "quarry_transaction_checks", "Checks of half messages that were sent to producers", registry=registry
        )
        self._given_up = Counter(
            "quarry_transactions_given_up",
            "Half messages that were rolled back after too many checks, or because their record was gone",
            registry=registry,
        )

        self._buried = Counter(
            "quarry_dead_letters", "Messages that went to the dead letters of their group", registry=registry
        )
        self._dead_letters_refused = Counter(
            "quarry_dead_letters_refused",
            "Messages that are not delivered any more and could not be stored as dead letters",
            registry=registry,
        )
        self._left_out = Counter(
            "quarry_properties_left_out",
            "Properties that were dropped from copies of messages because the record has no space for them",
            registry=registry,
        )

    def buried(self) -> None:
        self._buried.inc()

    def dead_letter_refused(self) -> None:
        self._dead_letters_refused.inc()

    def left_out(self, properties: int) -> None:
        self._left_out.inc(properties)

    def transaction_ended(self, resolution: Resolution) -> None:
        self._ended[resolution].inc()

    def transaction_checked(self) -> None:
        self._checked.inc()

    def transaction_given_up(self) -> None:
        self._given_up.inc()

    def delayed_delivered(self, late_s: float) -> None:
        self._late.observe(late_s)

    def delayed_lost(self) -> None:
        self._lost.inc()
