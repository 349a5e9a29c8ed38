"""Builds the messaging service of one broker: its calls, and the components that serve them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.limits import WireLimits
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.append.copies import Copies
from quarry_mq.server.cluster.cluster import Cluster
from quarry_mq.server.counters.traffic import RecentRates
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.delivery.pulls import Pulls
from quarry_mq.server.front import Method, Methods
from quarry_mq.server.front.contract import MessageHandler
from quarry_mq.server.lite.subscriptions import make_lite_subscriptions
from quarry_mq.server.metadata import Directory
from quarry_mq.server.observability.tracing import Tracing
from quarry_mq.server.rpc.context import Edge
from quarry_mq.server.rpc.lite import LiteService
from quarry_mq.server.rpc.pending import PendingMessageService
from quarry_mq.server.rpc.pulls import OffsetService, PullService
from quarry_mq.server.rpc.receives import MessageService
from quarry_mq.server.rpc.routes import RouteService
from quarry_mq.server.rpc.sends import FastSends, SendService, SendStore
from quarry_mq.server.rpc.sessions import ClientCommands, Revocation, SessionService, TelemetryService
from quarry_mq.server.rpc.traced import traced
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.wire.settings import LITE_CONSUMERS, ClientSettings
from quarry_mq.store.errors import GroupNotFound
from quarry_mq.store.native import NATIVE, WHY_NOT, Native
from quarry_mq.store.opening.open_store import OpenStore

_SERVICE: Final = service.DESCRIPTOR.services_by_name["MessagingService"]
METHOD_NAMES: Final = frozenset(_SERVICE.methods_by_name)


SMALL_REQUEST_SIZE: Final = 64 * 1024
"""Bytes that suffice for requests that name topics, groups, messages and a filter of 4,096 characters."""

REQUEST_SIZES: Final[Mapping[str, int | None]] = {
    "SendMessage": None,
    "AckMessage": 2 * 1024 * 1024,
    "Telemetry": 4 * 1024 * 1024,
    "SyncLiteSubscription": 4 * 1024 * 1024,
}
"""Bytes of the requests that may be larger; None: as many as the front takes.

An acknowledgement has 4,096 entries of 512 bytes, settings have 4,096 topics with their filters, and a client's answer
has all of its threads. Lite topics have 64 bytes each, and a group's quota limits their number.
"""


def messaging_methods(*parts: Mapping[str, Method]) -> Methods:
    """Join the services' methods (by short name) into those of the whole service (by full path).

    Raises ValueError unless the parts hold every method of the protocol exactly once, streaming as the protocol says.
    """
    names = [name for part in parts for name in part]
    twice = {name for name in names if names.count(name) > 1}
    if twice or set(names) != METHOD_NAMES:
        raise ValueError(
            f"methods served twice: {sorted(twice)}, not at all: {sorted(METHOD_NAMES - set(names))}, "
            f"unknown: {sorted(set(names) - METHOD_NAMES)}"
        )
    methods = {name: method for part in parts for name, method in part.items()}
    for name, method in methods.items():
        descriptor = _SERVICE.methods_by_name[name]
        if (method.streaming_in, method.streaming_out) != (descriptor.client_streaming, descriptor.server_streaming):
            raise ValueError(f"{name} does not stream as the protocol says")
    return {
        f"/{_SERVICE.full_name}/{name}": replace(method, size_max=REQUEST_SIZES.get(name, SMALL_REQUEST_SIZE))
        for name, method in methods.items()
    }


log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Components:
    """The parts of a broker that calls reach: what all of them share, and those of sends and receives."""

    store: OpenStore
    edge: Edge
    sends: SendStore
    copies: Copies
    """Sends the broker's own copies of messages."""
    delivery: Delivery
    pulls: Pulls
    cluster: Cluster | None
    clock: Clock


