"""A listener that speaks TLS, and plain text too where it is told to look at the first byte of each connection.

`loop.create_server` knows one context for as long as it listens; here each connection begins with what is shown now.
A connection waits at the door until it has said its first byte and ended its handshake. That may take `GREETING_S`
each, and when `WAITING_MAX` wait the one that has waited longest has to go: who says nothing keeps nobody out.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from server.front.figures import FrontFigures
from server.front.h2.patience import GREETING_S
from server.front.inherited import inherited_sockets
from server.front.tls import LiveTls

log = structlog.get_logger(__name__)

TLS_HANDSHAKE: Final = b"\x16"
"""The first byte of every TLS connection, and of no HTTP/2 preface."""

WAITING_MAX: Final = 1024
ACCEPTED_AT_ONCE_MAX: Final = 64
ACCEPT_PAUSE_S: Final = 1.0


class Door:
    """Listens from `open` to `close`."""

    def __init__(
        self,
        tls: LiveTls,
        make: Callable[[bool], asyncio.Protocol],
        figures: FrontFigures,
        *,
        plain_too: bool,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """`make` is the protocol of a new connection, told whether that one speaks TLS."""
        self._waiting_max = waiting_max
        self._tls = tls
        self._make = make
        self._figures = figures
        self._plain_too = plain_too
        self._listening: list[socket.socket] = []
        self._waiting: dict[socket.socket, asyncio.Task[None]] = {}  # the longest first

    async def open(self, host: str, port: int, *, backlog: int) -> int:
        """Listen on all addresses of the host; returns the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        if inherited := inherited_sockets(host, port):
            self._listening += inherited
            found = []
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self._listening.append(socket.create_server(address, family=family, backlog=backlog))
        except OSError:
            self.close()
            raise
        for listening in self._listening:
            listening.settimeout(0)
            loop.add_reader(listening, self._accept, listening)
        return int(self._listening[0].getsockname()[1])

    def close(self) -> None:
        """Take no new connections, and end those that wait."""
        loop = asyncio.get_running_loop()
        listening, self._listening = self._listening, []
        for each in listening:
            loop.remove_reader(each)
            each.close()
        for connection in self._waiting:
            _shut(connection)

    async def wait_closed(self) -> None:
        if self._waiting:
            await asyncio.wait(self._waiting.values())

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE_MAX):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors, no memory
                log.error("no connections can be accepted for now", reason=error.strerror)
                self._pause(listening)
                return
            self._let_wait(connection)

    def _pause(self, listening: socket.socket) -> None:
        """Without it the loop would turn without end: the socket stays readable."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)

        def again() -> None:
            if listening in self._listening:
                loop.add_reader(listening, self._accept, listening)

        loop.call_later(ACCEPT_PAUSE_S, again)

    def _let_wait(self, connection: socket.socket) -> None:
        connection.settimeout(0)
        if len(self._waiting) >= min(WAITING_MAX, self._waiting_max):
            oldest = next(iter(self._waiting))
            self._waiting.pop(oldest)
            _shut(oldest)
        task = asyncio.get_running_loop().create_task(self._admit(connection))
        self._waiting[connection] = task
        task.add_done_callback(lambda _: self._waiting.pop(connection, None))

    async def _admit(self, connection: socket.socket) -> None:
        try:
            is_secure = not self._plain_too or await _first_byte(connection) == TLS_HANDSHAKE
        except (OSError, EOFError):  # a TimeoutError is an OSError
            self._figures.connections_ended["SILENT"] += 1
            connection.close()
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: self._make(is_secure),
                connection,
                ssl=self._tls.now.context if is_secure else None,
                ssl_handshake_timeout=GREETING_S if is_secure else None,
            )
        except OSError as error:  # ssl.SSLError is one
            self._figures.connections_ended["NO_TLS"] += 1
            log.info("TLS handshake failed", reason=str(error))


async def _first_byte(connection: socket.socket) -> bytes:
    """Which it leaves where it is. Raises EOFError or OSError when there will be none, TimeoutError when it is late."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        async with asyncio.timeout(GREETING_S):
            while True:
                await readable.wait()
                with suppress(BlockingIOError, InterruptedError):
                    if not (first := connection.recv(1, socket.MSG_PEEK)):
                        raise EOFError
                    return first
                readable.clear()
    finally:
        loop.remove_reader(connection)


def _shut(connection: socket.socket) -> None:
    """Wakes whoever waits for it, who closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
