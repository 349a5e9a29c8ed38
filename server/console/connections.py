"""Connections of browsers: how many, for how long, and with which certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, Final

import structlog
from aiohttp import web

from server.front import LiveTls
from store.clock import Clock

CONNECTIONS_MAX: Final = 64
"""A browser opens six. When all are taken, the one that has waited longest for its next request gives way."""

IDLE_S: Final = 20.0
"""How long a connection may be open without a request that has begun: slow senders of headers included."""

HANDSHAKE_S: Final = 10.0
SWEEP_S: Final = 1.0
REFUSED_WAIT_S: Final = 0.1
"""After the system has refused a connection: it has no descriptors left, say."""

_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""Ends the streams of browsers that went without a word: seconds, and a number of probes."""

log = structlog.get_logger(__name__)


class Connections:
    """Those of one listener. Belongs to one event loop."""

    def __init__(self, server: web.Server, tls: LiveTls | None, clock: Clock) -> None:
        self._server = server
        self._tls = tls
        self._clock = clock
        self._idle_since_s: dict[object, float] = {}
        """Of connections without a request under way."""
        self._busy: set[object] = set()
        self._opening: set[asyncio.Task[None]] = set()

    async def accept(self, listening: socket.socket) -> None:
        """Take connections until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listening)
                except OSError as error:
                    log.warning("the console could not take a connection", reason=str(error))
                    await asyncio.sleep(REFUSED_WAIT_S)
                    continue
                self._take(connection)
        finally:
            for opening in self._opening:
                opening.cancel()

    async def sweep(self) -> None:
        """End those that had their time, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            before_s = self._clock.monotonic_s() - IDLE_S
            for protocol in [each for each, since_s in self._idle().items() if since_s <= before_s]:
                self._close(protocol)

    def begin(self, protocol: object) -> None:
        """A request of this connection begins."""
        self._idle_since_s.pop(protocol, None)
        self._busy.add(protocol)

    def end(self, protocol: object) -> None:
        """Its answer has left."""
        self._busy.discard(protocol)
        self._idle_since_s[protocol] = self._clock.monotonic_s()

    def _idle(self) -> dict[object, float]:
        there = set(self._server.connections)
        self._idle_since_s = {each: since_s for each, since_s in self._idle_since_s.items() if each in there}
        return self._idle_since_s

    def _take(self, connection: socket.socket) -> None:
        if len(self._server.connections) + len(self._opening) >= CONNECTIONS_MAX:
            idle = self._idle()
            if not idle:
                connection.close()
                return
            self._close(min(idle, key=idle.__getitem__))
        connection.setblocking(False)  # noqa: FBT003 - as the library has it
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        # each with the certificate of now, which a listener of asyncio's would not take
        context = None if self._tls is None else self._tls.now.context
        opening = asyncio.get_running_loop().create_task(self._open(connection, context))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                _, protocol = await loop.connect_accepted_socket(self._server, connection, ssl=context)
        except (OSError, TimeoutError) as error:
            log.debug("a connection to the console did not come about", reason=str(error) or "it took too long")
            connection.close()
            return
        if protocol not in self._busy:  # with TLS its first request may have come with the handshake
            self.end(protocol)

    def _close(self, protocol: Any) -> None:
        self._idle_since_s.pop(protocol, None)
        transport = protocol.transport
        if transport is not None:
            transport.abort()
