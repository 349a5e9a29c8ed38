"""A connection between two copies of a store: a blocking socket, used by one thread."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.server.addresses import Address
from quarry_mq.server.replicas.handshake import MAC_SIZE, Hello, Keys, Welcome, pack, unpack
from quarry_mq.server.replicas.wire import BODY_SIZE_MAX, Frame, FrameReader, FrameType, WireError, frame, header

HANDSHAKE_S: Final = 5.0
"""Seconds that a whole handshake may take, with that of TLS, however many bytes of it come one by one."""
SEND_S: Final = 30.0
"""Seconds that one piece may take to be sent; then the other side is taken for gone."""
SEND_SIZE: Final = 256 << 10
"""Bytes of bodies above which a piece is sent."""
RECEIVE_SIZE: Final = 1 << 20
_CLOCK: Final[Clock] = SystemClock()
"""The clock of this machine, by which sockets wait, too."""


def handshake_deadline_s() -> float:
    """Return until when a handshake that begins now may take."""
    return _CLOCK.monotonic_s() + HANDSHAKE_S


class ReplicaTls(NamedTuple):
    """The files of TLS between copies. They are read for each connection, so they may be replaced at any time."""

    certificate: Path
    key: Path
    authority: Path | None

    def server(self) -> ssl.SSLContext:
        """Return the context of a listener. Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        return context

    def client(self) -> ssl.SSLContext:
        """Return the context of a connection to another copy. Raises OSError."""
        context = ssl.create_default_context(cafile=None if self.authority is None else str(self.authority))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


@dataclass(frozen=True, slots=True)
class Peers:
    """The copies of one store, as one of them knows them: its own name, and how it reaches the others."""

    shard: str
    """The name of the broker, which all copies share."""
    name: str
    """The name of this copy."""
    others: Mapping[str, Address]
    keys: Keys
    tls: ReplicaTls | None

    @property
    def is_own_name_first(self) -> bool:
        """Return whether this copy has the first name of all, in the order of their characters."""
        return all(self.name < other for other in self.others)


class Connection:
    """Frames over a socket. Raises OSError if the other side is gone, and WireError if it is not a copy."""

    def __init__(self, connected: socket.socket, deadline_s: float) -> None:
        """Begin with the handshake, which ends at the deadline at the latest."""
        self._socket = connected
        self._deadline_s = deadline_s
        self._reader = FrameReader()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def peer(self) -> str:
        """Return the other side's address."""
        host, port, *_ = self._socket.getpeername()
        return str(Address(host, port))

    def send(self, term: int, frames: Iterable[tuple[FrameType, Sequence[bytes | memoryview]]]) -> None:
        """Send frames whose bodies are given in parts. Many small ones share a call of the system."""
        self._socket.settimeout(SEND_S)
        waiting: list[bytes | memoryview] = []
        size = 0
        for kind, body in frames:
            waiting += (header(kind, term, *body), *body)
            size += sum(map(len, body))
            if size >= SEND_SIZE:
                self._socket.sendall(b"".join(waiting))
                waiting.clear()
                size = 0
        if waiting:
            self._socket.sendall(b"".join(waiting))

    def receive(self, wait_s: float) -> Iterator[Frame]:
        """Wait for bytes, and yield the frames that are complete; a frame's body is valid until the next one."""
        yield from self._reader.feed(b"")  # what came with the end of the handshake
        self._socket.settimeout(wait_s)
        try:
            data = self._socket.recv(RECEIVE_SIZE)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return
        if not data:
            raise ConnectionError("the other copy closed the connection")
        yield from self._reader.feed(data)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    # -- the handshake

    def begin_tls(self) -> None:
        """Do the handshake of TLS, if the connection has it."""
        if isinstance(self._socket, ssl.SSLSocket):
            self._limit()
            self._socket.do_handshake()

    def greet(self, hello: Hello, keys: Keys) -> Welcome:
        """Say who this copy is, and return the other one's answer once both have proved that they have the key."""
        sent = pack(hello)
        self._limit()
        self._socket.sendall(frame(FrameType.HELLO, hello.term, sent))
        body = self._expect(FrameType.WELCOME)
        mac, received = body[:MAC_SIZE], body[MAC_SIZE:]
        keys.check_welcome(mac, sent, received)
        welcome = unpack(Welcome, received)
        if hello.follows and not welcome.refusal:
            self._limit()
            self._socket.sendall(frame(FrameType.PROOF, hello.term, keys.sign_proof(sent, received)))
        self._reader.size_max = BODY_SIZE_MAX
        return welcome

    def take_hello(self) -> tuple[Hello, bytes]:
        """Return what another copy says about itself, which is not proved yet, and the bytes of it."""
        body = self._expect(FrameType.HELLO)
        return unpack(Hello, body), body

    def welcome(self, hello: bytes, welcome: Welcome, keys: Keys, *, is_proof_due: bool) -> None:
        """Answer a HELLO. With `is_proof_due` the other copy has to prove that it has the key."""
        sent = pack(welcome)
        self._limit()
        self._socket.sendall(frame(FrameType.WELCOME, welcome.term, keys.sign_welcome(hello, sent) + sent))
        if is_proof_due:
            keys.check_proof(self._expect(FrameType.PROOF), hello, sent)
            self._reader.size_max = BODY_SIZE_MAX

    def _expect(self, kind: FrameType) -> bytes:
        """Return the body of the next frame, which must be of this type. What comes behind it is kept."""
        data = b""
        while not (found := [(each.type, bytes(each.body)) for each in self._reader.feed(data, is_one_due=True)]):
            self._limit()
            data = self._socket.recv(RECEIVE_SIZE)
            if not data:
                raise ConnectionError("the other copy closed the connection during the handshake")
        [(type_found, body)] = found
        if type_found != kind:
            raise WireError(f"a frame {type_found.name} where {kind.name} is due")
        return body

    def _limit(self) -> None:
        """Let the next call on the socket end at the deadline. Raises TimeoutError if that has passed."""
        left_s = self._deadline_s - _CLOCK.monotonic_s()
        if left_s <= 0:
            raise TimeoutError("the handshake took too long")
        self._socket.settimeout(left_s)


def connect(address: Address, tls: ReplicaTls | None) -> Connection:
    """Connect to another copy. Raises OSError."""
    deadline_s = handshake_deadline_s()
    connected = socket.create_connection((address.host, address.port), timeout=HANDSHAKE_S)
    try:
        if connected.getsockname() == connected.getpeername():  # TCP allows it, if the port is one that clients get
            raise ConnectionRefusedError("nobody listens there")
        if tls is not None:
            context = tls.client()
            connected = context.wrap_socket(connected, server_hostname=address.host, do_handshake_on_connect=False)
        connection = Connection(connected, deadline_s)
        connection.begin_tls()
    except BaseException:
        connected.close()
        raise
    return connection
