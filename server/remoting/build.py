"""Builds the remoting protocol of one broker: its sessions, its handlers, and the front that serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.admin.administration import Administration
from quarry_mq.server.admin.sources import Sources
from quarry_mq.server.front import H2Front, LiveTls
from quarry_mq.server.front.remoting import Handler, RemotingCall, RemotingFront
from quarry_mq.server.front.resources import FrontResources
from quarry_mq.server.metadata import Directory
from quarry_mq.server.process.descriptors import front_limits
from quarry_mq.server.remoting.clients import ClientService
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.lookups import RemotingLookups
from quarry_mq.server.remoting.names import NameService
from quarry_mq.server.remoting.operators.administration import RemotingAdministration
from quarry_mq.server.remoting.operators.progress import RemotingProgress
from quarry_mq.server.remoting.operators.statistics import RemotingStatistics
from quarry_mq.server.remoting.operators.users import RemotingUsers
from quarry_mq.server.remoting.pops import RemotingPops
from quarry_mq.server.remoting.pulls import RemotingPulls
from quarry_mq.server.remoting.relays import RemotingRelays
from quarry_mq.server.remoting.sends import FastRemotingSends, RemotingSends
from quarry_mq.server.remoting.sessions import QueueLocks, RemotingSessions
from quarry_mq.server.remoting.slaves.ha_server import HaServer
from quarry_mq.server.remoting.slaves.requests import RemotingSlaves
from quarry_mq.server.remoting.transactions import RemotingTransactions
from quarry_mq.server.security.gate import Gate
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import OFF, is_loopback
from quarry_mq.server.tasks import Pacing
from quarry_mq.store.pending import DueMessage

log = structlog.get_logger(__name__)


class Remoting:
    """The remoting protocol of one broker."""

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        self._settings = settings
        self.sessions: Final = RemotingSessions(
            clock, asyncio.get_running_loop(), topics_max=lambda: self._settings.limits.client_topics
        )
        self._locks = QueueLocks(clock)
        self._front: RemotingFront | None = None
        self.slaves: HaServer | None = None
        """The port for slaves of RocketMQ, which may be off; None without the protocol."""
        self.listening: dict[str, str] = {}
        """The addresses of the open ports, by the names of their settings."""

    def serve(
        self,
        sources: Sources,
        gate: Gate[RemotingCall] | None,
        administration: Callable[[], Administration],
        first_waiting: Callable[[], DueMessage | None],
    ) -> None:
        """Make all handlers, and the front that serves them on ports of its own and of the gRPC front.

        `first_waiting` returns the delayed message that is due first.
        """
        components, front = sources.components, sources.front
        edge = RemotingEdge(
            components.edge.error_reporter,
            components.edge.limits_met,
            Pacing(components.clock),
            gate,
            operators=self._settings.operators_by_remoting,
        )
        self._make_parts(edge, sources)
        messages = components.store.messages
        self.slaves = HaServer(components.store.segments, lambda: messages.flushed_up_to, components.clock)
        slaves = RemotingSlaves(
            edge,
            components.store,
            components.delivery,
            ha=self.slaves,
            first_waiting=first_waiting,
            address=self._names.address,
            settings=self._settings,
            clock=components.clock,
        )
        shared = front.resources if isinstance(front, H2Front) else FrontResources(front_limits(self._settings))
        handlers = {**self._handlers(edge, sources, administration), **slaves.handlers()}
        made = self._front = RemotingFront(handlers, edge.handler(edge.not_supported), shared)
        if self._fast_sends is not None:
            made.gather = self._fast_sends.gather
        if isinstance(front, H2Front):  # the ids of messages have its address, and clients look messages up there
            made.begin()
            front.other_protocol = made.protocol

    def _make_parts(self, edge: RemotingEdge, sources: Sources) -> None:
        """Make the parts whose settings may change."""
        components, settings = sources.components, self._settings
        store, sends = components.store, components.sends
        members = None if components.cluster is None else components.cluster.members
        self._directory = directory = Directory(store.topics, store.groups, settings)
        self._names = NameService(
            edge,
            directory,
            topics=store.topics,
            groups=store.groups,
            members=members,
            identity=sends.identity,
            settings=settings,
        )
        self._sends = RemotingSends(
            edge,
            sends,
            components.copies,
            directory=directory,
            messages=store.messages,
            topics=store.topics,
            locks=self._locks,
            settings=settings,
        )
        # where there are users, each frame is authenticated by its fields
        self._fast_sends = (
            None if edge.has_users else FastRemotingSends(components.edge.native, sends, store.topics, settings)
        )
        self._pulls = RemotingPulls(
            edge,
            self.sessions,
            directory,
            messages=store.messages,
            pulls=components.pulls,
            delivery=components.delivery,
            traffic=sends.metrics.traffic,
            settings=settings,
        )
        self._pops = RemotingPops(
            edge,
            directory,
            messages=store.messages,
            delivery=components.delivery,
            pulls=self._pulls,
            metrics=sends.metrics,
            clock=components.clock,
            settings=settings,
        )
        self._statistics = RemotingStatistics(edge, sources, settings, components.clock)

    def _handlers(
        self, edge: RemotingEdge, sources: Sources, administration: Callable[[], Administration]
    ) -> dict[int, Handler]:
        """Return the handlers of all parts by request code."""
        components = sources.components
        store, sends, clock = components.store, components.sends, components.clock
        progress = RemotingProgress(
            edge,
            administration,
            messages=store.messages,
            offsets=store.offsets,
            delivery=components.delivery,
            sessions=self.sessions,
            clock=clock,
        )
        return {
            **self._names.handlers(),
            **ClientService(
                edge,
                self.sessions,
                self._locks,
                directory=self._directory,
                topics=store.topics,
                brokers=self._names.brokers,
            ).handlers(),
            **self._sends.handlers(),
            **self._pulls.handlers(),
            **self._pops.handlers(),
            **RemotingAdministration(edge, administration).handlers(),
            **progress.handlers(),
            **self._statistics.handlers(),
            **RemotingLookups(edge, store.messages, sources.maintenance.key_index).handlers(),
            **RemotingRelays(edge, self.sessions, store.messages, sends, self._settings).handlers(),
            **RemotingUsers(edge, store.users, store.policies, clock).handlers(),
            **RemotingTransactions(edge, sends.transactions, store.messages, sends.metrics.traffic).handlers(),
        }

    @property
    def slave_lags(self) -> Sequence[int]:
        """Return how many bytes of the log each attached slave lacks."""
        return () if self.slaves is None else self.slaves.lags

    def configure(self, settings: BrokerSettings) -> None:
        """Apply changed settings from now on."""
        self._settings = settings
        if self._front is not None:
            self._directory.configure(settings)
            self._names.configure(settings)
            self._sends.configure(settings)
            if self._fast_sends is not None:
                self._fast_sends.configure(settings)
            self._pulls.configure(settings)
            self._pops.configure(settings)
            self._statistics.configure(settings)

    async def start(self, tls: LiveTls | None) -> None:
        """Open the ports. One that other machines reach takes TLS alone, unless `network.plain_text` allows more.

        A default port that is taken is left out. Raises OSError, which names the setting, if another one is taken.
        """
        if self._front is None:
            return
        network, listening = self._settings.network, self.listening
        for name in ("names_listen", "listen", "fast_listen"):
            key = f"remoting.{name}"
            address = self._settings.value_of(key)
            if address == OFF:
                continue
            is_plain_allowed = is_loopback(address) or network.plain_text == "everywhere"
            try:
                if tls is None or network.tls == "off":
                    listening[name] = await self._front.start(address)
                else:
                    plain_too = network.tls == "optional" and is_plain_allowed
                    listening[name] = await self._front.start(address, tls, plain_too=plain_too)
            except OSError as error:
                if not self._settings.may_be_left_out(key):
                    raise OSError(f"{key}: {error}") from error
                reason = f"{error}: set {key} to another address, or off"
                log.warning("a port for remoting clients is left out", reason=reason)
            else:
                log.info("listening for remoting", address=listening[name], setting=key)
        self._names.listens_at(listening)
        if self.slaves is not None and network.rocketmq_ha != OFF:
            try:
                address = await self.slaves.start(network.rocketmq_ha)
            except OSError as error:
                raise OSError(f"network.rocketmq_ha: {error}") from error
            log.info("listening for slaves", address=address)

    async def stop(self, grace_s: float) -> None:
        """Stop serving clients; see `RemotingFront.stop`. Slaves are served until `stop_slaves`."""
        if self._front is not None:
            await self._front.stop(grace_s)

    async def stop_slaves(self, grace_s: float) -> None:
        """Let slaves get the rest of the log, which must be durable by now; see `HaServer.stop`."""
        if self.slaves is not None:
            await self.slaves.stop(grace_s)

    def sweep(self) -> None:
        """Drop clients that went silent and locks that ended; to be called every few seconds."""
        self.sessions.sweep()
        self._locks.sweep()
        if self._front is not None:
            self._pulls.sweep()
            self._statistics.sample()
