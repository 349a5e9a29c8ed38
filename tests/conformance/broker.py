"""A whole broker in this process, on a temporary store and free ports, with a clock that tests can push on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from prometheus_client import CollectorRegistry

from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.server import broker as broker_module
from quarry_mq.server.broker import Broker
from quarry_mq.server.cluster.cluster import Cluster
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.main import FLUSH_THREADS
from quarry_mq.server.process.certificates import Certificates, TlsPorts
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.rpc.messaging import Messaging
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.tasks import LoopThreads, Supervisor
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.metadata import Group, Topic, TopicType
from quarry_mq.store.metadata.groups import ATTEMPTS_DEFAULT
from quarry_mq.store.opening.open_store import OpenStore, open_store

PATIENCE_S: Final = 30.0
"""How long a test waits for something that must happen. Only a failing test waits this long."""

QUICK: Final[Mapping[str, Mapping[str, object]]] = {
    "store": {"segment_size": 16 * 1024 * 1024},  # no gigabyte is preallocated for a few messages
    "network": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "console": "off", "stop_grace_ms": 200},
    "remoting": {"listen": "off", "names_listen": "off"},
    "delivery": {"polling_min_ms": 0, "invisible_time_min_ms": 100, "lease_ms": 1_000, "polling_max_ms": 600_000},
}
"""Times and sizes that make tests quick; everything else is what users get."""

T = TypeVar("T")


class PushedClock(SystemClock):
    """The machine's clocks, ahead by what the test has pushed them on. `jump` moves the wall clock alone.

    `loop_time` stands in for the time of a loop, whose timers do not come sooner by `push`, but by `pass_time`.
    """

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._jumped_s = 0.0
        self._passed_s = 0.0

    def wall_ms(self) -> int:
        return super().wall_ms() + int((self._ahead_s + self._jumped_s) * 1000)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self._ahead_s

    def push(self, seconds: float) -> None:
        self._ahead_s += seconds

    def jump(self, seconds: float) -> None:
        self._jumped_s += seconds

    def pass_time(self, seconds: float) -> None:
        self._ahead_s += seconds
        self._passed_s += seconds

    def loop_time(self, loop_time: Callable[[], float]) -> Callable[[], float]:
        return lambda: loop_time() + self._passed_s


USED_CLOCK: Callable[[PushedClock], Clock] = lambda clock: clock  # noqa: E731 - tests put another one here
"""What the broker makes of its clock: believes each jump of it."""


class RunningBroker:
    """A broker and what a test may do to it without a client."""

    def __init__(
        self,
        broker: Broker,
        store: OpenStore,
        addresses: Mapping[str, str],
        clock: PushedClock,
        registry: CollectorRegistry,
        health: HealthState,
    ) -> None:
        self.broker = broker
        self.store = store
        self.endpoint = addresses["listen"]
        self.admin = addresses["admin"]
        self.clock = clock
        self.registry = registry
        self.health = health

    @property
    def delivery(self) -> Delivery:
        return self.broker._delivery

    @property
    def messaging(self) -> Messaging:
        return self.broker._messaging

    @property
    def cluster(self) -> Cluster:
        """Of a broker with settings of a cluster."""
        cluster = self.broker.cluster
        assert cluster is not None
        return cluster

    def pass_time(self, seconds: float) -> None:
        """All that is due within these seconds comes now, polls that end and times that are up."""
        self.clock.pass_time(seconds)

    def topic(self, name: str, kind: TopicType = TopicType.NORMAL, queues: int = 4) -> str:
        self.store.topics.create(Topic(name, kind, queues, queues))
        return name

    def group(self, name: str, *, fifo: bool = False, max_attempts: int = ATTEMPTS_DEFAULT) -> str:
        self.store.groups.create(Group(name, fifo=fifo, max_attempts=max_attempts))
        return name


@asynccontextmanager
async def running_broker(
    directory: Path, patch: pytest.MonkeyPatch, **changes: Mapping[str, object]
) -> AsyncIterator[RunningBroker]:
    """`changes` are settings by section, over `QUICK`."""
    clock = PushedClock()
    used_clock = USED_CLOCK(clock)
    loop = asyncio.get_running_loop()
    patch.setattr(loop, "time", clock.loop_time(loop.time))
    patch.setattr(broker_module, "HOUSEKEEPING_INTERVAL_S", 0.05)
    sections = {name: {**QUICK.get(name, {}), **changes.get(name, {})} for name in {*QUICK, *changes}}
    sections["store"] = {**sections["store"], "directory": directory / "store"}
    settings = BrokerSettings.model_validate(sections)
    with closing(LoopThreads(FLUSH_THREADS, "flush")) as threads:
        store = open_store(
            settings.for_store(),
            disk=PosixDisk(),
            clock=used_clock,
            report=lambda _: None,
            sealer=settings.for_sealer(),
        )
        try:
            supervisor = Supervisor(lambda _: None)
            registry = CollectorRegistry()
            health = HealthState()
            health.ready()
            broker = Broker(
                settings,
                store,
                registry,
                health,
                threads,
                certificates=Certificates(TlsPorts.of(settings)),
                clock=used_clock,
            )
            async with broker.serving(supervisor) as addresses:
                yield RunningBroker(broker, store, addresses, clock, registry, health)
                supervisor.raise_failure()
        finally:
            store.close()


def run(test: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(test, PATIENCE_S * 10))


async def until(condition: Any, what: str) -> None:
    """Let everything go on until the condition holds."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"in vain: {what}"
        await asyncio.sleep(0.005)
