"""Run a broker process: open the store, serve it, and close everything in the reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Final

import structlog
import uvloop
from prometheus_client import CollectorRegistry, Metric

from quarry_mq.kv import raise_descriptor_limit
from quarry_mq.protocol.clock import BelievedClock, Clock, Progress, ReportProgress, SystemClock
from quarry_mq.server.broker import Broker
from quarry_mq.server.errors import BrokerFailed, StartCalledOff
from quarry_mq.server.observability.logs import Repeats, configure_logs
from quarry_mq.server.observability.metrics.instruments import (
    replica_metrics,
    watch,
    watch_certificates,
    watch_health,
)
from quarry_mq.server.observability.tracing import require_tracing
from quarry_mq.server.process.banner import banner, is_for_people
from quarry_mq.server.process.certificates import Certificates, TlsPorts
from quarry_mq.server.process.descriptors import plan_here
from quarry_mq.server.process.garbage import GarbageSearch, look_for_garbage_seldom
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.process.http import HttpEndpoint, TokenFile
from quarry_mq.server.process.process_metrics import (
    ProcessStats,
    RecoveryStats,
    process_metrics,
    recovery_metrics,
    watch_python,
)
from quarry_mq.server.process.self_signed import CERTIFICATE_NAME
from quarry_mq.server.process.stop import Stop, StopTimes
from quarry_mq.server.replicas.process import Replication
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.tasks import LoopThreads, Supervisor
from quarry_mq.server.wire.status import is_store
from quarry_mq.store.fs import PosixCopyingDisk, PosixDisk, hold_descriptors, keep_from_others
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.opening.open_store import OpenStore, open_store

log = structlog.get_logger(__name__)

FLUSH_THREADS: Final = 2  # one for the log, one for the consume queues: the log must not wait for them
TICK_INTERVAL_S: Final = 0.5
CUT_OVER_LOOK_INTERVAL_S: Final = 0.02


ShowProgress = Callable[[], AbstractContextManager[ReportProgress]]
"""Makes a context that shows the long steps of the opening while it is entered; called on another thread."""


def run(settings: BrokerSettings, show_progress: ShowProgress | None = None, *, after_cut_over: bool = False) -> int:
    """Run a broker until it is told to stop (SIGTERM, SIGINT). Returns the exit status of the process.

    Without `show_progress` the opening's progress is logged. `after_cut_over` lets it wait, before it opens anything,
    until `quarry follow --cut-over` has filled the store.

    Raises BrokerError or OSError, whose text is one line, when it cannot start, and BrokerFailed when it cannot go on.
    """
    repeats = configure_logs(settings.log.format, settings.log.level, settings.log.repeats_per_minute)
    look_for_garbage_seldom()
    keep_from_others()
    is_store(settings.store.directory)
    raise_descriptor_limit()
    plan_here(settings.store.mapped_segments_max)  # before anything is opened
    hold_descriptors()
    stop = Stop(StopTimes.of(settings.network, settings.cluster), SystemClock())
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(
                _run(settings, stop, repeats, show_progress or _logged_progress, after_cut_over=after_cut_over)
            )
    finally:
        stop.over()
        repeats.tell_due(all_of_them=True)


@dataclass(slots=True)
class _Process:
    """Hold the parts that exist before the store is open and after it was closed."""

    settings: BrokerSettings
    repeats: Repeats
    health: HealthState = field(init=False)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    clock: Clock = field(default_factory=lambda: BelievedClock(SystemClock()))
    stats: ProcessStats = field(init=False)
    recovery: RecoveryStats = field(init=False)
    certificates: Certificates = field(init=False)

    def __post_init__(self) -> None:
        self.health = HealthState()
        self.stats, self.recovery = ProcessStats(self.clock), RecoveryStats(self.clock)
        self.certificates = Certificates(TlsPorts.of(self.settings, self.clock), self.clock)

    @contextlib.asynccontextmanager
    async def observed(self, supervisor: Supervisor) -> AsyncIterator[HttpEndpoint]:
        """Answer probes and scrapes, so that a long recovery is not taken for a hang."""
        self._export()
        network = self.settings.network
        token = None if network.metrics_token_file is None else TokenFile(network.metrics_token_file)
        http = HttpEndpoint(network.http, self.registry, self.health, tls=self.certificates.http, metrics_token=token)
        with self.stats.watching_garbage():
            async with supervisor.running("watch of TLS files", self.certificates.watch()):
                http.start()
                try:
                    async with supervisor.running("ticking", self._tick()):
                        yield http
                finally:
                    http.stop()

    def broker(self, store: OpenStore, threads: LoopThreads) -> Broker:
        """Return the broker of the open store."""
        return Broker(
            self.settings,
            store,
            self.registry,
            self.health,
            threads,
            certificates=self.certificates,
            clock=self.clock,
            process=self.stats,
        )

    def _export(self) -> None:
        own_version = version("quarry-mq")
        watch_health(self.registry, self.health)
        watch_certificates(self.registry, self.certificates)
        watch_python(self.registry)
        watch(self.registry, lambda: process_metrics(self.stats, own_version))
        watch(self.registry, lambda: recovery_metrics(self.recovery))

    async def _tick(self) -> None:
        """Report that the event loop turns and how late it is; log how many repeated lines were suppressed."""
        while True:
            self.health.tick()
            self.repeats.tell_due()
            due_s = self.clock.monotonic_s() + TICK_INTERVAL_S
            await asyncio.sleep(TICK_INTERVAL_S)
            self.stats.late(max(0.0, self.clock.monotonic_s() - due_s))


async def _run(
    settings: BrokerSettings, stop: Stop, repeats: Repeats, show_progress: ShowProgress, *, after_cut_over: bool
) -> int:
    """Bring everything up in the order in which it depends on each other, and down in the reverse order."""
    _listen_to_signals(stop)
    require_tracing(settings.tracing)  # before anything is opened that would have to be closed again
    process = _Process(settings, repeats)
    health = process.health

    def fail(failure: BrokerFailed) -> None:
        health.poisoned(str(failure))
        stop.failed()

    supervisor = Supervisor(fail)
    async with AsyncExitStack() as running:
        http = await running.enter_async_context(process.observed(supervisor))
        threads = LoopThreads(FLUSH_THREADS, "flush")
        running.callback(threads.close)
        if after_cut_over and not await _waited_for_cut_over(settings, stop):
            log.info("stopped before the store was open", seconds=round(stop.seconds, 3))
            return 0
        replication = Replication.of(settings, disk=PosixCopyingDisk(), clock=process.clock, health=health)
        if replication is not None:
            running.callback(replication.close)
            watch(process.registry, partial(_replica_metrics, replication))
            stop.step("following the primary")
            if not await replication.followed(stop, process.recovery.report):
                log.info("stopped", seconds=round(stop.seconds, 3))
                return 0
        stop.step("opening the store")
        try:
            store = await threads.call(partial(_open_store, process, stop, show_progress))
        except StartCalledOff:
            log.info("stopped before the store was open", seconds=round(stop.seconds, 3))
            return 0
        try:
            broker = process.broker(store, threads)
            await running.enter_async_context(
                supervisor.running("search for garbage", GarbageSearch(process.clock).run())
            )
            leading = contextlib.nullcontext() if replication is None else replication.leading(store, supervisor.fail)
            async with (
                leading as copies,
                broker.serving(supervisor, hastened=stop.hastened, copies=copies) as addresses,
            ):
                health.ready()
                _tell_ready(settings, http, addresses)
                await stop.asked()
                health.stopping()
                stop.step("ending calls and background work")
                await stop.delay(broker.leave_cluster)
                supervisor.raise_failure()
        finally:
            stop.step("flushing and closing the store")
            await threads.call(store.close)
    log.info("stopped", seconds=round(stop.seconds, 3))
    return 0


def _listen_to_signals(stop: Stop) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.told, number.name)


async def _waited_for_cut_over(settings: BrokerSettings, stop: Stop) -> bool:
    """Wait for the end of a cut-over without opening anything; return False if a stop was asked for before."""
    disk, file = PosixDisk(), StorePaths(settings.store.directory).cut_over
    stop.step("waiting for the cut-over")
    if not disk.exists(file):
        log.info("waiting for the cut-over of quarry follow", store=str(settings.store.directory))
    while not disk.exists(file):
        if stop.is_asked:
            return False
        await asyncio.sleep(CUT_OVER_LOOK_INTERVAL_S)
    return True


def _replica_metrics(replication: Replication) -> Iterator[Metric]:
    return replica_metrics(replication.statuses(), term=replication.term, is_primary=replication.primary is not None)


def _tell_ready(settings: BrokerSettings, http: HttpEndpoint, addresses: dict[str, str]) -> None:
    """Print the banner, or log its contents as one event where nobody reads a text."""
    network, store = settings.network, str(settings.store.directory)
    needs_tls = network.tls == "required"
    self_signed = settings.tls_directory / CERTIFICATE_NAME if needs_tls and network.is_self_signed else None
    if is_for_people(settings.log.format, os.environ, is_terminal=sys.stdout.isatty()):
        text = banner(store=store, http=http.url, needs_tls=needs_tls, self_signed=self_signed, **addresses)
        print(text, flush=True)  # noqa: T201
        return
    log.info(
        "ready",
        advertise=network.advertise,
        tls_advertise=network.tls_advertise,
        listen=addresses["listen"],
        name_server=addresses["names"] or None,
        admin=addresses["admin"],
        http=http.url,
        console=addresses["console"] or None,
        store=store,
        self_signed=None if self_signed is None else str(self_signed),
    )


def _open_store(process: _Process, stop: Stop, show_progress: ShowProgress) -> OpenStore:
    """Open the store. Raises StartCalledOff when a stop is asked for meanwhile; what recovery has done is kept."""
    settings = process.settings
    with show_progress() as show:

        def report(progress: Progress) -> None:
            if stop.is_asked:
                raise StartCalledOff("told to stop while the store was opened")
            process.health.recovering(progress.percent)
            process.recovery.report(progress)
            show(progress)

        return open_store(
            settings.for_store(), disk=PosixDisk(), clock=process.clock, report=report, sealer=settings.for_sealer()
        )


@contextlib.contextmanager
def _logged_progress() -> Iterator[ReportProgress]:
    """Log a line each time a phase is a tenth further."""
    logged: tuple[str, int] | None = None

    def report(progress: Progress) -> None:
        nonlocal logged
        reached = (progress.phase, progress.percent // 10)
        if reached != logged:
            logged = reached
            log.info("opening", step=progress.phase, percent=progress.percent, done_bytes=progress.done_bytes)

    yield report
