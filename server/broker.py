"""Assemble a broker from an open store and its listeners: the only module that knows every component of a broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import cached_property
from importlib.metadata import version
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from quarry_mq.kv import WriteBatch
from quarry_mq.protocol.clock import Clock, SteadyClock
from quarry_mq.server.admin.administration import Administration, BrokerFacts
from quarry_mq.server.admin.browsing import Tails
from quarry_mq.server.admin.sources import AdminAccess, Sources
from quarry_mq.server.admin_port.build import OperatorsLook, OperatorsWork, make_operators_look, make_operators_work
from quarry_mq.server.admin_port.calls.guard import CallSlots, make_guard
from quarry_mq.server.admin_port.cluster.build import cluster_services, joined, make_cluster, make_reading_order
from quarry_mq.server.admin_port.cluster.relay import OwnCalls
from quarry_mq.server.admin_port.cluster.replicas import ReplicaService
from quarry_mq.server.admin_port.console import ConsoleBeside
from quarry_mq.server.admin_port.messages.queries import query_service
from quarry_mq.server.admin_port.metadata.clients import ClientService
from quarry_mq.server.admin_port.metadata.security import SecurityService
from quarry_mq.server.admin_port.metadata.service import AdminService, SettingsService
from quarry_mq.server.admin_port.official.service import official_admin
from quarry_mq.server.admin_port.server import REQUEST_SIZE_MAX, AdminServer, MoreService
from quarry_mq.server.admin_port.storage.index import IndexService
from quarry_mq.server.admin_port.storage.migration import MigrationService
from quarry_mq.server.admin_port.storage.verification import VerificationService
from quarry_mq.server.append.copies import Copies
from quarry_mq.server.append.group_commit import GroupCommit, LogFlushes
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.cluster.reading_order import ReadingOrder
from quarry_mq.server.delivery import Delivery, GroupState, StateWriter
from quarry_mq.server.delivery.dead_letters import DeadLetterStore
from quarry_mq.server.delivery.handles import HandleKey
from quarry_mq.server.delivery.pulls import Pulls
from quarry_mq.server.delivery.retry_moves import Consumers, RetryMoves
from quarry_mq.server.exported_metrics import export
from quarry_mq.server.front import make_front
from quarry_mq.server.lite.counts import LiteBirths
from quarry_mq.server.maintenance.maintenance import Maintenance, MaintenanceDependencies, warm_up
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.observability.instrumentation import Background, make_background
from quarry_mq.server.observability.logs import set_log_level
from quarry_mq.server.observability.metrics.instruments import ServerMetrics
from quarry_mq.server.observability.tracing import make_tracing
from quarry_mq.server.pending import DelayedDelivery, TransactionChecks, Transactions
from quarry_mq.server.process.certificates import Certificates
from quarry_mq.server.process.descriptors import front_limits, plan_here
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.process.process_metrics import ProcessStats
from quarry_mq.server.remoting.build import Remoting
from quarry_mq.server.remoting.transactions import TransactionProducers
from quarry_mq.server.replicas.process import WatchedCopies
from quarry_mq.server.routing import BrokerIdentity
from quarry_mq.server.rpc.context import HEADERS, Edge, RequestRates
from quarry_mq.server.rpc.messaging import Components, Messaging, native_part
from quarry_mq.server.rpc.sends import SendStore
from quarry_mq.server.security.build import Security
from quarry_mq.server.security.metrics import SecurityMetrics
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.live_settings import LiveSettings
from quarry_mq.server.tasks import LoopThreads, Pacing, Supervisor, run_guarded
from quarry_mq.store.message import DispatchRequest
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.settings import Durability

log = structlog.get_logger(__name__)

HOUSEKEEPING_INTERVAL_S: Final = 5.0

Hastened = Callable[[], Coroutine[None, None, None]]
"""Returns when the stop must not wait for open calls any longer."""


class Broker:
    """A broker serves one open store through its listeners."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: OpenStore,
        registry: CollectorRegistry,
        health: HealthState,
        threads: LoopThreads,
        *,
        certificates: Certificates,
        clock: Clock,
        process: ProcessStats | None = None,
    ) -> None:
        """`process` measures how late the event loop is; None if nothing measures it."""
        self._live = LiveSettings(settings, store.state_engine)
        self._settings = settings = self._live.current
        set_log_level(settings.log.level)
        self._store, self._clock, self._certificates = store, clock, certificates
        self._identity = BrokerIdentity.of(settings.broker.name, settings.network)
        self._metrics = ServerMetrics(registry, settings.metrics)
        self._tracing = make_tracing(settings.tracing, node_id=settings.broker.name)
        self._error_reporter = ErrorReporter(
            clock, damage_met=self._metrics.damage_met, passed_over=self._metrics.passed_over
        )
        self._security = Security(settings, store, clock=clock, metrics=SecurityMetrics(registry))
        self._clients = ClientRegistry(clock, settings)
        self._remoting = Remoting(settings, clock)
        self._native = native_part(settings)
        self._edge = self._make_edge()
        self._handle_key = HandleKey(*store.identity.handle_key(store.messages.dispatched_up_to), self._native)
        self._commit = self._make_commit(health, threads)
        self._copies = Copies(self._commit, self._identity.store_host, self._metrics.pending)
        self._delivery = self._make_delivery(health)
        self._clients.on_lost(self._delivery.client_lost)
        self._clients.on_lost(self._delivery.end_waiting)
        self._retry_moves = self._make_retry_moves()
        self._pulls = Pulls(store.messages, asyncio.get_running_loop(), settings)
        self._tails = Tails(store.messages, store.expiry, self._error_reporter.report)
        self._delays = self._make_delays()
        self._maintenance = self._make_maintenance(health)
        self.cluster = make_cluster(settings, store, self._delivery, clock)
        self._background = self._make_background()
        self._messaging = self._make_messaging()
        self._checks = self._make_checks()
        self._front = make_front(
            settings.network.front,
            self._messaging.methods(),
            limits=front_limits(settings),
            access_log=settings.log.access,
            make_scanner=None if self._native is None else self._native.CallScanner,
            headers=HEADERS,
        )
        self._live.on_change(self._configure)
        self._sources = self._make_sources(health, process)
        if settings.remoting.is_on:
            self._remoting.serve(
                self._sources,
                self._security.remoting_gate,
                lambda: self._administration,
                self._delays.first_waiting,
            )
        export(self._metrics, self._sources, settings, slave_lags=lambda: self._remoting.slave_lags)

    def _configure(self, settings: BrokerSettings) -> None:
        """Pass settings that were changed to all parts. Work under way may end with those that it began with."""
        set_log_level(settings.log.level)
        self._clients.configure(settings)
        self._delivery.configure(settings)
        self._pulls.configure(settings)
        self._checks.configure(settings.transactions)
        self._maintenance.configure(settings)
        self._messaging.configure(settings)
        self._remoting.configure(settings)
        self._front.configure(front_limits(settings))

    def _make_edge(self) -> Edge:
        return Edge(
            self._clients,
            self._error_reporter,
            self._security.gate,
            rates=RequestRates(self._clock, self._settings.limits.requests_per_client),
            native=self._native,
        )

    def _make_sources(self, health: HealthState, process: ProcessStats | None) -> Sources:
        return Sources(
            messaging=self._messaging,
            background=self._background,
            maintenance=self._maintenance,
            front=self._front,
            health=health,
            certificates=self._certificates,
            process=process,
            access=AdminAccess(
                self._settings.open_to_everybody,
                self._security.lacks_super,
                self._security.audit.callers.recent,
                self._store.users.get_sealed,
            ),
        )

    def _make_maintenance(self, health: HealthState) -> Maintenance:
        return Maintenance(
            self._store,
            self._settings,
            MaintenanceDependencies(
                commit=self._commit,
                progress=self._delivery,
                carry_over=self._delays.carry_over,
                write_state=self._delivery.writer.write_now,
                poisoned=lambda error: health.poisoned(str(error)),
                clock=self._clock,
                metrics=self._metrics,
                error_reporter=self._error_reporter,
            ),
        )

    def _make_background(self) -> Background:
        return make_background(
            self._store,
            self._settings.metrics,
            delivery=self._delivery,
            delays=self._delays,
            traffic=self._metrics.traffic,
            clock=self._clock,
            topic_exists=self._topic_exists,
            group_exists=self._group_exists,
            consumers=self._consumers_in,
        )

    def _consumers_in(self, group: str, topic: str) -> int:
        return self._clients.consumers_in(group, topic) + self._remoting.sessions.consumers_in(group, topic)

    def _topic_exists(self, name: str) -> bool:
        return self._store.topics.get(name) is not None

    def _group_exists(self, name: str) -> bool:
        return self._store.groups.get(name) is not None

    def _make_delivery(self, health: HealthState) -> Delivery:
        store, settings = self._store, self._settings
        writer = StateWriter(
            store.state_engine,
            self._after_pass,
            failed=lambda error: health.poisoned(str(error)),
            # under sync no client sees what a power cut can undo
            sign=self._sign_seen if settings.store.durability is Durability.ASYNC else None,
        )
        # a clock that was set back meanwhile must not keep messages hidden longer than before the restart
        clock = SteadyClock(self._clock, not_before_ms=store.messages.last_stored_ms)
        state = GroupState.of(
            store.state_engine,
            store.offsets,
            self._handle_key,
            writer,
            leases_until_ms=clock.wall_ms() + settings.delivery.lease_ms if store.is_after_crash else None,
        )
        return Delivery(
            settings,
            store.messages,
            state,
            clock=clock,
            timers=asyncio.get_running_loop(),
            is_client_alive=self._clients.is_alive,
            error_reporter=self._error_reporter,
            dead_letters=DeadLetterStore(store.topics, copies=self._copies, dead_lettered=self._dead_lettered),
        )

    def _make_retry_moves(self) -> RetryMoves:
        return RetryMoves(
            self._store.messages,
            self._delivery,
            self._copies,
            topics=self._store.topics,
            groups=self._store.groups,
            consumers=Consumers(self._clients.subscriptions, self._remoting.sessions.subscriptions),
            clock=self._clock,
            error_reporter=self._error_reporter,
        )

    def _dead_lettered(self, group: str, topic: str) -> None:
        self._metrics.pending.dead_lettered()
        self._metrics.traffic.dead_lettered(group, topic)

    def _make_commit(self, health: HealthState, threads: LoopThreads) -> GroupCommit:
        messages = self._store.messages
        return GroupCommit(
            messages,
            LogFlushes(messages, threads, None if self._native is None else self._native.SyncThread()),
            self._settings.store,
            clock=self._clock,
            after_pass=self._after_pass,
            messages_arrived=self._messages_arrived,
            health=health,
            metrics=self._metrics,
        )

    def _messages_arrived(self, requests: Sequence[DispatchRequest]) -> None:
        """Notify all parts that wait for messages, even if one of them fails: the messages are stored already."""
        for part in (self._delivery, self._pulls, self._delays, self._tails):
            run_guarded(part.messages_arrived, requests)

    def _make_delays(self) -> DelayedDelivery:
        return DelayedDelivery(
            self._store.messages,
            self._copies,
            topic_exists=self._topic_exists,
            clock=self._clock,
            timers=asyncio.get_running_loop(),
            error_reporter=self._error_reporter,
            metrics=self._metrics.pending,
            handle_key=self._handle_key,
        )

    def _make_messaging(self) -> Messaging:
        messages, settings = self._store.messages, self._settings
        transactions = Transactions(
            messages,
            self._copies,
            clock=self._clock,
            metrics=self._metrics.pending,
            handle_key=self._handle_key,
        )
        sends = SendStore(
            self._commit,
            self._delays,
            transactions,
            LiteBirths(self._maintenance.lite_topics.counts, messages),
            settings.limits,
            identity=self._identity,
            clock=self._clock,
            metrics=self._metrics,
        )
        components = Components(
            store=self._store,
            edge=self._edge,
            sends=sends,
            copies=self._copies,
            delivery=self._delivery,
            pulls=self._pulls,
            cluster=self.cluster,
            clock=self._clock,
        )
        return Messaging(components, settings, self._tracing)

    def _make_checks(self) -> TransactionChecks:
        return TransactionChecks(
            self._messaging.components.sends.transactions,
            self._store.messages,
            self._settings.transactions,
            producers=TransactionProducers(self._clients, self._remoting.sessions),
            ask=self._messaging.telemetry.push_check,
            clock=self._clock,
            error_reporter=self._error_reporter,
            metrics=self._metrics.pending,
        )

    @contextlib.asynccontextmanager
    async def serving(
        self, supervisor: Supervisor, *, hastened: Hastened | None = None, copies: WatchedCopies | None = None
    ) -> AsyncIterator[dict[str, str]]:
        """Serve calls while the context is entered; on leaving, refuse new calls, answer accepted ones, and stop.

        `copies` are those of the store on other machines; None if it has none.
        """
        network = self._settings.network
        try:
            async with (
                supervisor.running("housekeeping", self._keep_house()),
                supervisor.running(
                    "end of lite subscriptions", self._messaging.lite_subscriptions.run(HOUSEKEEPING_INTERVAL_S)
                ),
                supervisor.running("moves of retries", self._retry_moves.run(HOUSEKEEPING_INTERVAL_S)),
                self._maintenance.running(supervisor),
                supervisor.running("figures", self._background.sampling.run()),
                supervisor.running("warm-up", warm_up(self._store.topics, self._store.queues, self._error_reporter)),
            ):
                listening = await self._listen()
                self._delays.start()
                self._checks.start()
                async with (
                    self._administering(supervisor, copies) as (admin_listening, console_url),
                    joined(self.cluster, supervisor, self._identity, admin_listening, self._sources.health),
                ):
                    try:
                        yield {
                            "listen": listening,
                            "names": self._remoting.listening.get("names_listen", ""),
                            "admin": admin_listening,
                            "console": console_url,
                        }
                    finally:
                        # open calls may need other members
                        await self._stop_front(network.stop_grace_ms / 1000, hastened)
        finally:
            await self._stop_front(0)  # in case the stop above was not reached
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.stop)
            await self._maintenance.stop()
            self._delays.stop()
            self._checks.stop()
            await self._commit.drain()
            # a slave that hangs must leave time for the rest of the stop
            slaves_grace_s = min(network.stop_grace_ms, network.stop_rest_ms / 2) / 1000
            stopping = asyncio.get_running_loop().create_task(self._remoting.stop_slaves(slaves_grace_s))
            await _until_stopped(stopping, self._remoting.stop_slaves, hastened)
            self._delivery.stop()
            self._background.stop()
            self._delivery.writer.write_now()
            self._security.audit.close()
            self._metrics.stop_watching()

    def leave_cluster(self) -> bool:
        """Give the message groups to the other members before a stop; return whether there are members to take them."""
        return self.cluster is not None and self.cluster.leave()

    async def _listen(self) -> str:
        """Open the messaging ports; return the address of the first, which all clients know."""
        network, tls = self._settings.network, self._certificates.messaging
        if network.tls != "optional":  # a start without the certificate would be in vain
            await asyncio.to_thread(self._certificates.load_messaging)
        if network.tls == "off":
            listening = await self._front.start(network.listen)
        else:
            listening = await self._front.start(network.listen, tls, plain_too=network.tls == "optional")
        tls_listening = None
        if network.tls_listen is not None:
            tls_listening = await self._front.start(network.tls_listen, tls)
            log.info("listening with TLS", address=tls_listening)
        self._identity.listens_at(listening, secure=tls_listening if network.tls == "off" else None)
        await self._remoting.start(None if network.tls == "off" else tls)
        return listening

    @contextlib.asynccontextmanager
    async def _administering(
        self, supervisor: Supervisor, copies: WatchedCopies | None
    ) -> AsyncIterator[tuple[str, str]]:
        """Run admin port and console; yield the port's address and the console's URL, empty without a console."""
        administration = self._administration
        self._live.on_change(lambda settings: administration.configure(default_queues=settings.topics.default_queues))
        work = make_operators_work(self._sources, administration, copies)
        look = make_operators_look(
            self._messaging, self._maintenance, self._background.waiting, self._tails, self._checks
        )
        order = make_reading_order(self.cluster, self._messaging.components)
        service = AdminService(
            administration,
            self._error_reporter,
            self._maintenance.backups,
            self._maintenance.expire_now,
            self._maintenance.summaries.summarize,
            order=order,
            pacing=Pacing(self._clock),
        )
        guard = make_guard(self._security, self._settings, self._error_reporter)
        own = OwnCalls(guard, self._error_reporter)
        admin = AdminServer(
            service,
            CallSlots(self._settings.limits.admin_calls, self._edge.limits_met),
            guard=guard,
            book=own.book,
            connections_max=plan_here(self._settings.store.mapped_segments_max).admin_connections,
            request_size_max=REQUEST_SIZE_MAX if self.cluster is None else self.cluster.request_size_max,
            more=[
                *self._admin_services(work, look, administration, own, order),
                ReplicaService(copies, self._store.messages, self._error_reporter),
            ],
        )
        needs_login = self._security.admin_authenticator is not None
        console = ConsoleBeside(self._settings, self._certificates.console, needs_login=needs_login, clock=self._clock)
        async with work.running(supervisor):
            try:
                with console.prepared():
                    address = self._settings.network.admin
                    listening = await admin.start(address, self._certificates.admin, also=console.socket)
                    async with console.serving():
                        yield listening, console.url
            finally:
                self._tails.end_all()
                await admin.stop(grace_s=0.5)
                await look.stop()

    def _admin_services(
        self,
        work: OperatorsWork,
        look: OperatorsLook,
        administration: Administration,
        own: OwnCalls,
        order: ReadingOrder,
    ) -> list[MoreService]:
        """Make the services of the admin port beside its first one."""
        return [
            MigrationService(self._maintenance.migration, self._error_reporter),
            VerificationService(self._maintenance.verification, self._error_reporter),
            *work.services,
            *look.services,
            IndexService(self._maintenance.key_index, self._error_reporter),
            query_service(self._messaging.components, self._maintenance.key_index),
            ClientService(
                self._clients,
                self._remoting.sessions,
                self._store.topics,
                self._store.groups,
                self._error_reporter,
            ),
            SecurityService(self._store.users, self._store.policies, self._clock, self._error_reporter),
            SettingsService(self._live, self._error_reporter),
            official_admin(self._messaging, administration, self._live, self._maintenance, self._front),
            *cluster_services(
                self.cluster,
                self._messaging,
                self._clock,
                self._error_reporter,
                own=own,
                own_name=self._settings.broker.name,
                overview=work.own_overview,
                order=order,
            ),
        ]

    async def _stop_front(self, grace_s: float, hastened: Hastened | None = None) -> None:
        """Refuse new calls, and end open calls that wait for something to happen."""
        loop = asyncio.get_running_loop()
        stopping = loop.create_task(self._stop_fronts(grace_s))
        await asyncio.sleep(0)
        self._delivery.drain()
        self._pulls.drain()
        self._messaging.telemetry.end_streams()
        await _until_stopped(stopping, self._stop_fronts, hastened)

    async def _stop_fronts(self, grace_s: float) -> None:
        await asyncio.gather(self._front.stop(grace_s), self._remoting.stop(grace_s))

    @cached_property
    def _administration(self) -> Administration:
        """Return the administration; it names the address of the broker, so it is made once the broker listens."""
        settings = self._settings
        return Administration(
            BrokerFacts(
                name=settings.broker.name,
                cluster=settings.broker.cluster,
                version=version("quarry-mq"),
                advertised_address=self._identity.reached_at,
                store_directory=str(settings.store.directory),
                durability=settings.store.durability,
                started_at_ms=self._clock.wall_ms(),
            ),
            topics=self._store.topics,
            groups=self._store.groups,
            store=self._store.messages,
            delivery=self._delivery,
            default_queues=settings.topics.default_queues,
            queues_deleted=self._commit.flush_queues_soon,
            lite_parent_deleted=self._maintenance.lite_topics.expiry.topic_deleted,
        )

    def _after_pass(self, callback: Callable[[], None]) -> None:
        self._front.after_pass(callback)

    def _sign_seen(self, batch: WriteBatch) -> None:
        self._store.identity.stage_seen_up_to(batch, self._store.messages.dispatched_up_to)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_INTERVAL_S)
            self._clients.sweep()
            self._remoting.sweep()
            self._delivery.drop_idle_subscriptions()
            self._delivery.lite.drop_idle_clients()
            self._maintenance.backups.sweep()
            self._messaging.sweep()
            self._security.sweep()


async def _until_stopped(
    stopping: asyncio.Task[None], stop: Callable[[float], Coroutine[None, None, None]], hastened: Hastened | None
) -> None:
    """Wait until a stop with a grace period has ended; end the grace period when the stop is hastened."""
    if hastened is not None:
        quick = asyncio.get_running_loop().create_task(hastened())
        await asyncio.wait([stopping, quick], return_when=asyncio.FIRST_COMPLETED)
        quick.cancel()
        if not stopping.done():
            await stop(0)
    await stopping
