"""The primary's side: it serves the copies that follow, knows how far each is, and hears of later primaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from threading import Event, Lock, Thread
from typing import Final

import structlog

from quarry_mq.kv import KvError
from quarry_mq.kv.recording import RecordingEngine
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.replicas.connection import Connection, Peers, connect
from quarry_mq.server.replicas.handshake import START_OVER, Hello, Welcome, nonce
from quarry_mq.server.replicas.port import ReplicationPort
from quarry_mq.server.replicas.role import NOTHING_SHARED, Epoch, Role, shared_end
from quarry_mq.server.replicas.shipment import LOG_SIZE_MAX, Shipment
from quarry_mq.server.replicas.status import End, Lag, ReplicaStatus
from quarry_mq.server.replicas.wire import Ack, FrameType, WireError, read_ack
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.state.state_log import NO_CURSOR, StateCursor

log = structlog.get_logger(__name__)

BEAT_INTERVAL_S: Final = 0.5
PACE_S: Final = 0.02
"""Seconds between two calls of `Shipment.parts`. Each call costs the broker a turn of Python's lock."""
SILENCE_S: Final = 10.0
"""Seconds without an acknowledgement after which a copy is taken for gone."""
ASK_INTERVAL_S: Final = 2.0
PIN_S: Final = 60.0
"""Seconds for which the log is kept for a copy that is gone."""
DRAIN_S: Final = 2.0
WATCH_END_S: Final = 0.5
"""Seconds for which a stop waits for the answer of a copy that was just asked who it is."""


class Primary:
    """The primary of a store with copies. Its threads end with `stop`."""

    def __init__(
        self,
        store: OpenStore,
        role: Role,
        peers: Peers,
        *,
        clock: Clock,
        deposed: Callable[[str], None],
    ) -> None:
        """Serve the copies of an open store. `deposed` is called on another thread when a later primary answers."""
        assert isinstance(store.state_engine, RecordingEngine)
        assert store.state_log is not None
        self._store = store
        self._state = (store.state_engine, store.state_log)
        self.role = role
        self._peers = peers
        self._clock = clock
        self._deposed = deposed
        self._port: ReplicationPort | None = None
        self._stopping = Event()
        self._lock = Lock()
        self._statuses = {each: ReplicaStatus(name=each) for each in peers.others}
        self._lags = {each: Lag(clock) for each in peers.others}
        self._current: dict[str, Connection] = {}
        """The last connection of each copy. An earlier one can be open still: no packet may say that it has ended."""
        self._watching = Thread(target=self._watch, name="replication watch", daemon=True)

    def start(self, port: ReplicationPort) -> None:
        """Serve the copies that connect to the port, and look for later primaries."""
        self._port = port
        port.answer_with(self._answer, self._serve)
        self._watching.start()

    def stop(self) -> None:
        """Let the copies have what is there, for a short time, and end; afterwards nothing uses the store."""
        deadline_s = self._clock.monotonic_s() + DRAIN_S
        while self._clock.monotonic_s() < deadline_s and any(
            each.is_connected and (each.is_seeding or each.lag_bytes or each.lag_changes) for each in self.statuses()
        ):
            self._stopping.wait(PACE_S)
        self._stopping.set()
        self._watching.join(WATCH_END_S)  # it uses nothing more, even if a peer does not answer
        if self._port is not None:
            self._port.answer_nobody()

    def statuses(self) -> list[ReplicaStatus]:
        """Return how far each copy is, with the ones that are not connected."""
        end = End(self._store.messages.flushed_up_to, self._state[1].cursor.number)
        with self._lock:
            return [self._lags[name].measured(each, end) for name, each in sorted(self._statuses.items())]

    # -- on the threads of the port

    def _answer(self, hello: Hello) -> Welcome:
        segments, end, role = self._store.segments, self._store.messages.flushed_up_to, self.role
        shared = shared_end(role.epochs, end, hello.epochs, hello.log_end)
        is_continued = shared != NOTHING_SHARED and segments.minimum <= shared
        return Welcome(
            replica=self._peers.name,
            nonce=nonce(),
            is_primary=True,
            lineage=role.lineage,
            term=role.term,
            epochs=role.epochs,
            origin=self._store.identity.origin or "",
            segment_size=segments.segment_size,
            log_begin=segments.minimum,
            log_end=end,
            cut_to=shared if is_continued else START_OVER,
            refusal=self._refusal(hello),
        )

    def _refusal(self, hello: Hello) -> str:
        if hello.shard != self._peers.shard:
            return f"this is a copy of {self._peers.shard}, not of {hello.shard}"
        if hello.replica == self._peers.name:
            return f"two copies have the name {self._peers.name}: set replication.replica"
        if hello.lineage not in {"", self.role.lineage}:
            return "the other store is not a copy of this one: empty its directory, and it becomes one"
        return ""

    def _serve(self, connection: Connection, hello: Hello, welcome: Welcome) -> None:
        name = hello.replica
        log.info("a copy follows", replica=name, address=connection.peer, log_end=hello.log_end)
        at, cursor = _shipment_begin(hello, welcome)
        shipment = Shipment(self._store.segments, self._store.messages, self._state, at=at, cursor=cursor)
        status = ReplicaStatus(
            name=name,
            address=connection.peer,
            is_connected=True,
            is_seeding=shipment.takes_all_rows,
            position=cursor.position,
            number=cursor.number,
        )
        with self._lock:
            self._current[name] = connection
            self._lags.setdefault(name, Lag(self._clock))
            self._statuses[name] = status
        try:
            self._ship(connection, name, shipment)
        except (OffsetOutOfRange, KvError) as error:
            log.warning("a copy has to connect again", replica=name, error=str(error))
        finally:
            with self._lock:
                if self._current[name] is connection:
                    self._statuses[name] = replace(self._statuses[name], is_connected=False)
            log.info("a copy follows no more", replica=name)

    def _ship(self, connection: Connection, name: str, shipment: Shipment) -> None:
        term, clock = self.role.term, self._clock
        beat_s = pinned_s = 0.0
        heard_s = clock.monotonic_s()
        while not self._stopping.is_set():
            if self._current[name] is not connection:
                raise WireError(f"the copy {name} has connected again")
            now_s = clock.monotonic_s()
            self.statuses()  # notes what is new since the last turn
            if now_s - pinned_s > PIN_S / 4:
                self._store.pins.pin(f"replica {name}", shipment.at, PIN_S)
                pinned_s = now_s
            is_due = now_s - beat_s >= BEAT_INTERVAL_S
            beat_s = now_s if is_due else beat_s
            begun_at = shipment.at
            connection.send(term, shipment.parts(is_beat_due=is_due))
            for frame in connection.receive(PACE_S if shipment.at - begun_at < LOG_SIZE_MAX else 0):
                if frame.type == FrameType.BYE:
                    return
                if frame.type == FrameType.ACK:
                    heard_s = clock.monotonic_s()
                    self._note(name, connection, read_ack(frame.body), shipment)
            if clock.monotonic_s() - heard_s > SILENCE_S:
                raise WireError(f"the copy {name} has acknowledged nothing for {SILENCE_S:.0f} s")
        connection.send(term, [(FrameType.BYE, [b"the primary stops"])])

    def _note(self, name: str, connection: Connection, ack: Ack, shipment: Shipment) -> None:
        with self._lock:
            if self._current[name] is connection:
                self._statuses[name] = replace(
                    self._statuses[name],
                    flushed=ack.flushed,
                    position=ack.position,
                    number=ack.number,
                    is_seeding=shipment.is_seeding(ack),
                )

    # -- on a thread of its own

    def _watch(self) -> None:
        """Ask the copies that do not follow who they are: one of them may have been promoted."""
        while not self._stopping.wait(ASK_INTERVAL_S):
            for each in self.statuses():
                if each.is_connected or each.name not in self._peers.others:
                    continue
                found = later_primary(self._peers, self.role, [each.name])
                if self._stopping.is_set():
                    return
                if found is not None:
                    self._deposed(_deposition(found))
                    return


