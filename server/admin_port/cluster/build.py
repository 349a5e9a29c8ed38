"""Assemble the parts that make a broker a member of a cluster, if its settings name one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.admin_port.cluster.client import PeerClient
from quarry_mq.server.admin_port.cluster.members import AllMembersService, MembersService
from quarry_mq.server.admin_port.cluster.relay import MemberCalls, OwnCalls
from quarry_mq.server.admin_port.cluster.service import ClusterService, GroupCalls
from quarry_mq.server.admin_port.server import MoreService
from quarry_mq.server.cluster.cluster import Cluster
from quarry_mq.server.cluster.reading_order import GroupLeft, ReadingOrder
from quarry_mq.server.cluster.signing import ClusterKeys
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.errors import MemberUnreachable, NotAMember
from quarry_mq.server.lag.group_progress import Budget, GroupProgress
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.process.certificates import PeerTls
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.routing import BrokerIdentity
from quarry_mq.server.rpc.messaging import Components, Messaging
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.tasks import Supervisor, TimeSlice
from quarry_mq.store.errors import Invalid
from quarry_mq.store.metadata import Topic
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.replication import Applied, SharedKind


def make_cluster(settings: BrokerSettings, store: OpenStore, delivery: Delivery, clock: Clock) -> Cluster | None:
    """Return the cluster; None for a broker that is in none. Raises Invalid for an unusable key file, StoreDamaged."""
    replicated, key_file = store.replicated, settings.cluster.key_file
    if replicated is None or key_file is None:
        return None

    def applied(rows: Applied) -> None:
        """Delete what belongs to topics and groups that other members have deleted."""
        for row in rows.changed:
            if row.value is None and row.kind is SharedKind.TOPIC:
                delivery.delete_topic(row.name)
                store.messages.delete_topic(row.name)
            elif row.value is None and row.kind is SharedKind.GROUP:
                delivery.delete_group(row.name)

    return Cluster(
        settings,
        store,
        replicated,
        delivery,
        clock,
        keys=ClusterKeys.read(key_file),
        connect=lambda address, keys, name, member: PeerClient(
            address, keys, clock, PeerTls.of(settings.network, settings.cluster), name, member=member
        ),
        applied=applied,
    )


def joined(
    cluster: Cluster | None,
    supervisor: Supervisor,
    identity: BrokerIdentity,
    admin_listening: str,
    health: HealthState,
) -> AbstractAsyncContextManager[None]:
    """Return a context during which the broker is a member of the cluster."""
    return nullcontext() if cluster is None else cluster.running(supervisor, identity, admin_listening, health)


def cluster_services(
    cluster: Cluster | None,
    messaging: Messaging,
    clock: Clock,
    error_reporter: ErrorReporter,
    *,
    own: OwnCalls,
    own_name: str,
    overview: Callable[[], bytes],
    order: ReadingOrder,
) -> list[MoreService]:
    """Return the services for operators, and for other members, which ask for this one's `overview`, and make calls."""
    together = AllMembersService(MemberCalls(own, own_name, cluster), error_reporter)
    if cluster is None:
        return [MembersService(None, None, error_reporter), together]
    calls = GroupCalls(
        confirmation=cluster.groups.confirmation,
        consumed=cluster.consumed,
        take_forwarded=messaging.sending.take_forwarded,
        change_lite=messaging.lite.take_told,
        overview=overview,
        left_in_order=lambda topic: order.left(topic, TimeSlice(clock)),
        relayed=own.run,
    )
    return [
        MembersService(cluster.members, cluster.rejoining, error_reporter, lambda: cluster.groups.waiting_for),
        together,
        ClusterService(cluster.exchange, calls, cluster.keys, clock, error_reporter),
    ]


def make_reading_order(cluster: Cluster | None, its: Components) -> ReadingOrder:
    """Return the reading order of this broker, and of all members if it is in a cluster."""
    store = its.store
    progress = GroupProgress(store, its.delivery, its.delivery.writer, its.clock)

    async def left(group: str, topic: Topic, time_slice: TimeSlice) -> int:
        found = await progress.of_topic(group, topic, time_slice, Budget())
        return found.ready + found.in_flight

    return ReadingOrder(
        store.messages,
        topic=store.topics.get,
        group=store.groups.get,
        readers_of=store.offsets.readers_of,
        left=left,
        is_storing=its.sends.commit.is_storing,
        elsewhere=None if cluster is None else partial(_left_elsewhere, cluster),
    )


async def _left_elsewhere(cluster: Cluster, topic: str) -> dict[str, list[GroupLeft]]:
    """Ask all other members what is left to read in order. Raises MemberUnreachable."""

    async def left(name: str) -> list[GroupLeft]:
        try:
            return await cluster.peers.left_in_order(name, topic)
        except (MemberUnreachable, NotAMember, Invalid) as error:
            raise MemberUnreachable(f"member {name} cannot be asked: {error}") from None

    names = [each.member.name for each in cluster.members.all() if not each.is_self]
    return dict(zip(names, await asyncio.gather(*map(left, names)), strict=True))
