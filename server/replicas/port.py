"""The port at which the other copies of a store connect, whatever the role of this copy is."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import closing, suppress
from threading import BoundedSemaphore, Lock, Thread, current_thread
from typing import Final

import structlog

from quarry_mq.server.addresses import Address
from quarry_mq.server.replicas.connection import Connection, ReplicaTls, handshake_deadline_s
from quarry_mq.server.replicas.handshake import Hello, Keys, Welcome
from quarry_mq.server.replicas.wire import WireError

log = structlog.get_logger(__name__)

CONNECTIONS_MAX: Final = 32
"""Connections at once. A shard has a few copies, so more are a mistake or an attack."""
ACCEPT_S: Final = 0.2

Answer = Callable[[Hello], Welcome]
Serve = Callable[[Connection, Hello, Welcome], None]


class ReplicationPort:
    """Listens for other copies, on a thread of its own, with one more thread for each connection."""

    def __init__(self, address: Address, keys: Keys, tls: ReplicaTls | None) -> None:
        """Listen. Raises OSError."""
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._listener = socket.create_server((address.host, address.port), family=family)
        self._listener.settimeout(ACCEPT_S)
        self._keys = keys
        self._tls = tls
        self._slots = BoundedSemaphore(CONNECTIONS_MAX)
        self._lock = Lock()
        self._open: set[socket.socket] = set()
        self._threads: set[Thread] = set()
        self._is_closed = False
        self._answer: Answer | None = None
        self._serve: Serve | None = None
        self._accepting = Thread(target=self._accept, name="replication port", daemon=True)
        self._accepting.start()

    @property
    def address(self) -> str:
        """Return where the port listens."""
        host, port, *_ = self._listener.getsockname()
        return str(Address(host, port))

    def answer_with(self, answer: Answer, serve: Serve) -> None:
        """Let `answer` say who this copy is, and `serve` serve copies that follow it, from now on."""
        self._answer, self._serve = answer, serve

    def answer_nobody(self) -> None:
        """End all connections, and wait for their threads. New ones are closed until `answer_with` is called again."""
        self._answer = self._serve = None
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    # not that of SSLSocket, which would let its thread go on without TLS
                    socket.socket.shutdown(each, socket.SHUT_RDWR)
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def close(self) -> None:
        """Close the port, end all connections, and wait for their threads."""
        self._is_closed = True
        self._accepting.join()
        self._listener.close()
        self.answer_nobody()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                accepted, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:  # no descriptors are left, for one
                log.warning("a copy could not be accepted", error=str(error))
                continue
            if not self._slots.acquire(blocking=False):
                accepted.close()
                continue
            thread = Thread(target=self._handle, args=(accepted,), name="replication", daemon=True)
            with self._lock:
                self._open.add(accepted)
                self._threads.add(thread)
            thread.start()

    def _handle(self, accepted: socket.socket) -> None:
        connected = accepted
        try:
            deadline_s = handshake_deadline_s()
            if self._tls is not None:
                connected = self._wrapped(accepted, self._tls.server())
            with closing(Connection(connected, deadline_s)) as connection:
                self._greet(connection)
        except (OSError, WireError) as error:
            if self._answer is not None:
                log.warning("a connection of a copy ended", error=str(error))
        finally:
            connected.close()
            with self._lock:
                self._open.discard(connected)
                self._threads.discard(current_thread())
            self._slots.release()

    def _wrapped(self, accepted: socket.socket, context: ssl.SSLContext) -> socket.socket:
        """Return the connection with TLS, whose handshake is still to come. It takes the place of the other one."""
        with self._lock:
            connected = context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
            self._open.discard(accepted)
            self._open.add(connected)
        return connected

    def _greet(self, connection: Connection) -> None:
        connection.begin_tls()
        hello, sent = connection.take_hello()
        answer, serve = self._answer, self._serve
        if answer is None or serve is None:
            return
        welcome = answer(hello)
        follows = hello.follows and not welcome.refusal
        connection.welcome(sent, welcome, self._keys, is_proof_due=follows)
        if follows:
            serve(connection, hello, welcome)