class Messaging:
    """Serve all calls of the protocol."""

    def __init__(self, components: Components, settings: BrokerSettings, tracing: Tracing | None) -> None:
        self.components: Final = components
        self._tracing = tracing
        self._edge, cluster = components.edge, components.cluster
        clients, sends = self._edge.clients, components.sends
        self.rates = RecentRates(sends.metrics.traffic, components.clock)
        limits = settings.for_wire()
        self._directory = Directory(components.store.topics, components.store.groups, settings)
        self.commands = ClientCommands()
        self.telemetry = TelemetryService(
            self._edge,
            clients,
            self._directory,
            limits,
            subscribed=self._start_groups,
            command_answered=self.commands.answered,
        )
        self.lite_subscriptions: Final = make_lite_subscriptions(
            components.store,
            components.delivery,
            clients,
            taken_away=self.telemetry.push_taken_away,
            clock=components.clock,
        )
        grouped = None if cluster is None else cluster.sends
        self.sending = SendService(self._edge, self._directory, sends, limits, grouped)
        self._fast: FastSends | None = None
        native = self._edge.native
        if native is not None:
            components.store.messages.use(native)
            components.store.queues.use(native)
            self._fast = FastSends(
                native, self._edge, ordinary=self.sending, directory=self._directory, sends=sends, limits=limits
            )
        # for operators, whom the admin port has authenticated
        edge = Edge(clients, self._edge.error_reporter, limits_met=self._edge.limits_met)
        self._operators_sending = SendService(edge, self._directory, sends, limits, grouped)
        self._messages = MessageService(
            self._edge,
            directory=self._directory,
            clients=clients,
            delivery=components.delivery,
            limits=limits,
            clock=components.clock,
            metrics=sends.metrics,
        )
        self._pulling = self._make_pulling(limits)
        self.lite = LiteService(
            self._edge,
            directory=self._directory,
            subscriptions=self.lite_subscriptions,
            limits=limits,
            spreading=None if cluster is None else cluster.lite,
        )
        self._revocation = self._make_revocation()

    def _make_pulling(self, limits: WireLimits) -> PullService:
        its = self.components
        return PullService(
            self._edge,
            directory=self._directory,
            store=its.store.messages,
            pulls=its.pulls,
            delivery=its.delivery,
            limits=limits,
        )

    def _make_revocation(self) -> Revocation | None:
        gate, its = self._edge.gate, self.components
        if gate is None:
            return None
        ends = [its.delivery.end_waiting, its.pulls.end_waiting]
        return Revocation(gate, self.telemetry, self._edge.clients, end_waiting=ends)

    def sweep(self) -> None:
        """Sample the rates, and end calls of users that lost their rights; to be called every few seconds."""
        self.rates.sample()
        if self._revocation is not None:
            self._revocation.sweep()

    def configure(self, settings: BrokerSettings) -> None:
        """Apply changed settings from now on."""
        self._directory.configure(settings)
        self._edge.configure(settings.limits)
        self.components.sends.configure(settings.limits)
        configured = (self.telemetry, self.sending, self._operators_sending, self._messages, self._pulling, self.lite)
        limits = settings.for_wire()
        for each in configured:
            each.configure(limits)
        if self._fast is not None:
            self._fast.configure(limits)

    @property
    def operators_send(self) -> MessageHandler:
        """SendMessage for operators, whom the admin port has let in already."""
        return self._operators_sending.method().handler

    @property
    def operators_resend(self) -> MessageHandler:
        """SendMessage for operators who send messages again that were stored before."""
        return self._operators_sending.resending()

    def methods(self) -> Methods:
        """Return all calls, for a front to serve."""
        edge, directory, its = self._edge, self._directory, self.components
        members = None if its.cluster is None else its.cluster.members
        methods = messaging_methods(
            {"SendMessage": (self._fast or self.sending).method()},
            self._messages.methods(),
            self.telemetry.methods(),
            RouteService(edge, edge.clients, directory, its.sends.identity, members).methods(),
            SessionService(edge, edge.clients).methods(),
            OffsetService(edge, directory, its.store.messages).methods(),
            PendingMessageService(
                edge,
                directory=directory,
                delays=its.sends.delays,
                transactions=its.sends.transactions,
                traffic=its.sends.metrics.traffic,
            ).methods(),
            self._pulling.methods(),
            self.lite.methods(),
        )
        return methods if self._tracing is None else traced(methods, self._tracing, edge.native)

    def _start_groups(self, group: str, settings: ClientSettings) -> None:
        """Fix the offsets where a consumer's group starts, before a message is sent to it.

        The group is created by that, and counted: its starts are stored. For lite topics the consumer itself says where
        its group starts. Raises OverLimit.
        """
        if settings.kind in LITE_CONSUMERS:
            return
        found = [topic for name in settings.topics if (topic := self.components.store.topics.get(name)) is not None]
        try:
            if found:
                self._directory.group_to_receive(group, self._edge.user)
        except GroupNotFound:
            return  # the group may not be created, so it will not receive
        for topic in found:
            queues = range(topic.queue_count)
            self.components.delivery.start_group(group, topic.name, queues)


def native_part(settings: BrokerSettings) -> Native | None:
    """Return the native part if it is installed and the settings do not turn it off."""
    if settings.broker.native and NATIVE is None:
        log.info("no native part: all is done in Python", reason=WHY_NOT)
    return NATIVE if settings.broker.native else None
