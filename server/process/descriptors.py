"""Divide the process's file descriptors: the store gets what it needs, connections get the rest.

A database that finds no descriptor for a file to write refuses all writes until the broker is started again. So the
number of connections is bounded such that this cannot happen, whoever opens them; and when something else takes the
descriptors, sends are refused before the last ones are gone, until some are free again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import ip_network
from typing import Final, NamedTuple

import structlog

from quarry_mq.kv import descriptor_limit, descriptor_share
from quarry_mq.kv.rocks import FILES_BESIDE_TABLES, OPEN_TABLES_MAX
from quarry_mq.server.front.contract import FrontLimits
from quarry_mq.server.process.process_metrics import open_files_if_many
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.consumequeue.files.store import OPEN_FILES_MAX
from quarry_mq.store.errors import Invalid

DATABASES: Final = 3
"""The databases of the state, of the consume queues, and of scheduled and prepared messages."""
OTHER_FILES: Final = 96
"""Other files of store and broker: key index, checkpoint, backups, copies, other members, exporters, libraries."""
WEB_CONNECTIONS: Final = 128
"""Connections of the HTTP port and the console, which have bounds of their own, and those that the console opens."""
ADMIN_CONNECTIONS_MAX: Final = 1_024
GREETING_MAX: Final = 1_024
RESERVE_MAX: Final = 2_048
CONNECTIONS_MIN: Final = 16

WATCH_INTERVAL_S: Final = 1.0
CAUSE: Final = "descriptors"

log = structlog.get_logger(__name__)


class DescriptorPlan(NamedTuple):
    """Share of each use in the descriptors of a process."""

    limit: int
    store: int
    admin_connections: int
    greeting: int
    """Connections that wait for their TLS handshake, or were accepted a moment ago."""
    reserve: int
    connections: int
    """Most connections of messaging clients."""

    @classmethod
    def of(cls, limit: int, mapped_segments_max: int) -> DescriptorPlan:
        """Divide `limit` descriptors. Raises Invalid when a broker cannot run with so few."""
        plan = cls._of(limit, mapped_segments_max)
        if plan.connections < CONNECTIONS_MIN:
            needed = limit
            while cls._of(needed, mapped_segments_max).connections < CONNECTIONS_MIN:
                needed += 1
            raise Invalid(
                f"this process may open {limit} files, but a broker needs at least {needed}: raise the hard limit "
                "(ulimit -Hn, LimitNOFILE= in the unit of systemd)"
            )
        return plan

    @classmethod
    def _of(cls, limit: int, mapped_segments_max: int) -> DescriptorPlan:
        databases = DATABASES * (descriptor_share(OPEN_TABLES_MAX, limit) + FILES_BESIDE_TABLES)
        store = databases + descriptor_share(OPEN_FILES_MAX, limit) + mapped_segments_max + OTHER_FILES
        admin, greeting = descriptor_share(ADMIN_CONNECTIONS_MAX, limit), descriptor_share(GREETING_MAX, limit)
        reserve = descriptor_share(RESERVE_MAX, limit)
        connections = limit - store - admin - greeting - reserve - WEB_CONNECTIONS
        return cls(limit, store, admin, greeting, reserve, connections)


def plan_here(mapped_segments_max: int) -> DescriptorPlan:
    """Return the plan for this process, with its present limit. Raises Invalid."""
    return DescriptorPlan.of(descriptor_limit(), mapped_segments_max)


def front_limits(settings: BrokerSettings) -> FrontLimits:
    """Return the limits set for messaging clients, with no more connections than there are descriptors for.

    The limit of one address shrinks in proportion: else one address could take all connections.
    """
    plan, limits = plan_here(settings.store.mapped_segments_max), settings.limits
    connections = min(limits.connections, plan.connections)
    return FrontLimits(
        max_message_size=limits.request_size,
        max_metadata_size=limits.metadata_size,
        max_open_calls=limits.open_calls,
        max_connections=connections,
        max_connections_per_address=max(1, limits.connections_per_address * connections // limits.connections),
        max_greeting=plan.greeting,
        max_unread_size=limits.unread_size,
        proxies=tuple(map(ip_network, settings.network.proxies)),
    )


class DescriptorWatch:
    """Check every second how many descriptors are left."""

    def __init__(
        self, plan: DescriptorPlan, wanted: Callable[[], int], refuse_sends: Callable[[str, str], None]
    ) -> None:
        """`wanted` returns how many connections the settings allow. `refuse_sends` takes a reason, empty for none, and
        the name of the part that has it.
        """
        self._plan = plan
        self._wanted = wanted
        self._refuse_sends = refuse_sends
        self._is_short = False

    @property
    def concern(self) -> str:
        """Return why the settings cannot be met; empty if they can."""
        wanted, plan = self._wanted(), self._plan
        if wanted <= plan.connections:
            return ""
        return (
            f"limits.connections is {wanted}, but only {plan.connections} are accepted: the process may open "
            f"{plan.limit} files"
        )

    async def run(self) -> None:
        """Check every second, until cancelled."""
        if self.concern:
            log.warning("fewer connections than the settings allow", reason=self.concern)
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            self.look(await asyncio.to_thread(open_files_if_many, self._plan.limit - self._plan.reserve))

    def look(self, used: int) -> None:
        """Refuse sends when, with `used` descriptors in use, less than half of the reserve is left.

        Sends are accepted again when three quarters of the reserve are left.
        """
        left = self._plan.limit - used
        if left < self._plan.reserve // 2:
            self._is_short = True
        elif left >= self._plan.reserve * 3 // 4:
            if self._is_short:
                self._refuse_sends("", CAUSE)
            self._is_short = False
        if self._is_short:
            self._refuse_sends(f"{left} of {self._plan.limit} file descriptors are left", CAUSE)
