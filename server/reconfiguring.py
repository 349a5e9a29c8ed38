"""Settings that were changed while the broker runs, taken to the parts that go by them."""

from __future__ import annotations

from dataclasses import dataclass

from server.clients import ClientRegistry
from server.delivery import Delivery
from server.delivery.pulls import Pulls
from server.front import Front
from server.held import Transactions
from server.logs import set_log_level
from server.messaging import Messaging
from server.queue_migration import OnlineMigration
from server.retention import Retention
from server.settings import BrokerSettings
from store.expiry import LogExpiry


@dataclass(frozen=True, kw_only=True, slots=True)
class Reconfigured:
    """The parts of a broker that take other settings."""

    clients: ClientRegistry
    delivery: Delivery
    pulls: Pulls
    transactions: Transactions
    retention: Retention
    expiry: LogExpiry
    migration: OnlineMigration
    messaging: Messaging
    front: Front

    def configure(self, settings: BrokerSettings) -> None:
        """What is under way may go on as it began."""
        set_log_level(settings.log.level)
        self.clients.configure(settings.for_clients(), settings.for_client_limits())
        self.delivery.configure(settings.for_delivery())
        self.pulls.configure(settings.for_delivery())
        self.transactions.configure(settings.for_transactions())
        self.retention.configure(settings.for_expiry())
        self.expiry.remover.configure(
            patience_s=settings.expiry.reader_patience_ms / 1000, pause_s=settings.expiry.pause_ms / 1000
        )
        self.migration.configure(backfill_bytes_per_s=settings.consume_queue.backfill_rate)
        self.messaging.configure(settings)
        self.front.configure(settings.for_front())
