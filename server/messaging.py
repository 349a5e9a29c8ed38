"""The messaging service of one broker: its calls, over the components that serve them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.clients import ClientRegistry
from server.delivery import Delivery, StateWriter
from server.delivery.pulls import Pulls
from server.faults import FaultLog
from server.front import Methods
from server.group_commit import GroupCommit
from server.held import DelayedDelivery, Transactions
from server.metadata import AutoCreation, Directory
from server.metrics import ServerMetrics
from server.observing import Observing
from server.routing import BrokerIdentity
from server.rpc.context import Edge
from server.rpc.held import HeldMessageService
from server.rpc.messages import MessageService
from server.rpc.methods import messaging_methods
from server.rpc.offsets import OffsetService
from server.rpc.pulling import PullService
from server.rpc.revocation import Revocation
from server.rpc.route import RouteService
from server.rpc.session import SessionService
from server.rpc.telemetry import TelemetryService
from server.rpc.traced import traced
from server.rpc.unsupported import UnsupportedService
from server.security.gate import Gate
from server.settings import BrokerSettings
from server.tracing import Tracing
from store.clock import Clock
from store.message import Host
from store.opening import OpenStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Components:
    """What the calls need of a broker."""

    store: OpenStore
    identity: BrokerIdentity
    clients: ClientRegistry
    commit: GroupCommit
    delivery: Delivery
    pulls: Pulls
    delays: DelayedDelivery
    transactions: Transactions
    state_writer: StateWriter
    metrics: ServerMetrics
    observing: Observing
    faults: FaultLog
    store_host: Callable[[], Host]
    clock: Clock
    tracing: Tracing | None
    gate: Gate | None = None


class Messaging:
    """All calls of the protocol."""

    def __init__(self, components: Components, settings: BrokerSettings) -> None:
        self._components = components
        self._limits = settings.for_wire()
        self._edge = Edge(components.clients, components.faults, components.gate)
        self._directory = Directory(
            components.store.topics,
            components.store.groups,
            AutoCreation(
                topics=settings.topics.auto_create,
                groups=settings.groups.auto_create,
                topic_queues=settings.topics.default_queues,
            ),
        )
        self.telemetry = TelemetryService(
            self._edge, components.clients, self._directory, self._limits, subscribed=self._start_groups
        )

        self._revocation = None
        if components.gate is not None:
            self._revocation = Revocation(
                components.gate,
                self.telemetry,
                components.clients,
                end_waiting=[components.delivery.end_waiting, components.pulls.end_waiting],
            )

    def sweep(self) -> None:
        """End what goes on for users that may not; to be called every few seconds."""
        if self._revocation is not None:
            self._revocation.sweep()

    def methods(self) -> Methods:
        """For a front to serve."""
        edge, directory, limits, its = self._edge, self._directory, self._limits, self._components
        messages = MessageService(
            edge,
            directory=directory,
            clients=its.clients,
            commit=its.commit,
            delivery=its.delivery,
            transactions=its.transactions,
            state_writer=its.state_writer,
            limits=limits,
            store_host=its.store_host,
            clock=its.clock,
            metrics=its.metrics,
            observing=its.observing,
        )
        pulling = PullService(
            edge,
            directory=directory,
            store=its.store.messages,
            pulls=its.pulls,
            delivery=its.delivery,
            state_writer=its.state_writer,
            limits=limits,
        )
        methods = messaging_methods(
            messages.methods(),
            self.telemetry.methods(),
            RouteService(edge, its.clients, directory, its.identity).methods(),
            SessionService(edge, its.clients).methods(),
            OffsetService(edge, directory, its.store.messages).methods(),
            HeldMessageService(
                edge,
                directory=directory,
                delays=its.delays,
                transactions=its.transactions,
                traffic=its.observing.traffic,
            ).methods(),
            pulling.methods(),
            UnsupportedService(edge).methods(),
        )
        return methods if its.tracing is None else traced(methods, its.tracing)

    def _start_groups(self, group: str, topics: Sequence[str]) -> None:
        """A consumer has said what it wants: fix where its group starts, before anything is sent."""
        for name in topics:
            topic = self._components.store.topics.get(name)
            if topic is not None:
                queues = range(max(topic.read_queues, topic.write_queues))
                self._components.delivery.start_group(group, name, queues)
