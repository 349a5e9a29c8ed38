"""The process of the operator: its connections, its port for probes and metrics, and its end."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from quarry_mq.cli.operator.broker import Broker
from quarry_mq.cli.operator.declarations.groups import GroupReconciler
from quarry_mq.cli.operator.declarations.rules import RuleReconciler
from quarry_mq.cli.operator.declarations.topics import TopicReconciler
from quarry_mq.cli.operator.declarations.users import UserReconciler
from quarry_mq.cli.operator.kubernetes import Kubernetes, KubernetesFailed, connected
from quarry_mq.cli.operator.loop import Operator, Reconciler, Stats
from quarry_mq.cli.operator.metrics import operator_registry
from quarry_mq.cli.operator.migrations import MigrationReconciler
from quarry_mq.cli.operator.pods import Pods
from quarry_mq.cli.operator.resources import Kind
from quarry_mq.cli.operator.shards import Ask, ShardReconciler
from quarry_mq.client.admin import AsyncAdminClient
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.server.observability.logs import configure_logs
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.process.http import HttpEndpoint

log = structlog.get_logger(__name__)

TICK_S: Final = 1.0
RETRY_S: Final = 2.0
REPEATS_PER_MINUTE: Final = 60


class OperatorFailed(Exception):
    """The operator cannot start. The text is one line."""


class Declaration(NamedTuple):
    """A resource of the release itself, which the operator writes to Kubernetes."""

    kind: Kind
    name: str
    spec: Mapping[str, Any]


def run(endpoint: Endpoint, namespace: str | None, http: str | None, files: Mapping[Kind, Path]) -> None:
    """Run the operator until SIGINT or SIGTERM. Each file has a resource of its kind, which is written to Kubernetes.

    Raises OperatorFailed.
    """
    configure_logs("auto", "info", REPEATS_PER_MINUTE)
    try:
        asyncio.run(_run(endpoint, namespace, http, [declaration(*each) for each in files.items()]))
    except (KubernetesFailed, OSError) as error:
        raise OperatorFailed(str(error)) from error


def declaration(kind: Kind, path: Path) -> Declaration:
    """Return the resource in a JSON file. Raises OperatorFailed, OSError."""
    try:
        found = json.loads(path.read_bytes())
        return Declaration(kind, str(found["metadata"]["name"]), dict(found["spec"]))
    except (ValueError, KeyError, TypeError) as error:
        raise OperatorFailed(f"{path}: it is no {kind.name} as JSON: {error}") from error


async def _run(endpoint: Endpoint, namespace: str | None, http: str | None, declared: Sequence[Declaration]) -> None:
    clock, stats, health = SystemClock(), Stats(), HealthState()
    kubernetes = connected(namespace)
    try:
        async with AsyncAdminClient(endpoint) as client, Pods(endpoint.ca) as pods:
            broker = Broker(client)
            known = reconcilers(broker, kubernetes, clock, endpoint.user, pods.ask)
            operator = Operator(kubernetes, known, clock=clock, stats=stats)
            with _served(http, stats, health):
                await _until_signal(
                    operator.run(),
                    _report(operator, health),
                    _tick(health),
                    *(_declare(kubernetes, each) for each in declared),
                )
    finally:
        await kubernetes.close()


def reconcilers(
    broker: Broker, kubernetes: Kubernetes, clock: Clock, own_user: str | None, ask: Ask
) -> list[Reconciler]:
    """Return the reconcilers of all kinds."""
    return [
        TopicReconciler(broker, kubernetes),
        GroupReconciler(broker, kubernetes),
        UserReconciler(broker, kubernetes, clock, own_user),
        RuleReconciler(broker, kubernetes),
        ShardReconciler(broker, kubernetes, clock, ask),
        MigrationReconciler(kubernetes, clock),
    ]


async def _declare(kubernetes: Kubernetes, declared: Declaration) -> None:
    """Write a resource. Its definition may be so new that Kubernetes does not serve it yet."""
    is_written = False
    while not is_written:
        try:
            await kubernetes.declare(*declared)
            is_written = True
        except KubernetesFailed as error:
            log.warning("a resource cannot be declared", kind=declared.kind.name, name=declared.name, error=str(error))
            await asyncio.sleep(RETRY_S)


async def _until_signal(*work: Coroutine[Any, Any, None]) -> None:
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each) for each in work]
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
