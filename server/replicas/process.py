"""The copies of a store in one process: it follows first, if the store is a copy, and leads once it is the primary."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import replace
from threading import Event
from typing import Final, Self

import structlog

from quarry_mq.protocol.clock import Clock, ReportProgress
from quarry_mq.server.addresses import Address
from quarry_mq.server.errors import BrokerFailed
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.process.stop import Stop
from quarry_mq.server.replicas.connection import Peers, ReplicaTls
from quarry_mq.server.replicas.handshake import Keys
from quarry_mq.server.replicas.port import ReplicationPort
from quarry_mq.server.replicas.primary import Primary, later_primary
from quarry_mq.server.replicas.replica import Replica
from quarry_mq.server.replicas.role import Role, RoleFiles
from quarry_mq.server.replicas.status import FollowingFile, ReplicaStatus
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import NetworkSection, ReplicationSection
from quarry_mq.store.fs import CopyingDisk
from quarry_mq.store.layout.kind import StoreKind, inspect_store
from quarry_mq.store.layout.queue_phase import require_copyable
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.security.sealer import read_keys

log = structlog.get_logger(__name__)

SHOWN_EVERY_S: Final = 10.0


class WatchedCopies:
    """The copies of a primary's store as operators see them. Lives on the event loop's thread."""

    def __init__(self, primary: Primary, name: str, others: Collection[str], clock: Clock) -> None:
        self._primary = primary
        self.name = name
        """The name of the primary."""
        self._others = others
        self._clock = clock
        self._away_since_s: dict[str, float] = {}

    @property
    def term(self) -> int:
        """Return the term of the primary."""
        return self._primary.role.term

    def statuses(self) -> list[ReplicaStatus]:
        """Return how far each copy is."""
        return self._primary.statuses()

    def silent(self) -> Iterator[tuple[ReplicaStatus, float]]:
        """Yield each copy of the settings, and for how many seconds it has been seen without a connection."""
        now_s = self._clock.monotonic_s()
        for each in self.statuses():
            if each.is_connected:
                self._away_since_s.pop(each.name, None)
                yield each, 0.0
            elif each.name in self._others:
                yield each, now_s - self._away_since_s.setdefault(each.name, now_s)


class Replication:
    """The part of one process in the copies of a store: the port, the role, and whoever plays it now."""

    def __init__(self, settings: BrokerSettings, *, disk: CopyingDisk, clock: Clock, health: HealthState) -> None:
        """Open the port. Raises Invalid that names the key file, OSError, StoreUnusable."""
        section = settings.replication
        assert section.key_file is not None
        self._settings = settings
        self._disk = disk
        self._clock = clock
        self._health = health
        health.replicates({"role": "starting"})
        keys, tls = Keys(read_keys(section.key_file)), _tls(settings.network, section)
        self._peers = Peers(settings.broker.name, section.replica, section.others, keys, tls)
        self._files = RoleFiles(disk, settings.store.directory)
        self._role = self._files.load()
        self._port = ReplicationPort(Address.parse(settings.network.replication), keys, tls)
        self._shown_s = -SHOWN_EVERY_S
        self._shown = ""
        self._is_announced = False
        self._noting = FollowingFile(disk, settings.store.directory, clock)
        self._replica: Replica | None = None
        self.primary: Primary | None = None

    @classmethod
    def of(cls, settings: BrokerSettings, *, disk: CopyingDisk, clock: Clock, health: HealthState) -> Self | None:
        """Return this process's part, or None if the store has no copies.

        Raises what the constructor raises; StoreUnusable if a copy is to be served without `replication.mode`.
        """
        if settings.replication.is_on:
            return cls(settings, disk=disk, clock=clock, health=health)
        RoleFiles(disk, settings.store.directory).require_no_copy()
        return None

    def close(self) -> None:
        """Close the port."""
        self._port.close()

    # -- following

    async def followed(self, stop: Stop, report: ReportProgress) -> bool:
        """Follow the primary for as long as this store is a copy; return False if a stop was asked for meanwhile.

        Raises what `Replica.run` raises.
        """
        is_stopped = Event()
        watch = asyncio.ensure_future(stop.asked())
        watch.add_done_callback(lambda _: is_stopped.set())
        try:
            return await asyncio.to_thread(self._follow, is_stopped, report)
        finally:
            is_stopped.set()
            watch.cancel()

    def _follow(self, stop: Event, report: ReportProgress) -> bool:
        role = self._present_role()
        if role.is_primary:
            self._files.drop_requests()  # those of before a promotion, if the process died right after it
            return True
        self._replica = replica = Replica(
            replace(self._settings.for_store(), has_copies=False, member=None),
            role,
            self._files,
            self._peers,
            clock=self._clock,
            report=report,
            show=self._show,
            stop=stop,
        )
        if (last := self._noting.read()) is not None:  # of an earlier process
            replica.status = replace(last.status, name=self._peers.name, is_connected=False)
        self._port.answer_with(replica.answer, _serve_nobody)
        log.info("this store is a copy", replica=self._peers.name, port=self._port.address)
        is_promoted = replica.run()
        self._role, self._replica = replica.role, None
        self._noting.note(replica.status, is_running=False)
        return is_promoted

    def _present_role(self) -> Role:
        """Return the role to begin with: a copy that was the primary asks the others whether it still is."""
        role = self._role
        if role is None:
            if inspect_store(self._disk, self._settings.store.directory).kind is StoreKind.NEW:
                return Role()
            log.info("the store gets copies from now on: this one is the primary", replica=self._peers.name)
            role = Role().promoted(1, PhysicalOffset(0))
        if role.is_primary:
            later = later_primary(self._peers, role, self._peers.others)
            if later is not None:
                log.warning("another copy was promoted meanwhile", replica=later.replica, term=later.term)
                role = replace(role, is_primary=False)
            self._files.save(role)
        self._role = role
        return role

    def _show(self, status: ReplicaStatus) -> None:
        self._noting.note(status)
        text = status.text(self._clock.wall_ms())
        self._health.replicates({"role": "copy", "term": self.term, **status.document})
        self._health.following(text)
        now_s, state = self._clock.monotonic_s(), f"{status.is_connected} {status.problem}"
        if status.is_connected and not self._is_announced:
            self._is_announced = True
            # for a terminal, like "Quarry is ready." of a primary
            print(f"Quarry copies {status.primary}.", flush=True)  # noqa: T201
        if state != self._shown or now_s - self._shown_s >= SHOWN_EVERY_S:
            self._shown, self._shown_s = state, now_s
            log.info("copying", state=text)

    # -- leading

    @contextlib.asynccontextmanager
    async def leading(self, store: OpenStore, fail: Callable[[BrokerFailed], None]) -> AsyncIterator[WatchedCopies]:
        """Serve the other copies while the context is entered. `fail` is called when another copy was promoted."""
        role = self._role
        assert role is not None
        require_copyable(store.queues.phase, self._settings.store.directory)
        role = replace(role, origin=store.identity.origin or "", segment_size=store.segments.segment_size)
        self._files.save(role)
        loop = asyncio.get_running_loop()

        def deposed(why: str) -> None:
            loop.call_soon_threadsafe(fail, BrokerFailed(f"the broker stops: {why}"))

        self.primary = Primary(store, role, self._peers, clock=self._clock, deposed=deposed)
        self.primary.start(self._port)
        self._health.replicates({"replica": self._peers.name, "term": role.term})
        log.info("serving copies", replica=self._peers.name, term=role.term, port=self._port.address)
        try:
            yield WatchedCopies(self.primary, self._peers.name, self._peers.others, self._clock)
        finally:
            await asyncio.to_thread(self.primary.stop)

    # -- figures

    @property
    def term(self) -> int:
        """Return the term of the primary, as far as this copy knows; 0 if it has followed none."""
        role = self._role if self._replica is None else self._replica.role
        return 0 if role is None else role.term

    def statuses(self) -> list[ReplicaStatus]:
        """Return how far each copy is: on the primary all others, on another copy itself."""
        primary, replica = self.primary, self._replica
        if primary is not None:
            return primary.statuses()
        return [] if replica is None else [replica.status]


def _tls(network: NetworkSection, section: ReplicationSection) -> ReplicaTls | None:
    if not network.replication_tls:
        return None
    assert network.tls_certificate is not None
    assert network.tls_key is not None
    return ReplicaTls(network.tls_certificate, network.tls_key, section.tls_ca)


def _serve_nobody(*_: object) -> None:
    """Serve nobody: a copy that is not the primary only says so."""
