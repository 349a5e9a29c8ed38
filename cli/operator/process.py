"""The process of the operator: its connections, its port for probes and metrics, and its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from quarry_mq.cli.operator.broker import Broker
from quarry_mq.cli.operator.groups import GroupReconciler
from quarry_mq.cli.operator.kubernetes import Kubernetes, KubernetesFailed, connected
from quarry_mq.cli.operator.loop import Operator, Reconciler, Stats
from quarry_mq.cli.operator.metrics import operator_registry
from quarry_mq.cli.operator.rules import RuleReconciler
from quarry_mq.cli.operator.topics import TopicReconciler
from quarry_mq.cli.operator.users import UserReconciler
from quarry_mq.client.admin import AsyncAdminClient
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.server.observability.logs import configure_logs
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.process.http import HttpEndpoint

TICK_S: Final = 1.0
REPEATS_PER_MINUTE: Final = 60


class OperatorFailed(Exception):
    """The operator cannot start. The text is one line."""


def run(endpoint: Endpoint, namespace: str | None, http: str | None) -> None:
    """Run the operator until SIGINT or SIGTERM. Raises OperatorFailed."""
    configure_logs("auto", "info", REPEATS_PER_MINUTE)
    try:
        asyncio.run(_run(endpoint, namespace, http))
    except (KubernetesFailed, OSError) as error:
        raise OperatorFailed(str(error)) from error


async def _run(endpoint: Endpoint, namespace: str | None, http: str | None) -> None:
    clock, stats, health = SystemClock(), Stats(), HealthState()
    kubernetes = connected(namespace)
    try:
        async with AsyncAdminClient(endpoint) as client:
            known = reconcilers(Broker(client), kubernetes, clock, endpoint.user)
            operator = Operator(kubernetes, known, clock=clock, stats=stats)
            with _served(http, stats, health):
                await _until_signal(operator, health)
    finally:
        await kubernetes.close()


def reconcilers(broker: Broker, kubernetes: Kubernetes, clock: Clock, own_user: str | None) -> list[Reconciler]:
    """Return the reconcilers of all kinds."""
    return [
        TopicReconciler(broker, kubernetes),
        GroupReconciler(broker, kubernetes),
        UserReconciler(broker, kubernetes, clock, own_user),
        RuleReconciler(broker, kubernetes),
    ]


async def _until_signal(operator: Operator, health: HealthState) -> None:
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each) for each in (operator.run(), _report(operator, health), _tick(health))]
        await asked.wait()
        for each in running:
            each.cancel()


async def _report(operator: Operator, health: HealthState) -> None:
    await operator.listed()
    health.ready()


async def _tick(health: HealthState) -> None:
    while True:
        health.tick()
        await asyncio.sleep(TICK_S)


@contextmanager
def _served(address: str | None, stats: Stats, health: HealthState) -> Iterator[None]:
    """Serve probes and metrics at the address while the block runs. Raises OSError that names the address."""
    if address is None:
        yield
        return
    served = HttpEndpoint(address, operator_registry(stats), health)
    served.start()
    try:
        yield
    finally:
        served.stop()
