"""The replica's side: a copy of the store that follows the primary until an operator promotes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Final

import structlog

from quarry_mq.protocol.clock import Clock, ReportProgress
from quarry_mq.server.addresses import Address
from quarry_mq.server.replicas.connection import Connection, Peers, connect
from quarry_mq.server.replicas.handshake import START_OVER, Hello, Welcome, nonce
from quarry_mq.server.replicas.intake import Intake
from quarry_mq.server.replicas.role import Role, RoleFiles, shared_end
from quarry_mq.server.replicas.status import End, Lag, ReplicaStatus
from quarry_mq.server.replicas.wire import Ack, Beat, FrameType, WireError, pack_ack
from quarry_mq.store.errors import BrokerError, StoreUnusable
from quarry_mq.store.follower import CopiedStore, QueuesOutdated, open_copy
from quarry_mq.store.layout.kind import StoreKind
from quarry_mq.store.layout.paths import StorePaths, cut_directory, expired_directory
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.opening.open_store import Copied
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.state.state_log import NO_CURSOR

log = structlog.get_logger(__name__)

COMMIT_SIZE: Final = 4 << 20
"""Bytes that are received before they are made durable, if the primary does not stop sending."""
COMMIT_INTERVAL_S: Final = 0.05
FLUSH_INTERVAL_S: Final = 30.0
LOOK_INTERVAL_S: Final = 0.2
"""Seconds until a request of an operator is seen."""
RETRY_INTERVAL_S: Final = 1.0
SILENCE_S: Final = 10.0
"""Seconds without a frame after which the primary is taken for gone. It sends a beat every half second."""


class Replica:
    """Follows the primary of its store. Everything happens on the thread that calls `run`."""

    def __init__(
        self,
        settings: StoreSettings,
        role: Role,
        files: RoleFiles,
        peers: Peers,
        *,
        clock: Clock,
        report: ReportProgress,
        show: Callable[[ReplicaStatus], None],
        stop: Event,
    ) -> None:
        """Follow whichever of the peers is the primary. `show` is called about twice a second."""
        self._settings = settings
        self.role = role
        self._files = files
        self._peers = peers
        self._disk = files.disk
        self._clock = clock
        self._report = report
        self._show = show
        self._stop = stop
        self._lag = Lag(clock)
        self.status = ReplicaStatus(name=peers.name)
        self._store: CopiedStore | None = None
        self._empty_others: set[str] = set()

    def answer(self, hello: Hello) -> Welcome:
        """Say to another copy that this one is not the primary."""
        role, store = self.role, self._store
        return Welcome(
            replica=self._peers.name,
            nonce=nonce(),
            is_primary=False,
            lineage=role.lineage,
            term=role.term,
            epochs=role.epochs,
            origin=role.origin,
            segment_size=role.segment_size,
            log_begin=0,
            log_end=0 if store is None else store.flushed_up_to,
            cut_to=START_OVER,
            refusal="" if hello.shard == self._peers.shard else f"this is a copy of {self._peers.shard}",
        )

    def run(self) -> bool:
        """Follow until this replica is promoted, or until `stop` is set; return whether it was promoted.

        Raises StoreUnusable, StoreDamaged, StorePoisoned, kv.KvError and OSError of the own disk.
        """
        try:
            while not self._stop.is_set():
                if self._files.is_asked("emptying"):
                    self._empty("it was under way")
                if self._files.is_asked("promote") and self._may_be_promoted():
                    self._promote()
                    return True
                if self._files.is_asked("seed"):
                    self._close()  # it stays until there is a primary to copy from
                elif self._store is None and self.role.epochs:
                    self._open()
                if self._store is not None:
                    self._store.make_wanted_point()
                self._empty_others.clear()
                if not any(self._follow(name, address) for name, address in self._peers.others.items()):
                    if self._is_first_primary():
                        log.info("all copies are empty: this one becomes the first primary", replica=self._peers.name)
                        self._promote()
                        return True
                    self._stop.wait(RETRY_INTERVAL_S)
            return False
        finally:
            self._close()

    # -- the store

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _open(
        self,
        *,
        begin: int = 0,
        parts_at: PhysicalOffset | None = None,
        is_promoted: bool = False,
    ) -> CopiedStore:
        """Open the store of the role; see `open_copy`."""
        role = self.role
        self._store = open_copy(
            replace(self._settings, segment_size=role.segment_size or self._settings.segment_size),
            disk=self._disk,
            clock=self._clock,
            report=self._report,
            copied=Copied(StoreKind(role.origin), parts_at, is_promoted),
            begin=PhysicalOffset(begin),
        )
        return self._store

    def _rebuild_queues(self, *, is_promoted: bool = False) -> CopiedStore:
        log.warning("the queues are rebuilt: the primary has taken back a deletion, or this copy missed one")
        if self._store is not None:
            store, self._store = self._store, None
            store.close(keeps_end=is_promoted)
        return self._open(is_promoted=is_promoted)

    def _begin(self, welcome: Welcome) -> CopiedStore | None:
        """Return the store as the primary can continue it; None if it is another one than the primary was told of.

        Raises what `run` raises.
        """
        store = self._store
        if self._files.is_asked("seed"):
            self._empty("an operator asked for it")
            self._files.done("seed")
            if store is not None:
                return None
        elif store is not None and welcome.cut_to < max(0, store.minimum):
            self._keep_what_parts(store, welcome)
            self._empty(
                f"its log ends at {store.received_up_to}, and that of the primary begins at {welcome.log_begin}"
            )
            return None
        elif store is not None and welcome.cut_to < store.received_up_to:
            store = self._cut(store, PhysicalOffset(welcome.cut_to))
        # after the cut, and before the first byte of the primary: the epochs never name what the log does not have
        role = replace(
            self.role,
            lineage=welcome.lineage,
            term=welcome.term,
            is_primary=False,
            epochs=welcome.epochs,
            origin=welcome.origin,
            segment_size=welcome.segment_size,
        )
        if role != self.role:
            self._files.save(role)
            self.role = role
        return store or self._open(begin=welcome.log_begin)

    def _cut(self, store: CopiedStore, at: PhysicalOffset) -> CopiedStore:
        log.warning(
            "the log parts from that of the primary, its end is cut off and kept",
            cut_at=at,
            log_end=store.received_up_to,
        )
        self._close()
        return self._open(parts_at=at)

    def _keep_what_parts(self, store: CopiedStore, welcome: Welcome) -> None:
        """Keep the part of the log that no other copy has, before the store is emptied: that of an old primary."""
        shared = shared_end(self.role.epochs, store.received_up_to, welcome.epochs, welcome.log_end)
        if shared < store.received_up_to:
            self._cut(store, PhysicalOffset(max(shared, store.minimum)))

    def _empty(self, why: str) -> None:
        """Remove the store, so that it is copied again. What was cut off its log before is kept."""
        log.warning("the copy is emptied and seeded again", reason=why)
        self._files.ask("emptying")  # a start after a crash goes on with it
        self._close()
        paths = StorePaths(self._settings.root)
        for path in (
            paths.quarry,  # first: without it nothing that is left is taken for a store of Quarry
            paths.consume_queue,
            paths.consume_queue_rocksdb,
            paths.pending_messages,
            paths.index,
            paths.key_index,
            paths.config,
            paths.backup_points,
        ):
            self._disk.remove_tree(path)
        self._remove_log(paths.commit_log)
        for path in (paths.checkpoint, paths.abort):
            if self._disk.exists(path):
                self._disk.remove(path)
        self.role = replace(self.role, epochs=(), is_primary=False)
        self._files.save(self.role)
        self._files.done("emptying")

    def _remove_log(self, directory: Path) -> None:
        """Remove the log, and leave what was cut off before."""
        kept = cut_directory(directory)
        if not self._disk.exists(kept):
            self._disk.remove_tree(directory)
            return
        self._disk.remove_tree(expired_directory(directory))
        for entry in self._disk.list_directory(directory):
            if entry.name != kept.name:
                self._disk.remove(directory / entry.name)

    def _may_be_promoted(self) -> bool:
        """Return whether there is something to serve, or nothing anywhere; else the request is dropped."""
        if self.role.epochs or not self.role.lineage:
            return True
        log.error("this copy is empty and is not promoted: seed it, or promote another one")
        self._files.done("promote")
        return False

    def _is_first_primary(self) -> bool:
        """Return whether all copies have just said that they never had anything, and this one has the first name."""
        is_new = self.role == Role() and self._peers.is_own_name_first
        return is_new and self._empty_others == set(self._peers.others)

    def _promote(self) -> None:
        end = PhysicalOffset(0)
        if self._store is None and self.role.epochs:
            self._open(is_promoted=True)
        if self._store is not None:
            try:
                end = self._store.close_for_promotion()
            except QueuesOutdated:
                end = self._rebuild_queues(is_promoted=True).close_for_promotion()
            self._store = None
        self.role = self.role.promoted(self.role.term + 1, end)
        self._files.save(self.role)
        self._files.drop_requests()
        log.warning(
            "this copy is the primary now",
            term=self.role.term,
            log_end=end,
            lag_bytes=self.status.lag_bytes,
            lag_changes=self.status.lag_changes,
            heard_at_ms=self.status.heard_at_ms,
        )

    # -- the connection

    def _follow(self, name: str, address: Address) -> bool:
        """Follow a peer if it is the primary; return whether it was."""
        try:
            with closing(connect(address, self._peers.tls)) as connection:
                welcome = connection.greet(self._hello(), self._peers.keys)
                if welcome.refusal:
                    raise StoreUnusable(self._settings.root, f"replica {name} refuses it: {welcome.refusal}")
                if welcome.replica == name and not (welcome.is_primary or welcome.lineage or welcome.term):
                    self._empty_others.add(name)
                if not welcome.is_primary or welcome.term < self.role.term:
                    self._tell(replace(self.status, is_connected=False, problem=f"{name} is not the primary"))
                    return False
                if (store := self._begin(welcome)) is not None:
                    self._follow_primary(connection, name, store)
        except (OSError, WireError) as error:
            if isinstance(error, BrokerError):
                raise
            self._tell(replace(self.status, is_connected=False, problem=f"{name}: {error}"))
            return False
        except QueuesOutdated:
            self._rebuild_queues()
        return True

    def _hello(self) -> Hello:
        role, store = self.role, self._store
        run, number, position = NO_CURSOR if store is None else store.cursor
        return Hello(
            shard=self._peers.shard,
            replica=self._peers.name,
            nonce=nonce(),
            follows=True,
            lineage=role.lineage,
            term=role.term,
            epochs=role.epochs if store is not None else (),
            segment_size=0 if store is None else store.segment_size,
            log_end=0 if store is None else store.received_up_to,
            run=run.hex(),
            number=number,
            position=position,
        )

    def _follow_primary(self, connection: Connection, name: str, store: CopiedStore) -> None:
        intake = Intake(store)
        term, clock = self.role.term, self._clock
        committed_s = flushed_s = heard_s = looked_s = clock.monotonic_s()
        acked = None
        while not self._stop.is_set():
            is_silent = True
            for frame in connection.receive(COMMIT_INTERVAL_S):
                intake.take(frame)
                is_silent = False
            now_s = clock.monotonic_s()
            heard_s = heard_s if is_silent else now_s
            is_due = is_silent or now_s - committed_s >= COMMIT_INTERVAL_S
            if is_due or store.received_up_to - store.flushed_up_to >= COMMIT_SIZE:
                ack, committed_s = intake.commit(), now_s
                if ack != acked:
                    connection.send(term, [(FrameType.ACK, [pack_ack(ack)])])
                    acked = ack
                    self._heard(name, intake.beat, ack)
            if now_s - looked_s >= LOOK_INTERVAL_S:
                looked_s = now_s
                store.make_wanted_point()
                if self._files.is_asked("promote") or self._files.is_asked("seed"):
                    break
            if now_s - flushed_s >= FLUSH_INTERVAL_S:
                store.flush()
                flushed_s = now_s
            if now_s - heard_s > SILENCE_S:
                raise WireError(f"nothing was heard for {SILENCE_S:.0f} s")
        connection.send(term, [(FrameType.BYE, [b"the replica stops"])])

    def _heard(self, name: str, beat: Beat | None, ack: Ack) -> None:
        if beat is None:
            return
        now = replace(
            self.status,
            primary=name,
            is_connected=True,
            is_seeding=beat.cursor.position < 0,
            flushed=ack.flushed,
            position=ack.position,
            number=ack.number,
            heard_at_ms=self._clock.wall_ms(),
            problem="",
        )
        self._tell(self._lag.measured(now, End(beat.log_end, beat.last_change)))

    def _tell(self, status: ReplicaStatus) -> None:
        self.status = status
        self._show(status)
