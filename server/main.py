"""The life of a broker process: settings, an open store, a broker, and the way back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack
from typing import Final

import structlog
import uvloop
from prometheus_client import CollectorRegistry

from server.banner import banner
from server.broker import Broker
from server.errors import BrokerFailed, StartCalledOff
from server.garbage import look_for_garbage_seldom
from server.health import HealthState
from server.http import HttpEndpoint
from server.logs import Repeats, configure_logs
from server.metrics import watch_health
from server.settings import BrokerSettings
from server.stopping import Stop
from server.supervision import Supervisor
from store.clock import SystemClock
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
    repeats = configure_logs(settings.log.format, settings.log.level, settings.log.repeats_per_minute)
    look_for_garbage_seldom()
    stop = Stop(settings.for_stop(), SystemClock())
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(settings, stop, repeats, show_progress or _logged_progress))
    finally:
        stop.over()
        repeats.tell_due(all_of_them=True)


async def _run(settings: BrokerSettings, stop: Stop, repeats: Repeats, show_progress: ShowProgress) -> int:
    """Bring everything up in the order in which it depends on each other, and down in the reverse order."""
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.told, signal_number.name)
    health = HealthState()

    def fail(failure: BrokerFailed) -> None:
        health.poisoned(str(failure))
        stop.failed()

    supervisor = Supervisor(fail)
    registry = CollectorRegistry()
    async with AsyncExitStack() as running:
        watch_health(registry, health)
        http = HttpEndpoint(settings.network.http, registry, health)
        http.start()
        running.callback(http.stop)
        await running.enter_async_context(supervisor.running("ticking", _tick(health, repeats)))
        executor = ThreadPoolExecutor(FLUSH_THREADS, thread_name_prefix="flush")
        running.callback(executor.shutdown)

        stop.step("opening the store")
        try:
            store = await loop.run_in_executor(executor, _open_store, settings, health, stop, show_progress)
        except StartCalledOff:
            log.info("stopped before the store was open", seconds=round(stop.seconds, 3))
            return 0
        broker = Broker(settings, store, registry, health, executor, supervisor=supervisor)
        look_for_garbage_seldom()
        try:
            async with broker.serving(hastened=stop.hastened) as addresses:
                health.ready()
                print(banner(store=str(settings.store.directory), http=http.address, **addresses), flush=True)  # noqa: T201
                await stop.asked()
                health.stopping()
                stop.step("ending calls and background work")
                await stop.delay()
                supervisor.raise_failure()
        finally:
            stop.step("flushing and closing the store")
            await loop.run_in_executor(executor, store.close)
    log.info("stopped", seconds=round(stop.seconds, 3))
    return 0


def _open_store(settings: BrokerSettings, health: HealthState, stop: Stop, show_progress: ShowProgress) -> OpenStore:
    """Raises StartCalledOff when the process is told to stop meanwhile: what recovery has done so far is kept."""
    with show_progress() as show:

        def report(progress: Progress) -> None:
            if stop.is_asked:
                raise StartCalledOff("told to stop while the store was opened")
            health.recovering(progress.percent)
            show(progress)

        return open_store(settings.for_store(), disk=PosixDisk(), clock=SystemClock(), report=report)


@contextlib.contextmanager
def _logged_progress() -> Iterator[ReportProgress]:
    """A log line each time a phase is a tenth further."""
    logged: tuple[str, int] | None = None

    def report(progress: Progress) -> None:
        nonlocal logged
        reached = (progress.phase, progress.percent // 10)
        if reached != logged:
            logged = reached
            log.info("opening", step=progress.phase, percent=progress.percent, done_bytes=progress.done_bytes)

    yield report


async def _tick(health: HealthState, repeats: Repeats) -> None:
    """Show that the event loop still turns, and tell of what the log has held back."""
    while True:
        health.tick()
        repeats.tell_due()
        await asyncio.sleep(TICK_INTERVAL_S)
