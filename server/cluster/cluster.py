"""Builds the parts of a broker that make it a member of a cluster, and runs them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Final, Protocol

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.addresses import Address
from quarry_mq.server.cluster.grouped_sends import FORWARDED_SIZE_MAX, GroupedSends
from quarry_mq.server.cluster.handover.barriers import Barriers, OrderedTopics
from quarry_mq.server.cluster.handover.consumed import ConsumedBefore
from quarry_mq.server.cluster.handover.handover_row import HandoverRow
from quarry_mq.server.cluster.lite_spreading import LiteSpreading
from quarry_mq.server.cluster.membership.discovery import Discovery
from quarry_mq.server.cluster.membership.member import Member
from quarry_mq.server.cluster.membership.members import Members
from quarry_mq.server.cluster.message_groups import MessageGroups
from quarry_mq.server.cluster.peers import GroupPeer, Peers
from quarry_mq.server.cluster.replication.deletions import TombstoneDeletion
from quarry_mq.server.cluster.replication.exchange import Exchange, Peer
from quarry_mq.server.cluster.replication.rejoin import Rejoining, messages_of
from quarry_mq.server.cluster.signing import ClusterKeys
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.routing import BrokerIdentity
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.tasks.supervision import Supervisor
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.replication import Applied, ReplicatedRows

MARGIN_SIZE: Final = 1024 * 1024
"""Margin in bytes: more than the properties of a message, and more than any other request of a member."""


class ClusterPeer(Peer, GroupPeer, Protocol):
    """Provide all calls of another member."""


Connect = Callable[[str, ClusterKeys, str | None, str], ClusterPeer]
"""Connects to an address.

The arguments are the address, the cluster's keys, the name that the certificate must have in place of the address, and
the member's name, empty where it is not known.
"""


class Cluster:
    """Run one broker's part in its cluster. Lives on the event loop's thread."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: OpenStore,
        replicated: ReplicatedRows,
        delivery: Delivery,
        clock: Clock,
        *,
        keys: ClusterKeys,
        connect: Connect,
        applied: Callable[[Applied], None],
    ) -> None:
        cluster, name = settings.cluster, settings.broker.name
        self.keys = keys
        self._settings = settings
        self.members = Members(name, replicated, clock, unreachable_after_s=cluster.unreachable_after_ms / 1000)
        discovery = Discovery(cluster.members, cluster.dns)

        def connected(address: str, member: str = "") -> ClusterPeer:
            return connect(address, keys, discovery.name_of(address), member)

        self.exchange = Exchange(
            name,
            replicated,
            self.members,
            interval_s=cluster.exchange_interval_ms / 1000,
            clock=clock,
            connect=connected,
            discover=discovery.addresses,
            applied=applied,
        )
        self.peers = peers = Peers(self.members, connected)
        barriers = Barriers(clock, ask=peers.consumed, released=lambda pair: delivery.let_go(pair.group, pair.topic))
        delivery.hold_ordered(OrderedTopics(store.topics, barriers).barrier_of)
        self.groups = MessageGroups(
            name,
            self.members,
            HandoverRow(store.state_engine, replicated.incarnation),
            peers,
            barriers,
            log_end=lambda: store.messages.appended_up_to,
            met_others=self.exchange.met_others,
            clock=clock,
        )
        self.sends = GroupedSends(name, self.groups, peers, clock)
        self.lite = LiteSpreading(self.members, peers)
        self.consumed = ConsumedBefore(store.messages, delivery, lambda: store.expiry.minimum).consumed
        self.rejoining = Rejoining(self.exchange, replicated, partial(messages_of, store))
        self._deletion = TombstoneDeletion(replicated, clock, kept_days=cluster.tombstone_days)

    @property
    def request_size_max(self) -> int:
        """Largest request of another member in bytes: many forwarded sends, or one of the largest."""
        return FORWARDED_SIZE_MAX + self._settings.limits.body_size + MARGIN_SIZE

    @asynccontextmanager
    async def running(
        self, supervisor: Supervisor, identity: BrokerIdentity, admin_listening: str
    ) -> AsyncIterator[None]:
        """Run this member's part in the cluster, now that the addresses where it listens are known."""
        self.members.announce(_own(self._settings, identity, Address.parse(admin_listening)))
        try:
            async with (
                supervisor.running("exchange with members", self.exchange.run()),
                supervisor.running("message groups", self.groups.run()),
                supervisor.running("forgetting of deletions", self._deletion.run()),
            ):
                yield
        finally:
            self.sends.stop()
            self.lite.stop()
            await self.peers.close()


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
