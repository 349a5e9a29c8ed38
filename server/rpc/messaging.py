"""Builds the messaging service of one broker: its calls, and the components that serve them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.limits import WireLimits
from quarry_mq.server.append.copies import Copies
from quarry_mq.server.append.group_commit import GroupCommit
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.cluster.grouped_sends import GroupedSends
from quarry_mq.server.cluster.lite_spreading import LiteSpreading
from quarry_mq.server.cluster.membership.members import Members
from quarry_mq.server.counters.traffic import RecentRates, Traffic
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.delivery.fetch.pulls import Pulls
from quarry_mq.server.faults import FaultLog
from quarry_mq.server.front import Methods
from quarry_mq.server.front.contract import MessageHandler
from quarry_mq.server.held import DelayedDelivery, Transactions
from quarry_mq.server.lite.counts import LiteBirths, LiteTopicCounts
from quarry_mq.server.lite.subscriptions import LiteSubscriptions
from quarry_mq.server.metadata import Directory
from quarry_mq.server.observability.metrics.instruments import ServerMetrics
from quarry_mq.server.observability.tracing import Tracing
from quarry_mq.server.routing import BrokerIdentity
from quarry_mq.server.rpc.clients.client_commands import ClientCommands
from quarry_mq.server.rpc.clients.revocation import Revocation
from quarry_mq.server.rpc.clients.session import SessionService
from quarry_mq.server.rpc.clients.telemetry import TelemetryService
from quarry_mq.server.rpc.context import Edge
from quarry_mq.server.rpc.held import HeldMessageService
from quarry_mq.server.rpc.limits import HeldSizes, LimitsMet, RequestRates
from quarry_mq.server.rpc.lite import LiteService
from quarry_mq.server.rpc.methods import messaging_methods
from quarry_mq.server.rpc.receives.offsets import OffsetService
from quarry_mq.server.rpc.receives.pulls import PullService
from quarry_mq.server.rpc.receives.receives import MessageService
from quarry_mq.server.rpc.routes.routes import RouteService
from quarry_mq.server.rpc.sends.sends import SendService
from quarry_mq.server.rpc.traced import traced
from quarry_mq.server.security.gate import Gate
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.wire.settings import LITE_CONSUMERS, ClientSettings
from quarry_mq.store.errors import GroupNotFound
from quarry_mq.store.message import Host
from quarry_mq.store.native import NATIVE, WHY_NOT, Native
from quarry_mq.store.opening.open_store import OpenStore

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Components:
    """The parts of a broker that the calls need."""

    store: OpenStore
    identity: BrokerIdentity
    clients: ClientRegistry
    commit: GroupCommit
    copies: Copies
    """Sends the broker's own copies of messages."""
    delivery: Delivery
    pulls: Pulls
    delays: DelayedDelivery
    transactions: Transactions
    lite_subscriptions: LiteSubscriptions
    lite_topics: LiteTopicCounts
    metrics: ServerMetrics
    traffic: Traffic
    faults: FaultLog
    store_host: Callable[[], Host]
    clock: Clock
    limits_met: LimitsMet
    tracing: Tracing | None
    native: Native | None
    """The native part; None where it is not used."""
    members: Members | None = None
    grouped_sends: GroupedSends | None = None
    lite_spreading: LiteSpreading | None = None
    gate: Gate | None = None


