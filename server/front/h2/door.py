"""A listener that speaks TLS, and plain text as well if it is told to look at the first byte of each connection.

`loop.create_server` uses one TLS context for as long as it listens; here each connection begins with the present
certificates. A connection waits at the door until its first byte or its ClientHello has come and its handshake has
ended. Handshakes take turns of their address (`callers.py`). The first bytes and the handshake may take `GREETING_S`
each. When `WAITING_MAX` connections wait, the longest waiting one of the address with most of them is closed: silent
peers keep nobody out, and a peer with many connections keeps out only itself.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

import structlog

from quarry_mq.server.front.h2.callers import Callers
from quarry_mq.server.front.h2.hello import TLS_HANDSHAKE, client_hello, first_byte
from quarry_mq.server.front.h2.limits.fair_scheduler import FairScheduler, Source
from quarry_mq.server.front.h2.timeouts import GREETING_S
from quarry_mq.server.front.inherited import inherited_sockets
from quarry_mq.server.front.stats import FrontStats
from quarry_mq.server.front.tls import LiveTls

log = structlog.get_logger(__name__)

WAITING_MAX: Final = 1024
ACCEPTED_AT_ONCE_MAX: Final = 4
"""Connections accepted in one loop iteration. Each costs 0.1 to 0.2 ms, handshake aside; with 64 a burst took 12 ms."""

ACCEPT_PAUSE_S: Final = 1.0


class Door:
    """Listens from `open` to `close`, and admits the waiting connections."""

    def __init__(
        self,
        tls: LiveTls,
        make: Callable[[bool], asyncio.Protocol],
        stats: FrontStats,
        scheduler: FairScheduler,
        *,
        plain_too: bool,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        """`make` returns the protocol of a new connection; its argument says whether that connection speaks TLS."""
        self._waiting_max = waiting_max
        self._tls = tls
        self._make = make
        self._stats = stats
        self._scheduler = scheduler
        self._plain_too = plain_too
        self._listening: list[socket.socket] = []
        self._waiting: set[asyncio.Task[None]] = set()
        self._callers: dict[Source, Callers] = {}

    async def open(self, host: str, port: int, *, backlog: int) -> int:
        """Listen on all addresses of the host; return the port. Raises OSError."""
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
        """Accept no new connections, and end those that wait."""
        loop = asyncio.get_running_loop()
        listening, self._listening = self._listening, []
        for each in listening:
            loop.remove_reader(each)
            each.close()
        for callers in list(self._callers.values()):
            callers.send_away()

    async def wait_closed(self) -> None:
        if self._waiting:
            await asyncio.wait(self._waiting)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE_MAX):
            try:
                connection, (host, *_) = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # too few descriptors, or no memory
                log.error("no connections can be accepted for now", reason=error.strerror)
                self._pause(listening)
                return
            self._let_wait(connection, host)

    def _pause(self, listening: socket.socket) -> None:
        """Stop accepting for a while: the socket stays readable, so the loop would run without end."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)

        def again() -> None:
            if listening in self._listening:
                loop.add_reader(listening, self._accept, listening)

        loop.call_later(ACCEPT_PAUSE_S, again)

    def _let_wait(self, connection: socket.socket, host: str) -> None:
        connection.settimeout(0)
        if sum(map(len, self._callers.values())) >= min(WAITING_MAX, self._waiting_max):
            max(self._callers.values(), key=len).send_longest_away()
        source = self._scheduler.source(host)
        callers = self._callers.setdefault(source, Callers(self._scheduler, source))
        callers.add(connection)
        task = asyncio.get_running_loop().create_task(self._admit(connection, callers))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _admit(self, connection: socket.socket, callers: Callers) -> None:
        try:
            await self._let_in(connection, callers)
        finally:
            callers.remove(connection)
            if not callers:
                self._callers.pop(callers.source, None)

    async def _let_in(self, connection: socket.socket, callers: Callers) -> None:
        try:
            async with asyncio.timeout(GREETING_S):
                is_secure = await first_byte(connection) == TLS_HANDSHAKE or not self._plain_too
        except (OSError, EOFError):  # a TimeoutError is an OSError
            self._stats.connections_ended["SILENT"] += 1
            connection.close()
            return
        try:
            if is_secure:
                async with asyncio.timeout(GREETING_S):
                    await client_hello(connection)
                await callers.turn(connection)
        except (OSError, EOFError, ValueError) as error:
            self._no_tls(error)
            connection.close()
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make(is_secure),
                connection,
                ssl=self._tls.now.context if is_secure else None,
                ssl_handshake_timeout=GREETING_S if is_secure else None,
            )
        except OSError as error:  # ssl.SSLError is one
            self._no_tls(error)

    def _no_tls(self, error: Exception) -> None:
        self._stats.connections_ended["NO_TLS"] += 1
        log.info("TLS handshake failed", reason=str(error))
