"""Pass settings that were changed while the broker runs to the parts that use them."""

from __future__ import annotations

from dataclasses import dataclass

from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.delivery.fetch.pulls import Pulls
from quarry_mq.server.front import Front
from quarry_mq.server.held import Transactions
from quarry_mq.server.observability.logs import set_log_level
from quarry_mq.server.process.descriptors import front_limits
from quarry_mq.server.rpc.messaging import Messaging
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.upkeep import Upkeep


@dataclass(frozen=True, kw_only=True, slots=True)
class Reconfigured:
    """Hold the parts of a broker whose settings can change."""

    clients: ClientRegistry
    delivery: Delivery
    pulls: Pulls
    transactions: Transactions
    upkeep: Upkeep
    messaging: Messaging
    front: Front

    def configure(self, settings: BrokerSettings) -> None:
        """Pass the settings to all parts. Work that is under way may end with the settings that it began with."""
        set_log_level(settings.log.level)
        self.clients.configure(settings)
        self.delivery.configure(settings)
        self.pulls.configure(settings)
        self.transactions.configure(settings.transactions)
        self.upkeep.configure(settings)
        self.messaging.configure(settings)
        self.front.configure(front_limits(settings))