def _shipment_begin(hello: Hello, welcome: Welcome) -> tuple[PhysicalOffset, StateCursor]:
    """Return where the copy's log ends once it has done what it was told, and up to which batch it has the changes."""
    if welcome.cut_to == START_OVER:
        return PhysicalOffset(welcome.log_begin), NO_CURSOR
    if welcome.cut_to < hello.log_end:
        return PhysicalOffset(welcome.cut_to), NO_CURSOR
    cursor = StateCursor(bytes.fromhex(hello.run), hello.number, PhysicalOffset(hello.position))
    return PhysicalOffset(hello.log_end), cursor


def _deposition(found: Welcome) -> str:
    if found.is_primary:
        return f"{found.replica} was promoted: it is the primary of term {found.term}"
    return f"another copy was promoted: {found.replica} knows of term {found.term}"


def _is_later(theirs: Sequence[Epoch], ours: Sequence[Epoch]) -> bool:
    """Return whether the other log has a later promotion; of two of one term only one may go on."""
    return bool(theirs and ours) and (theirs[-1].term, theirs[-1].number) > (ours[-1].term, ours[-1].number)


def later_primary(peers: Peers, role: Role, names: Iterable[str]) -> Welcome | None:
    """Ask other copies who they are, and return the answer of one that knows of a later primary.

    It is that primary, or follows it, or was promoted and does not serve yet.
    """
    for name in names:
        hello = Hello(
            shard=peers.shard,
            replica="",
            nonce=nonce(),
            follows=False,
            lineage=role.lineage,
            term=role.term,
            epochs=role.epochs,
            segment_size=0,
            log_end=0,
            run=NO_CURSOR.run.hex(),
            number=0,
            position=0,
        )
        try:
            with closing(connect(peers.others[name], peers.tls)) as connection:
                welcome = connection.greet(hello, peers.keys)
        except (OSError, WireError):  # it is away, or still starts
            continue
        if welcome.lineage == role.lineage and _is_later(welcome.epochs, role.epochs):
            return welcome
    return None