class Messaging:
    """Serve all calls of the protocol."""

    def __init__(self, components: Components, settings: BrokerSettings) -> None:
        self._components = components
        self.rates = RecentRates(components.traffic, components.clock)
        limits = settings.for_wire()
        self._rates = RequestRates(components.clock, settings.limits.requests_per_client)
        self._waiting_sizes = HeldSizes("waiting_sends", **_waiting_sizes(settings))
        self._edge = Edge(
            components.clients,
            components.faults,
            components.gate,
            rates=self._rates,
            limits_met=components.limits_met,
            native=components.native,
        )
        self._directory = Directory(components.store.topics, components.store.groups, settings)
        self.commands = ClientCommands()
        self.telemetry = TelemetryService(
            self._edge,
            components.clients,
            self._directory,
            limits,
            subscribed=self._start_groups,
            command_answered=self.commands.answered,
        )
        if components.native is not None:
            components.store.messages.use(components.native)
            components.store.queues.use(components.native)
        self.sending = self._make_sending(self._edge, limits, components.native)
        # for operators, whom the admin port has authenticated
        self._operators_sending = self._make_sending(
            Edge(components.clients, components.faults, limits_met=components.limits_met), limits
        )
        self._messages = self._make_messages(limits)
        self._pulling = self._make_pulling(limits)
        self.lite = LiteService(
            self._edge,
            directory=self._directory,
            subscriptions=components.lite_subscriptions,
            limits=limits,
            spreading=components.lite_spreading,
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
        """Sample the rates, and end calls of users that lost their rights; to be called every few seconds."""
        self.rates.sample()
        if self._revocation is not None:
            self._revocation.sweep()

    def configure(self, settings: BrokerSettings) -> None:
        """Apply changed settings from now on."""
        self._directory.configure(settings)
        self._rates.configure(settings.limits.requests_per_client)
        self._waiting_sizes.configure(**_waiting_sizes(settings))
        for service in (
            self.telemetry,
            self.sending,
            self._operators_sending,
            self._messages,
            self._pulling,
            self.lite,
        ):
            service.configure(settings.for_wire())

    @property
    def components(self) -> Components:
        return self._components

    @property
    def operators_send(self) -> MessageHandler:
        """SendMessage for operators, whom the admin port has let in already."""
        return self._operators_sending.methods()["SendMessage"].handler

    @property
    def operators_resend(self) -> MessageHandler:
        """SendMessage for operators who send messages again that were stored before."""
        return self._operators_sending.resending()

    def _make_sending(self, edge: Edge, limits: WireLimits, native: Native | None = None) -> SendService:
        its = self._components
        return SendService(
            edge,
            directory=self._directory,
            commit=its.commit,
            delays=its.delays,
            transactions=its.transactions,
            limits=limits,
            store_host=its.store_host,
            clock=its.clock,
            metrics=its.metrics,
            traffic=its.traffic,
            waiting_sizes=self._waiting_sizes,
            lite_births=LiteBirths(its.lite_topics, its.store.messages),
            may_have_queue=its.store.messages.may_have_queue,
            grouped=its.grouped_sends,
            native=native,
        )

    def _make_messages(self, limits: WireLimits) -> MessageService:
        its = self._components
        return MessageService(
            self._edge,
            directory=self._directory,
            clients=its.clients,
            delivery=its.delivery,
            limits=limits,
            clock=its.clock,
            metrics=its.metrics,
            traffic=its.traffic,
        )

    def _make_pulling(self, limits: WireLimits) -> PullService:
        its = self._components
        return PullService(
            self._edge,
            directory=self._directory,
            store=its.store.messages,
            pulls=its.pulls,
            delivery=its.delivery,
            limits=limits,
        )

    def methods(self) -> Methods:
        """Return all calls, for a front to serve."""
        edge, directory, its = self._edge, self._directory, self._components
        methods = messaging_methods(
            self.sending.methods(),
            self._messages.methods(),
            self.telemetry.methods(),
            RouteService(edge, its.clients, directory, its.identity, its.members).methods(),
            SessionService(edge, its.clients).methods(),
            OffsetService(edge, directory, its.store.messages).methods(),
            HeldMessageService(
                edge,
                directory=directory,
                delays=its.delays,
                transactions=its.transactions,
                traffic=its.traffic,
            ).methods(),
            self._pulling.methods(),
            self.lite.methods(),
        )
        return methods if its.tracing is None else traced(methods, its.tracing, its.native)

    def _start_groups(self, group: str, settings: ClientSettings) -> None:
        """Fix the offsets where a consumer's group starts, before a message is sent to it.

        The group is created by that, and counted: its starts are stored. For lite topics the consumer itself says where
        its group starts. Raises OverLimit.
        """
        if settings.kind in LITE_CONSUMERS:
            return
        found = [topic for name in settings.topics if (topic := self._components.store.topics.get(name)) is not None]
        try:
            if found:
                self._directory.group_to_receive(group, self._edge.user)
        except GroupNotFound:
            return  # the group may not be created, so it will not receive
        for topic in found:
            queues = range(topic.queue_count)
            self._components.delivery.start_group(group, topic.name, queues)


def native_part(settings: BrokerSettings) -> Native | None:
    """Return the native part if it is installed and the settings do not turn it off."""
    if settings.broker.native and NATIVE is None:
        log.info("no native part: all is done in Python", reason=WHY_NOT)
    return NATIVE if settings.broker.native else None


def _waiting_sizes(settings: BrokerSettings) -> dict[str, int]:
    limits = settings.limits
    return {"total_max": limits.waiting_sends_size, "client_max": limits.waiting_sends_per_client}
