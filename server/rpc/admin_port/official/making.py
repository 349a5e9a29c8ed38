"""The official admin service of a broker, put together from the broker's parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server.administration import Administration
from server.clients import ClientRegistry
from server.cluster.members import Members
from server.delivery import Delivery, StateWriter
from server.faults import FaultLog
from server.group_progress import GroupProgress
from server.key_index import KeyIndex
from server.live_settings import LiveSettings
from server.message_browser import MessageBrowser
from server.messaging import Messaging
from server.pacing import Pacing
from server.rpc.admin_port.official.clients import ClientCalls
from server.rpc.admin_port.official.commands import CommandCalls
from server.rpc.admin_port.official.edge import Names
from server.rpc.admin_port.official.lag import LagCalls
from server.rpc.admin_port.official.queries import QueryCalls
from server.rpc.admin_port.official.runtime import RuntimeCalls
from server.rpc.admin_port.official.sends import SendCalls
from server.rpc.admin_port.official.service import Calls, OfficialAdminService
from server.rpc.admin_port.official.topics import TopicCalls
from server.throughput import Throughput
from store.clock import Clock
from store.opening import OpenStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What the calls need of a broker. `connections` as `RuntimeCalls` has it."""

    store: OpenStore
    administration: Administration
    clients: ClientRegistry
    delivery: Delivery
    state_writer: StateWriter
    throughput: Throughput
    connections: Callable[[], int | None]
    live_settings: LiveSettings
    messaging: Messaging
    key_index: KeyIndex
    members: Members | None
    faults: FaultLog
    clock: Clock


def official_admin(parts: Parts) -> OfficialAdminService:
    store, clock, facts = parts.store, parts.clock, parts.administration.facts
    names, pacing = Names(store.topics, store.groups), Pacing(clock)
    progress = GroupProgress(store, parts.delivery, parts.state_writer, clock)
    clients = ClientCalls(parts.clients, names, store.offsets, progress, pacing)
    queries = QueryCalls(
        names,
        parts.key_index,
        MessageBrowser(store.messages),
        store.messages,
        pacing,
        broker_name=facts.name,
        clock=clock,
    )
    messaging = parts.messaging
    return OfficialAdminService(
        Calls(
            clients=clients,
            commands=CommandCalls(names, clients, queries, messaging.commands, messaging.telemetry),
            lag=LagCalls(names, progress, pacing, broker_name=facts.name, clock=clock),
            queries=queries,
            runtime=RuntimeCalls(facts, parts.clients, parts.throughput, parts.connections, parts.live_settings),
            sends=SendCalls(names, messaging.operators_send, clock),
            topics=TopicCalls(parts.administration, names, parts.members, pacing),
        ),
        parts.faults,
    )
