"""Accept connections of browsers, and decide how many there may be, for how long, and with which certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from aiohttp import web

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.addresses import network_of, plain_address
from quarry_mq.server.front import LiveTls

CONNECTIONS_MAX: Final = 64
"""Most connections at once; a browser opens six. When all are taken, one is closed for a new one: see `Connections`."""

IDLE_S: Final = 20.0
"""Seconds a connection may be open before a request has begun, which includes slow senders of headers."""

HANDSHAKE_S: Final = 10.0
SWEEP_S: Final = 1.0
REFUSED_WAIT_S: Final = 0.1
"""Seconds to wait after the system has refused a connection, for lack of descriptors for example."""

_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""Socket options, in seconds and a number of probes, that end the streams of browsers that vanished silently."""

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Connection:
    """An open connection. `end` closes it at once. `owner` is its user or address once known, None before that."""

    address: str
    since_s: float
    """Monotonic time at which the connection began to wait for a request, or at which its request began."""
    end: Callable[[], object]
    owner: str | None = None
    is_busy: bool = False


class Connections:
    """Manage the connections of one listener. Belongs to one event loop.

    When all are taken, a new connection replaces another one. First to go is a connection without an owner, whether it
    waits, sends its request slowly or has not ended its handshake: the oldest of the address with most of these. Next
    is one that waits for the next request of a logged-in user. So strangers keep out nobody but each other.
    """

    def __init__(self, server: web.Server, tls: LiveTls | None, clock: Clock) -> None:
        self._server = server
        self._tls = tls
        self._clock = clock
        self._open: dict[object, _Connection] = {}
        """Connections by the protocol object that aiohttp has for each."""
        self._opening: dict[asyncio.Task[None], _Connection] = {}

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections until cancelled."""
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
        """Close connections that have been idle for too long, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            before_s = self._clock.monotonic_s() - IDLE_S
            for each in self._there():
                if not each.is_busy and each.since_s <= before_s:
                    each.end()

    def begin(self, protocol: Any) -> None:
        """Note that a request of this connection begins."""
        found = self._of(protocol)
        found.since_s, found.is_busy = self._clock.monotonic_s(), True

    def known(self, protocol: Any, owner: str) -> None:
        """Set the connection's owner: a logged-in user, or, if no login is needed, the sender of a whole request."""
        self._of(protocol).owner = owner

    def end(self, protocol: Any) -> None:
        """Note that the answer to the connection's request has been sent."""
        found = self._of(protocol)
        found.since_s, found.is_busy = self._clock.monotonic_s(), False

    def address_of(self, protocol: Any) -> str:
        return self._of(protocol).address

    def _of(self, protocol: Any) -> _Connection:
        """Return the connection; add it if need be, since with TLS its first request may come with the handshake."""
        found = self._open.get(protocol)
        if found is None:
            transport = protocol.transport
            peer = None if transport is None else transport.get_extra_info("peername")
            found = _Connection(_address(peer), self._clock.monotonic_s(), lambda: _abort(protocol))
            self._open[protocol] = found
        return found

    def _there(self) -> list[_Connection]:
        there = set(self._server.connections)
        self._open = {protocol: each for protocol, each in self._open.items() if protocol in there}
        return list(self._open.values())

    def _take(self, connection: socket.socket) -> None:
        address = _peer_address(connection)
        if len(self._server.connections) + len(self._opening) >= CONNECTIONS_MAX:
            victim = self._giving_way(address)
            if victim is None:
                connection.close()
                return
            victim.end()
        connection.setblocking(False)  # noqa: FBT003 - as the library has it
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        # each connection gets the current certificate, which asyncio's own listener would not do
        context = None if self._tls is None else self._tls.now.context
        opening = asyncio.get_running_loop().create_task(self._finish(connection, context))
        self._opening[opening] = _Connection(address, self._clock.monotonic_s(), opening.cancel)

        def opened(done: asyncio.Task[None]) -> None:
            self._opening.pop(done, None)
            if done.cancelled():  # perhaps before the handshake began
                connection.close()

        opening.add_done_callback(opened)

    def _giving_way(self, address: str) -> _Connection | None:
        """Return the connection to close for a new one of this address; None if the new one has to go."""
        all_of_them = [*self._opening.values(), *self._there()]
        strangers = [each for each in all_of_them if each.owner is None]
        if strangers:
            return _oldest_of_most(strangers, lambda each: each.address)
        idle = [each for each in all_of_them if not each.is_busy]
        if idle:
            return _oldest_of_most(idle, lambda each: each.owner)
        most = _oldest_of_most(all_of_them, lambda each: each.owner)
        count = sum(each.owner == most.owner for each in all_of_them)
        return most if count > CONNECTIONS_MAX // 2 and most.owner != address else None

    async def _finish(self, connection: socket.socket, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                _, protocol = await loop.connect_accepted_socket(self._server, connection, ssl=context)
        except (OSError, TimeoutError) as error:
            log.debug("a connection to the console did not come about", reason=str(error) or "it took too long")
            connection.close()
            return
        self._of(protocol)


def _oldest_of_most(connections: Sequence[_Connection], key: Callable[[_Connection], str | None]) -> _Connection:
    """Find the most frequent key and return its connection that waits or sends for longest."""
    counts = Counter(map(key, connections))
    return min(connections, key=lambda each: (-counts[key(each)], each.since_s))


def _abort(protocol: Any) -> None:
    if protocol.transport is not None:
        protocol.transport.abort()


def _peer_address(connection: socket.socket) -> str:
    try:
        return _address(connection.getpeername())
    except OSError:  # the peer has gone already
        return ""


def _address(peer: Any) -> str:
    """Return the peer's address as text; all of IPv6 with the same first 64 bits counts as one address."""
    plain = plain_address(peer[0]) if peer else None
    return "" if plain is None else str(network_of(plain))
