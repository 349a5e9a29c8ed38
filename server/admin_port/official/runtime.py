"""The official calls about the broker itself: its statistics, and its log level."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.server.admin.administration import BrokerFacts
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.counters.traffic import RecentRates
from quarry_mq.server.settings.live_settings import LiveSettings
from quarry_mq.server.wire.settings import ClientKind
from quarry_mq.store.errors import Invalid

LOG_LEVEL: Final = "log.level"
UNKNOWN: Final = -1
"""The value of a count that is not known; 0 would say that there are none."""

LEVELS: Final[Mapping[int, str]] = {
    pb.ChangeLogLevelRequest.TRACE: "debug",
    pb.ChangeLogLevelRequest.DEBUG: "debug",
    pb.ChangeLogLevelRequest.INFO: "info",
    pb.ChangeLogLevelRequest.WARN: "warning",
    pb.ChangeLogLevelRequest.ERROR: "error",
}
"""Our log levels. Nothing less important than debug is logged here."""


class RuntimeCalls:
    def __init__(
        self,
        facts: BrokerFacts,
        clients: ClientRegistry,
        rates: RecentRates,
        connections: Callable[[], int | None],
        settings: LiveSettings,
    ) -> None:
        """`connections` returns the number of open connections, None if they are not counted."""
        self._facts = facts
        self._clients = clients
        self._rates = rates
        self._connections = connections
        self._settings = settings

    async def get_proxy_runtime_stats(
        self, _request: pb.GetProxyRuntimeStatsRequest
    ) -> pb.GetProxyRuntimeStatsResponse:
        rates, kinds, connections = self._rates.totals(), self._clients.kinds, self._connections()
        producers = kinds.get(ClientKind.PRODUCER, 0)
        return pb.GetProxyRuntimeStatsResponse(
            proxy_name=self._facts.name,
            version=self._facts.version,
            in_tps=rates.sent,
            out_tps=rates.received,
            connections=UNKNOWN if connections is None else connections,
            producers=producers,
            consumers=sum(kinds.values()) - producers,
        )

    def change_log_level(self, request: pb.ChangeLogLevelRequest) -> pb.ChangeLogLevelResponse:
        """Set the log level durably, as `quarry settings set` does it. Raises Invalid."""
        level = LEVELS.get(request.level)
        if level is None:
            raise Invalid(f"level: {request.level} is unknown")
        shown = self._settings.set(LOG_LEVEL, level)
        return pb.ChangeLogLevelResponse(remark=f"{LOG_LEVEL} is {shown.value} now")
