"""Assemble a broker from an open store and its listeners: the only module that knows every component of a broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from importlib.metadata import version
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from quarry_mq.kv import WriteBatch
from quarry_mq.protocol.clock import Clock, SteadyClock
from quarry_mq.server.addresses import Address
from quarry_mq.server.admin.administration import Administration, BrokerFacts
from quarry_mq.server.admin.browsing.tails import Tails
from quarry_mq.server.admin.figures.sources import Sources
from quarry_mq.server.admin_port.calls.guard import make_guard
from quarry_mq.server.admin_port.cluster.build import cluster_services, joined, make_cluster, make_reading_order
from quarry_mq.server.admin_port.console.build import ConsoleBeside
from quarry_mq.server.admin_port.messages.queries import query_service
from quarry_mq.server.admin_port.metadata.clients import ClientService
from quarry_mq.server.admin_port.metadata.security import SecurityService
from quarry_mq.server.admin_port.metadata.settings import SettingsService
from quarry_mq.server.admin_port.official.making import official_admin
from quarry_mq.server.admin_port.operators_look import make_operators_look
from quarry_mq.server.admin_port.operators_work import make_operators_work
from quarry_mq.server.admin_port.server import REQUEST_SIZE_MAX, AdminServer
from quarry_mq.server.admin_port.storage.index import IndexService
from quarry_mq.server.admin_port.storage.migration import MigrationService
from quarry_mq.server.admin_port.storage.verification import VerificationService
from quarry_mq.server.append.copies import Copies
from quarry_mq.server.append.group_commit import GroupCommit
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.counters.traffic import Traffic
from quarry_mq.server.delivery import Delivery, GroupState, StateWriter
from quarry_mq.server.delivery.dead_letters import DeadLetterStore
from quarry_mq.server.delivery.fetch.pulls import Pulls
from quarry_mq.server.delivery.handle_key import HandleKey
from quarry_mq.server.exported_metrics import export
from quarry_mq.server.faults import FaultLog
from quarry_mq.server.front import make_front
from quarry_mq.server.held import DelayedDelivery, Transactions
from quarry_mq.server.lite.subscriptions import LiteSubscriptions, make_lite_subscriptions
from quarry_mq.server.maintenance.warm_up import warm_up
from quarry_mq.server.observability.instrumentation import Background, make_background
from quarry_mq.server.observability.logs import set_log_level
from quarry_mq.server.observability.metrics.instruments import ServerMetrics
from quarry_mq.server.observability.tracing import make_tracing
from quarry_mq.server.process.certificates import Certificates
from quarry_mq.server.process.descriptors import front_limits, plan_here
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.process.process_figures import ProcessFigures
from quarry_mq.server.reconfiguration import Reconfigured
from quarry_mq.server.routing import BrokerIdentity
from quarry_mq.server.rpc.context import HEADERS
from quarry_mq.server.rpc.limits import LimitsMet
from quarry_mq.server.rpc.messaging import Components, Messaging, native_part
from quarry_mq.server.security.build import Security
from quarry_mq.server.security.metrics import SecurityMetrics
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.live_settings import LiveSettings
from quarry_mq.server.tasks.supervision import Supervisor, run_guarded
from quarry_mq.server.tasks.worker import LoopThreads
from quarry_mq.server.upkeep import Surroundings, Upkeep
from quarry_mq.server.wire.messages import host_from_text
from quarry_mq.store.message import DispatchRequest, Host
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.record import StoredMessage
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
        supervisor: Supervisor,
        certificates: Certificates,
        clock: Clock,
        process: ProcessFigures | None = None,
    ) -> None:
        """`process` measures how late the event loop is; None if nothing measures it."""
        self._live = LiveSettings(settings, store.state_engine)
        self._settings = settings = self._live.current
        set_log_level(settings.log.level)
        self._reached_at = settings.network.advertise or settings.network.listen
        self._identity = BrokerIdentity.of(settings.broker.name, settings.network)
        self._supervisor, self._certificates = supervisor, certificates
        self._store = store
        self._clock = clock
        self._metrics = ServerMetrics(registry)
        self._traffic = Traffic(topics_max=settings.metrics.top_topics, groups_max=settings.metrics.top_groups)
        self._tracing = make_tracing(settings.tracing, node_id=settings.broker.name)
        self._faults = FaultLog(self._clock, damage_met=self._metrics.damage_met, passed_over=self._metrics.passed_over)
        self._security = Security(settings, store, clock=self._clock, metrics=SecurityMetrics(registry))
        self._limits_met = LimitsMet()
        self._clients = ClientRegistry(self._clock, settings)
        self._state_writer = StateWriter(
            store.state_engine,
            self._after_pass,
            failed=lambda error: health.poisoned(str(error)),
            # under sync no client sees what a power cut can undo
            sign=self._sign_seen if settings.store.durability is Durability.ASYNC else None,
        )
        self._native = native_part(settings)
        self._handle_key = HandleKey(*store.identity.handle_key(store.messages.dispatched_up_to), self._native)
        self._delivery = self._make_delivery()
        self._clients.on_lost(self._delivery.client_lost)
        self._clients.on_lost(self._delivery.end_waiting)
        self._lite_subscriptions = self._make_lite_subscriptions()
        self._commit = self._make_commit(health, threads)
        self._pulls = self._make_pulls()
        self._tails = Tails(store.messages, store.expiry)
        self._delays = self._make_delays()
        self._transactions = self._make_transactions()
        self._upkeep = self._make_upkeep(health)
        self.cluster = make_cluster(settings, store, self._delivery, self._clock)
        self._background = self._make_background()
        self._messaging = self._make_messaging()
        self._front = make_front(
            settings.network.front,
            self._messaging.methods(),
            limits=front_limits(settings),
            access_log=settings.log.access,
            make_scanner=None if self._native is None else self._native.CallScanner,
            headers=HEADERS,
        )
        self._take_changes()
        self._sources = self._make_sources(health, certificates, process)
        export(self._metrics, self._sources, settings)

    def _make_sources(self, health: HealthState, certificates: Certificates, process: ProcessFigures | None) -> Sources:
        return Sources(
            messaging=self._messaging,
            background=self._background,
            upkeep=self._upkeep,
            front=self._front,
            health=health,
            certificates=certificates,
            process=process,
            cluster=self.cluster,
            open_to_everybody=self._settings.open_to_everybody,
        )

    def _make_upkeep(self, health: HealthState) -> Upkeep:
        return Upkeep(
            self._store,
            self._settings,
            Surroundings(
                commit=self._commit,
                progress=self._delivery,
                carry_over=self._delays.carry_over,
                write_state=self._state_writer.write_now,
                poisoned=lambda error: health.poisoned(str(error)),
                clock=self._clock,
                metrics=self._metrics,
            ),
        )

    def _make_background(self) -> Background:
        return make_background(
            self._store,
            self._settings.metrics,
            delivery=self._delivery,
            delays=self._delays,
            traffic=self._traffic,
            clock=self._clock,
            topic_exists=self._topic_exists,
            group_exists=self._group_exists,
        )

    def _topic_exists(self, name: str) -> bool:
        return self._store.topics.get(name) is not None

    def _group_exists(self, name: str) -> bool:
        return self._store.groups.get(name) is not None

    def _take_changes(self) -> None:
        """Pass on settings that are changed while the broker runs."""
        parts = Reconfigured(
            clients=self._clients,
            delivery=self._delivery,
            pulls=self._pulls,
            transactions=self._transactions,
            upkeep=self._upkeep,
            messaging=self._messaging,
            front=self._front,
        )
        self._live.on_change(parts.configure)

    def _make_delivery(self) -> Delivery:
        store = self._store
        self._copies = Copies(lambda *send: self._commit.send(*send), self._metrics.held)  # noqa: PLW0108 - made below
        # a clock that was set back meanwhile must not keep messages hidden longer than before the restart
        clock = SteadyClock(self._clock, not_before_ms=store.messages.last_stored_ms)
        lease_ms = self._settings.delivery.lease_ms
        state = GroupState.of(
            store.state_engine,
            store.offsets,
            self._handle_key,
            self._state_writer,
            leases_until_ms=clock.wall_ms() + lease_ms if store.is_after_crash else None,
        )
        return Delivery(
            self._settings,
            store.messages,
            state,
            clock=clock,
            timers=asyncio.get_running_loop(),
            is_client_alive=self._clients.is_alive,
            faults=self._faults,
            dead_letters=DeadLetterStore(
                store.topics, copies=self._copies, store_host=self._store_host, buried=self._buried
            ),
        )

    def _make_lite_subscriptions(self) -> LiteSubscriptions:
        return make_lite_subscriptions(
            self._store,
            writer=self._state_writer,
            delivery=self._delivery,
            clients=self._clients,
            taken_away=lambda *what: self._messaging.telemetry.push_taken_away(*what),  # noqa: PLW0108 - made below
            clock=self._clock,
        )

    def _buried(self, group: str, topic: str) -> None:
        self._metrics.held.buried()
        self._traffic.buried(group, topic)

    def _make_commit(self, health: HealthState, threads: LoopThreads) -> GroupCommit:
        settings = self._settings
        return GroupCommit(
            self._store.messages,
            durability=settings.store.durability,
            flush_interval_s=settings.store.flush_interval_ms / 1000,
            queue_flush_bytes=settings.store.queue_flush_size,
            clock=self._clock,
            threads=threads,
            after_pass=self._after_pass,
            messages_arrived=self._messages_arrived,
            poisoned=lambda error: health.poisoned(str(error)),
            sends_refused=health.sends_refused,
            metrics=self._metrics,
            sync_thread=None if self._native is None else self._native.SyncThread(),
        )

    def _messages_arrived(self, requests: Sequence[DispatchRequest]) -> None:
        """Notify all parts that wait for messages, even if one of them fails: the messages are stored already."""
        for part in (self._delivery, self._pulls, self._delays, self._tails):
            run_guarded(part.messages_arrived, requests)

    def _make_pulls(self) -> Pulls:
        return Pulls(self._store.messages, asyncio.get_running_loop(), self._settings)

    def _make_delays(self) -> DelayedDelivery:
        return DelayedDelivery(
            self._store.messages.held,
            records=self._store.messages,
            send=self._copies.send,
            topic_exists=self._topic_exists,
            store_host=self._store_host,
            clock=self._clock,
            timers=asyncio.get_running_loop(),
            faults=self._faults,
            metrics=self._metrics.held,
            handle_key=self._handle_key,
        )

    def _make_transactions(self) -> Transactions:
        return Transactions(
            self._store.messages.held,
            self._settings.transactions,
            records=self._store.messages,
            send=self._copies.send,
            producers=self._clients,
            ask=self._ask_producer,
            store_host=self._store_host,
            clock=self._clock,
            timers=asyncio.get_running_loop(),
            faults=self._faults,
            metrics=self._metrics.held,
            handle_key=self._handle_key,
        )

    def _ask_producer(self, client_id: str, topic: str, record: StoredMessage, transaction_id: str) -> bool:
        return self._messaging.telemetry.push_check(client_id, topic, record, transaction_id)

    def _store_host(self) -> Host:
        return host_from_text(self._reached_at)

    def _make_messaging(self) -> Messaging:
        return Messaging(
            Components(
                store=self._store,
                identity=self._identity,
                clients=self._clients,
                commit=self._commit,
                copies=self._copies,
                delivery=self._delivery,
                pulls=self._pulls,
                delays=self._delays,
                transactions=self._transactions,
                lite_subscriptions=self._lite_subscriptions,
                lite_topics=self._upkeep.lite_topics.counts,
                metrics=self._metrics,
                traffic=self._traffic,
                faults=self._faults,
                store_host=self._store_host,
                clock=self._clock,
                native=self._native,
                gate=self._security.gate,
                tracing=self._tracing,
                members=None if self.cluster is None else self.cluster.members,
                grouped_sends=None if self.cluster is None else self.cluster.sends,
                lite_spreading=None if self.cluster is None else self.cluster.lite,
                limits_met=self._limits_met,
            ),
            self._settings,
        )

    @contextlib.asynccontextmanager
    async def serving(self, *, hastened: Hastened | None = None) -> AsyncIterator[dict[str, str]]:
        """Serve calls while the context is entered; on leaving, refuse new calls, answer accepted ones, and stop."""
        network = self._settings.network
        try:
            async with (
                self._supervisor.running("housekeeping", self._keep_house()),
                self._supervisor.running(
                    "end of lite subscriptions", self._lite_subscriptions.run(HOUSEKEEPING_INTERVAL_S)
                ),
                self._upkeep.running(self._supervisor),
                self._supervisor.running("figures", self._background.sampling.run()),
                self._supervisor.running("warm-up", warm_up(self._store.topics, self._store.queues, self._faults)),
            ):
                listening = await self._listen()
                self._reached_at = network.advertise or listening
                self._delays.start()
                self._transactions.start()
                async with (
                    self._administering() as (admin_listening, console_url),
                    joined(self.cluster, self._supervisor, self._identity, admin_listening),
                ):
                    try:
                        yield {"listen": listening, "admin": admin_listening, "console": console_url}
                    finally:
                        # open calls may need other members
                        await self._stop_front(network.stop_grace_ms / 1000, hastened)
        finally:
            await self._stop_front(0)  # in case the stop above was not reached
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.stop)
            await self._upkeep.stop()
            self._delays.stop()
            self._transactions.stop()
            await self._commit.drain()
            self._delivery.stop()
            self._background.stop()
            self._state_writer.write_now()
            self._security.audit.close()
            self._metrics.stop_watching()

    async def _listen(self) -> str:
        """Open the messaging ports; return the address of the first, which all clients know."""
        network, tls = self._settings.network, self._certificates.messaging
        if network.tls == "off":
            listening = await self._front.start(network.listen)
        else:
            listening = await self._front.start(network.listen, tls, plain_too=network.tls == "optional")
        self._identity.listen = Address.parse(listening)
        if network.tls_listen is not None:
            tls_listening = await self._front.start(network.tls_listen, tls)
            log.info("listening with TLS", address=tls_listening)
            if network.tls == "off":
                self._identity.secure_listen = Address.parse(tls_listening)
        return listening

    @contextlib.asynccontextmanager
    async def _administering(self) -> AsyncIterator[tuple[str, str]]:
        """Run admin port and console; yield the port's address and the console's URL, empty without a console."""
        administration = self._administration()
        self._live.on_change(lambda settings: administration.configure(default_queues=settings.topics.default_queues))
        work = make_operators_work(self._sources, administration)
        look = make_operators_look(self._messaging, self._upkeep, self._background.waiting, self._tails)
        order = make_reading_order(self.cluster, self._messaging.components)
        admin = AdminServer(
            administration,
            self._faults,
            order=order,
            guard=make_guard(self._security, self._settings.broker.cluster, self._faults),
            calls_max=self._settings.limits.admin_calls,
            connections_max=plan_here(self._settings.store.mapped_segments_max).admin_connections,
            limits_met=self._limits_met,
            request_size_max=REQUEST_SIZE_MAX if self.cluster is None else self.cluster.request_size_max,
            backups=self._upkeep.backups,
            expire=self._upkeep.expire_now,
            summarize=self._upkeep.summaries.summarize,
            more=[
                MigrationService(self._upkeep.migration, self._faults),
                VerificationService(self._upkeep.verification, self._faults),
                *work.services,
                *look.services,
                IndexService(self._upkeep.key_index, self._faults),
                query_service(self._messaging.components, self._upkeep.key_index),
                ClientService(self._clients, self._store.topics, self._store.groups, self._faults),
                SecurityService(self._store.users, self._store.policies, self._clock, self._faults),
                SettingsService(self._live, self._faults),
                official_admin(self._messaging, administration, self._live, self._upkeep, self._front),
                *cluster_services(
                    self.cluster, self._messaging, self._clock, self._faults, overview=work.own_overview, order=order
                ),
            ],
        )
        needs_login = self._security.admin_authenticator is not None
        console = ConsoleBeside(self._settings, self._certificates.console, needs_login=needs_login, clock=self._clock)
        async with work.running(self._supervisor):
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

    async def _stop_front(self, grace_s: float, hastened: Hastened | None = None) -> None:
        """Refuse new calls, and end open calls that wait for something to happen."""
        loop = asyncio.get_running_loop()
        stopping = loop.create_task(self._front.stop(grace_s))
        await asyncio.sleep(0)
        self._delivery.drain()
        self._pulls.drain()
        self._messaging.telemetry.end_streams()
        if hastened is not None:
            quick = loop.create_task(hastened())
            await asyncio.wait([stopping, quick], return_when=asyncio.FIRST_COMPLETED)
            quick.cancel()
            if not stopping.done():
                await self._front.stop(0)
        await stopping

    def _administration(self) -> Administration:
        settings = self._settings
        return Administration(
            BrokerFacts(
                name=settings.broker.name,
                cluster=settings.broker.cluster,
                version=version("quarry-mq"),
                advertised_address=self._reached_at,
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
            lite_parent_deleted=self._upkeep.lite_topics.expiry.topic_deleted,
        )

    def _after_pass(self, callback: Callable[[], None]) -> None:
        self._front.after_pass(callback)

    def _sign_seen(self, batch: WriteBatch) -> None:
        self._store.identity.stage_seen_up_to(batch, self._store.messages.dispatched_up_to)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_INTERVAL_S)
            self._clients.sweep()
            self._delivery.drop_idle_subscriptions()
            self._delivery.lite.drop_idle_clients()
            self._upkeep.backups.sweep()
            self._messaging.sweep()
            self._security.sweep()
