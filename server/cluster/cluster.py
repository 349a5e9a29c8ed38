"""Builds the parts of a broker that make it a member of a cluster, and runs them.

Clients' subscriptions to lite topics are forwarded to all members, since messages of a lite topic may be on each of
them, and its clients receive from all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Final, Protocol

import structlog

from quarry_mq.kv import EngineFull
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.addresses import Address
from quarry_mq.server.cluster.handover import Barriers, ConsumedBefore, HandoverRow, OrderedTopics
from quarry_mq.server.cluster.membership import Discovery, Member, Members
from quarry_mq.server.cluster.message_groups import FORWARDED_SIZE_MAX, GroupedSends, MessageGroups
from quarry_mq.server.cluster.peers import GroupPeer, LiteChange, Peers
from quarry_mq.server.cluster.replication import Exchange, Peer, Rejoining, TombstoneDeletion, messages_of
from quarry_mq.server.cluster.signing import ClusterKeys
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.errors import MemberUnreachable, NotAMember
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.routing import BrokerIdentity
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.tasks import Supervisor
from quarry_mq.store.errors import Invalid
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.replication import Applied, ReplicatedRows

log = structlog.get_logger(__name__)

SPREAD_TIMEOUT_S: Final = 1.0
"""Seconds that a client waits for members that do not answer.

The client gives up after two seconds, and repeats its subscriptions every 30.
"""


class LiteSpreading:
    """Forwards subscriptions to the reachable members. Lives on the event loop's thread."""

    def __init__(self, members: Members, peers: Peers) -> None:
        self._members = members
        self._peers = peers
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, change: LiteChange, told: Callable[[], None]) -> None:
        """Forward a change to all reachable members; `told` is called when they have it, or when it takes too long.

        A member that missed the change gets it when the client repeats its subscriptions.
        """
        names = [each.name for each in self._members.others()]
        if not names:
            told()
            return
        task = asyncio.get_running_loop().create_task(self._tell_all(names, change, told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Forward nothing more: no client waits for answers any more."""
        for task in self._tasks:
            task.cancel()

    async def _tell_all(self, names: list[str], change: LiteChange, told: Callable[[], None]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SPREAD_TIMEOUT_S):
                await asyncio.gather(*(self._tell(name, change) for name in names))
        told()

    async def _tell(self, name: str, change: LiteChange) -> None:
        with suppress(MemberUnreachable, NotAMember, Invalid):
            await self._peers.change_lite(name, change)


MEET_TIMEOUT_S: Final = 2.0
"""Seconds that a start waits for answers of other members before it takes none of them for ready."""
LOOK_INTERVAL_S: Final = 0.5

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
        self._clock = clock
        self._ready_delay_s = cluster.ready_delay_ms / 1000
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
        self, supervisor: Supervisor, identity: BrokerIdentity, admin_listening: str, health: HealthState
    ) -> AsyncIterator[None]:
        """Run this member's part in the cluster, now that the addresses where it listens are known."""
        if self._ready_delay_s:
            health.serves_early("serves, and asks the other members")
        self.members.announce(own_member(self._settings, identity, Address.parse(admin_listening)))
        try:
            async with (
                supervisor.running("exchange with members", self.exchange.run(lambda: health.look().is_ready)),
                supervisor.running("message groups", self.groups.run()),
                supervisor.running("forgetting of deletions", self._deletion.run()),
                supervisor.running("readiness", self._be_ready(health)),
            ):
                yield
        finally:
            self.sends.stop()
            self.lite.stop()
            await self.peers.close()

    def leave(self) -> bool:
        """Give the message groups to the other members before a stop; return whether they take them."""
        try:
            return self.members.leave()
        except EngineFull as error:
            log.warning("message groups stay here while this member is away", reason=str(error))
            return False

    async def _be_ready(self, health: HealthState) -> None:
        """Become ready, after a delay while another member is; stay so until cancelled."""
        if self._ready_delay_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(MEET_TIMEOUT_S):
                    await self.exchange.met_others()
            ready_s = self._clock.monotonic_s() + self._ready_delay_s
            while self.members.is_another_ready and (left_s := ready_s - self._clock.monotonic_s()) > 0:
                health.serves_early(f"serves, and is ready in {left_s:.0f} s, when producers use it again")
                await asyncio.sleep(min(left_s, LOOK_INTERVAL_S))
            health.serves_early("")
        await asyncio.Event().wait()


def own_member(settings: BrokerSettings, identity: BrokerIdentity, admin: Address) -> Member:
    """Return what a broker tells the others of itself; `admin` is the address where its admin port listens."""
    network = settings.network
    plain = identity.advertise or identity.listen
    secure = identity.secure_advertise or identity.secure_listen or (plain if network.tls != "off" else None)
    admin_host = plain.host if admin.is_unspecified else admin.host
    return Member(
        name=settings.broker.name,
        address=None if network.tls == "required" else str(plain),
        tls_address=None if secure is None else str(secure),
        admin_address=settings.cluster.advertise or str(Address(admin_host, admin.port)),
        version=version("quarry-mq"),
    )
