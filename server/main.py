"""The life of a broker process: settings, an open store, a broker, and the way back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack
from importlib.metadata import version
from typing import Final

import structlog
import uvloop
from prometheus_client import CollectorRegistry

from server.banner import banner
from server.broker import Broker
from server.certificates import Certificates
from server.errors import BrokerFailed
from server.garbage import look_for_garbage_seldom
from server.health import HealthState
from server.http import HttpEndpoint, TokenFile
from server.logs import configure_logs
from server.metrics import watch, watch_certificates, watch_health
from server.process_figures import ProcessFigures, RecoveryFigures
from server.process_metrics import process_figures, recovery_figures, watch_python
from server.settings import BrokerSettings
from server.supervision import Supervisor
from server.tracing import require_tracing
from store.clock import Clock, SystemClock
from store.disk import PosixDisk
from store.opening import OpenStore, open_store
from store.recovery import Progress, ReportProgress

log = structlog.get_logger(__name__)

FLUSH_THREADS: Final = 2  # one for the log, one for the consume queues: the log must not wait for them
TICK_INTERVAL_S: Final = 0.5


ShowProgress = Callable[[], AbstractContextManager[ReportProgress]]
"""Shows the long steps of the opening for as long as it is entered; called on another thread."""


def run(settings: BrokerSettings, show_progress: ShowProgress | None = None) -> int:
    """Run a broker until it is told to stop (SIGTERM, SIGINT). Returns the exit status of the process.

    Without `show_progress` the opening's progress is logged.

    Raises BrokerError or OSError, whose text is one line, when it cannot start, and BrokerFailed when it cannot go on.
    """
    configure_logs(settings.log.format, settings.log.level)
    look_for_garbage_seldom()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(settings, show_progress or _logged_progress))


async def _run(settings: BrokerSettings, show_progress: ShowProgress) -> int:
    """Bring everything up in the order in which it depends on each other, and down in the reverse order."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    health = HealthState()

    def fail(failure: BrokerFailed) -> None:
        health.poisoned(str(failure))
        stop.set()

    supervisor = Supervisor(fail)
    require_tracing(settings.tracing)  # before anything is opened that would have to be closed again
    registry = CollectorRegistry()
    async with AsyncExitStack() as running:
        clock = SystemClock()
        process, recovery = ProcessFigures(clock), RecoveryFigures(clock)
        running.enter_context(process.watching_garbage())
        watch_health(registry, health)
        certificates = Certificates(settings.for_tls())
        watch_certificates(registry, certificates)
        await running.enter_async_context(supervisor.running("watch of TLS files", certificates.watch()))
        watch_python(registry)
        own_version = version("quarry-mq")
        watch(registry, lambda: process_figures(process, own_version))
        watch(registry, lambda: recovery_figures(recovery))
        http = _http_endpoint(settings, registry, health, certificates)
        http.start()
        running.callback(http.stop)
        await running.enter_async_context(supervisor.running("ticking", _tick(health, process, clock)))
        executor = ThreadPoolExecutor(FLUSH_THREADS, thread_name_prefix="flush")
        running.callback(executor.shutdown)

        store = await loop.run_in_executor(executor, _open_store, settings, health, recovery, show_progress)
        try:
            broker = Broker(
                settings, store, registry, health, executor, supervisor=supervisor, certificates=certificates
            )
            look_for_garbage_seldom()
            async with broker.serving() as addresses:
                health.ready()
                needs_tls = settings.network.tls == "required"
                told = banner(store=str(settings.store.directory), http=http.url, needs_tls=needs_tls, **addresses)
                print(told, flush=True)  # noqa: T201
                await stop.wait()
                log.info("stopping")
                health.stopping()
                supervisor.raise_failure()
        finally:
            await loop.run_in_executor(executor, store.close)
    return 0


def _http_endpoint(
    settings: BrokerSettings, registry: CollectorRegistry, health: HealthState, certificates: Certificates
) -> HttpEndpoint:
    network = settings.network
    token = None if network.metrics_token_file is None else TokenFile(network.metrics_token_file)
    return HttpEndpoint(network.http, registry, health, tls=certificates.http, metrics_token=token)


def _open_store(
    settings: BrokerSettings, health: HealthState, recovery: RecoveryFigures, show_progress: ShowProgress
) -> OpenStore:
    with show_progress() as show:

        def report(progress: Progress) -> None:
            health.recovering(progress.percent)
            recovery.report(progress)
            show(progress)

        return open_store(
            settings.for_store(),
            disk=PosixDisk(),
            clock=SystemClock(),
            report=report,
            sealer=settings.for_sealer(),
        )


@contextlib.contextmanager
def _logged_progress() -> Iterator[ReportProgress]:
    """A log line each time a phase is a tenth further."""
    logged: tuple[str, int] | None = None

    def report(progress: Progress) -> None:
        nonlocal logged
        reached = (progress.phase, progress.percent // 10)
        if reached != logged:
            logged = reached
            log.info(progress.phase, percent=progress.percent, done_bytes=progress.done_bytes)

    yield report


async def _tick(health: HealthState, process: ProcessFigures, clock: Clock) -> None:
    """Show that the event loop still turns, and how late it is."""
    while True:
        health.tick()
        due_s = clock.monotonic_s() + TICK_INTERVAL_S
        await asyncio.sleep(TICK_INTERVAL_S)
        process.loop_late.add(max(0.0, clock.monotonic_s() - due_s))
