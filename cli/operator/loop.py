"""The loop of the operator: each resource is looked at when it changes, and in each sweep over all of them.

A look compares what is declared with what is there, and does what is missing. It depends on nothing that happened
before, so an event that was missed is made up for by the next sweep. A failure delays the next look at its resource,
and at no other one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Protocol

import structlog

from quarry_mq.cli.operator.kubernetes import Kubernetes, KubernetesFailed, ObjectGone
from quarry_mq.cli.operator.resources import (
    READY,
    Condition,
    Kind,
    Note,
    Outcome,
    Resource,
    new_problems,
    status_change,
)
from quarry_mq.protocol.clock import Clock

log = structlog.get_logger(__name__)

SWEEP_S: Final = 30.0
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 30.0


class Reconciler(Protocol):
    """Brings what the resources of one kind declare into being."""

    @property
    def kind(self) -> Kind: ...

    def thing(self, resource: Resource) -> str:
        """Return the name of what the resource declares. It is called for any resource, and must not fail."""
        ...

    async def reconcile(self, resource: Resource, rivals: Collection[Resource]) -> Outcome:
        """Look at one resource, and do what is missing. `rivals` are all that declare the same thing, itself included.

        What was found is an outcome; raises KubernetesFailed if Kubernetes did not answer.
        """
        ...


class Stats:
    """Counts of the operator, for its metrics."""

    def __init__(self) -> None:
        self.states: dict[str, Counter[str]] = {}
        """Numbers of resources by kind and by the status of their condition Ready."""
        self.looks: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()


class Operator:
    """Runs reconcilers until it is cancelled."""

    def __init__(
        self,
        kubernetes: Kubernetes,
        reconcilers: Sequence[Reconciler],
        *,
        clock: Clock,
        stats: Stats,
        sweep_s: float = SWEEP_S,
    ) -> None:
        self._controllers = [_Controller(kubernetes, each, clock, stats, sweep_s) for each in reconcilers]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for each in self._controllers:
                tasks.create_task(each.follow())
                tasks.create_task(each.work())

    async def listed(self) -> None:
        """Wait until the resources of all kinds were read once."""
        for each in self._controllers:
            await each.is_listed.wait()


class _Controller:
    """Follows the resources of one kind, and looks at them one after the other."""

    def __init__(
        self, kubernetes: Kubernetes, reconciler: Reconciler, clock: Clock, stats: Stats, sweep_s: float
    ) -> None:
        self.is_listed: Final = asyncio.Event()
        self._kubernetes = kubernetes
        self._reconciler = reconciler
        self._clock = clock
        self._stats = stats
        self._sweep_s = sweep_s
        self._resources: dict[str, Resource] = {}  # by uid
        self._uids: dict[str, set[str]] = {}  # by the thing that the resource declares
        self._due_s: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        self._wake = asyncio.Event()

    async def follow(self) -> None:
        """Keep the resources as Kubernetes has them. All of them are read and become due in each sweep."""
        kind, failures = self._reconciler.kind, 0
        while True:
            try:
                async with asyncio.timeout(self._sweep_s):
                    await self._read(kind)
            except TimeoutError:
                failures = 0
            except KubernetesFailed as error:
                failures += 1
                log.warning("custom resources cannot be followed", kind=kind.name, error=str(error))
                await asyncio.sleep(_retry_s(failures))

    async def _read(self, kind: Kind) -> None:
        version, found = await self._kubernetes.list(kind)
        for uid in self._resources.keys() - {each.uid for each in found}:
            self._drop(uid)
        for each in found:
            self._keep(each)
            if each.uid not in self._failures:
                self._look_in(each.uid, 0)
        self.is_listed.set()
        async for change, resource in self._kubernetes.watch(kind, version):
            self._seen(change, resource)

    def _seen(self, change: str, resource: Resource) -> None:
        if change == "DELETED":
            self._drop(resource.uid)
            return
        before = self._resources.get(resource.uid)
        self._keep(resource)
        if before is None or _declaration(before) != _declaration(resource):
            self._failures.pop(resource.uid, None)
            self._look_in(resource.uid, 0)

    def _keep(self, resource: Resource) -> None:
        self._resources[resource.uid] = resource
        self._uids.setdefault(self._reconciler.thing(resource), set()).add(resource.uid)

    def _drop(self, uid: str) -> None:
        resource = self._resources.pop(uid, None)
        self._due_s.pop(uid, None)
        self._failures.pop(uid, None)
        if resource is not None:
            thing = self._reconciler.thing(resource)
            self._uids[thing].discard(uid)
            if not self._uids[thing]:
                del self._uids[thing]

    def _look_in(self, uid: str, seconds: float) -> None:
        self._due_s[uid] = self._clock.monotonic_s() + seconds
        self._wake.set()

    async def work(self) -> None:
        """Look at each resource that is due."""
        while True:
            self._wake.clear()
            now_s = self._clock.monotonic_s()
            due = [uid for uid, due_s in self._due_s.items() if due_s <= now_s]
            for uid in due:
                self._due_s.pop(uid, None)
                if uid in self._resources:
                    await self._look(self._resources[uid])
            if not due:
                self._count()
                wait_s = min(self._due_s.values(), default=now_s + self._sweep_s) - now_s
                with suppress(TimeoutError):
                    # not wait_for, which before Python 3.12 may lose the cancellation that ends this task
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()

    async def _look(self, resource: Resource) -> None:
        kind = self._reconciler.kind.name
        try:
            rivals = [self._resources[uid] for uid in self._uids[self._reconciler.thing(resource)]]
            outcome = await self._reconciler.reconcile(resource, rivals)
            await self._tell(resource, outcome)
            is_settled = outcome.is_settled
            if outcome.again_s is not None:
                self._look_in(resource.uid, outcome.again_s)
        except ObjectGone:
            is_settled = True  # of a resource that has just been deleted
        except KubernetesFailed as error:
            log.warning("custom resource cannot be written", kind=kind, name=resource.name, error=str(error))
            is_settled = False
        except Exception:  # a bug that one resource meets must not stop the others
            log.exception("custom resource could not be reconciled", kind=kind, name=resource.name)
            with suppress(KubernetesFailed):
                await self._tell(resource, FAILED)
            is_settled = False
        self._stats.looks[kind] += 1
        if is_settled:
            self._failures.pop(resource.uid, None)
        else:
            self._stats.failures[kind] += 1
            self._failures[resource.uid] += 1
            if resource.uid not in self._due_s:  # it has not changed meanwhile
                self._look_in(resource.uid, _retry_s(self._failures[resource.uid]))

    async def _tell(self, resource: Resource, outcome: Outcome) -> None:
        """Write what was found and done: the status of the resource, events, and lines of the log."""
        notes = [*outcome.notes, *new_problems(resource, outcome.conditions)]
        change = status_change(resource, outcome, datetime.now(UTC)) if outcome.conditions else None
        if change is not None:
            written = await self._kubernetes.write_status(resource, change)
            if self._resources.get(resource.uid) is resource:  # and not a newer one by now
                self._keep(written)
        for note in notes:
            await self._note(resource, note)

    async def _note(self, resource: Resource, note: Note) -> None:
        kind, name, level = resource.kind.name, resource.name, logging.WARNING if note.is_warning else logging.INFO
        log.log(level, "custom resource", kind=kind, name=name, reason=note.reason, text=note.message)
        try:
            await self._kubernetes.note(resource, note)
        except KubernetesFailed as error:
            log.warning("event of a custom resource cannot be written", kind=kind, name=name, error=str(error))

    def _count(self) -> None:
        states = (str(each.condition(READY).get("status", "Unknown")) for each in self._resources.values())
        self._stats.states[self._reconciler.kind.name] = Counter(states)


FAILED: Final = Outcome(
    conditions=[Condition(READY, None, "Failed", "a fault of the operator: its log has the traceback")],
    is_settled=False,
)


def _declaration(resource: Resource) -> tuple[object, ...]:
    """Return the part of a resource whose change is worth a look: not its status, which the operator writes."""
    return resource.generation, dict(resource.annotations), resource.is_being_deleted


def _retry_s(failures: int) -> float:
    return float(min(RETRY_MAX_S, RETRY_MIN_S * 2 ** min(failures - 1, 10)))
