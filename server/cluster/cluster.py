"""A broker as a member of a cluster: what it knows of the others, and what it tells them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

from server.cluster.discovery import Discovery
from server.cluster.exchange import Exchange, Peer
from server.cluster.forgetting import Forgetting
from server.cluster.member import Member
from server.cluster.members import Members
from server.cluster.rejoining import Rejoining
from server.cluster.signing import ClusterKeys
from server.routing import Address, BrokerIdentity
from server.settings import BrokerSettings
from server.supervision import Supervisor
from store.clock import Clock
from store.shared import Applied, SharedRows

Connect = Callable[[str, ClusterKeys, str | None], Peer]
"""To an address, with the keys, and the name that its certificate must have in place of the address."""


class Cluster:
    """Lives on the event loop's thread."""

    def __init__(
        self,
        settings: BrokerSettings,
        shared: SharedRows,
        clock: Clock,
        *,
        keys: ClusterKeys,
        connect: Connect,
        applied: Callable[[Applied], None],
        messages_of: Callable[[str], int],
    ) -> None:
        """`messages_of` counts the messages of a topic on this member."""
        cluster = settings.cluster
        self.keys = keys
        self._settings = settings
        self.members = Members(
            settings.broker.name, shared, clock, unreachable_after_s=cluster.unreachable_after_ms / 1000
        )
        discovery = Discovery(cluster.members, cluster.dns)
        self.exchange = Exchange(
            settings.broker.name,
            shared,
            self.members,
            interval_s=cluster.exchange_interval_ms / 1000,
            clock=clock,
            connect=lambda address: connect(address, keys, discovery.name_of(address)),
            discover=discovery.addresses,
            applied=applied,
        )
        self.rejoining = Rejoining(self.exchange, shared, messages_of)
        self._forgetting = Forgetting(shared, clock, kept_days=cluster.tombstone_days)

    @asynccontextmanager
    async def running(
        self, supervisor: Supervisor, identity: BrokerIdentity, admin_listening: str
    ) -> AsyncIterator[None]:
        """Join the others, now that it is known where this one listens."""
        self.members.announce(_own(self._settings, identity, Address.parse(admin_listening)))
        async with (
            supervisor.running("exchange with members", self.exchange.run()),
            supervisor.running("forgetting of deletions", self._forgetting.run()),
        ):
            yield


def _own(settings: BrokerSettings, identity: BrokerIdentity, admin: Address) -> Member:
    network = settings.network
    plain = identity.advertise or identity.listen
    secure = identity.secure_advertise or identity.secure_listen or (plain if network.tls != "off" else None)
    admin_host = plain.host if admin.is_unspecified else admin.host
    return Member(
        name=settings.broker.name,
        address=None if network.tls == "required" else str(plain),
        tls_address=None if secure is None else str(secure),
        admin_address=str(Address(admin_host, admin.port)),
        version=version("quarry-mq"),
    )
