"""A listener that speaks TLS, and plain text as well if it is told to look at the first byte of each connection.

`loop.create_server` uses one TLS context for as long as it listens; here each connection begins with the present
certificates. Load balancers may say for whom they connect (`server.front.proxy_header`).

A connection waits at the door until its first byte or its ClientHello has come and its handshake has
ended. The first bytes and the handshake may take `GREETING_S` each. When `WAITING_MAX` connections wait, the longest
waiting one of the address with most of them is closed: silent peers keep nobody out, and a peer with many connections
keeps out only itself.

Handshakes take turns of their address. Once its ClientHello is there, a connection waits for a turn
(`server.front.fairness`), and its handshake takes that whole turn: one handshake of an address begins in each loop
iteration. `HANDSHAKES_MAX` of an address may be under way, so that not many come to a costly part at the same moment.
When others wait, one that has taken `HANDSHAKE_YIELDS_S` is closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from quarry_mq.server.addresses import Ends, plain_address
from quarry_mq.server.front.fairness import FRAMES_PER_HANDSHAKE, FairScheduler, Source
from quarry_mq.server.front.hello import GREETING_S, TLS_HANDSHAKE, client_hello, first_byte, has_hung_up
from quarry_mq.server.front.inherited import inherited_sockets
from quarry_mq.server.front.proxy_header import ProxyHeaderMalformed, take_proxy_header
from quarry_mq.server.front.resources import FrontResources
from quarry_mq.server.front.tls import LiveTls

log = structlog.get_logger(__name__)

HANDSHAKES_MAX: Final = 64
HANDSHAKE_YIELDS_S: Final = 1.0


class Callers:
    """The waiting connections of one address; `fairness` knows the address as long as there are any."""

    def __init__(self, scheduler: FairScheduler, source: Source) -> None:
        self._scheduler = scheduler
        self.source = source
        self._at_door: dict[socket.socket, None] = {}  # the longest waiting first
        self._with_hello: dict[socket.socket, asyncio.Future[None]] = {}
        self._in_handshake: dict[socket.socket, float] = {}  # since when, the longest first
        self._yields: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._at_door)

    def add(self, connection: socket.socket) -> None:
        if not self._at_door:
            self._scheduler.await_callers(self.source, self)
        self._at_door[connection] = None

    def remove(self, connection: socket.socket) -> None:
        """Remove a connection that does not wait any more: it was let in, refused or lost."""
        self._at_door.pop(connection, None)
        self._in_handshake.pop(connection, None)
        if self._at_door:
            self._go_on()
            return
        self._scheduler.no_callers(self.source, self)
        if self._yields is not None:
            self._yields.cancel()
            self._yields = None

    async def turn(self, connection: socket.socket) -> None:
        """Wait until the connection may begin its handshake. Raises EOFError if it will not."""
        if connection not in self._at_door:
            raise EOFError("sent away")  # while its first bytes were being looked at
        turn = asyncio.get_running_loop().create_future()
        self._with_hello[connection] = turn
        self._go_on()
        try:
            await turn
        finally:
            self._with_hello.pop(connection, None)

    def catch_up(self) -> None:
        """Let the first waiting connection begin its handshake. See `fairness.Waiting`."""
        while self._with_hello and len(self._in_handshake) < HANDSHAKES_MAX:
            connection = next(iter(self._with_hello))
            if has_hung_up(connection):
                self._send_away(connection)
                continue
            self.source.spend(FRAMES_PER_HANDSHAKE, 0.0)
            self._in_handshake[connection] = asyncio.get_running_loop().time()
            turn = self._with_hello.pop(connection)
            if not turn.done():
                turn.set_result(None)
            break
        self._go_on()

    def send_longest_away(self) -> None:
        self._send_away(next(iter(self._at_door)))

    def send_away(self) -> None:
        """Refuse all waiting connections."""
        for connection in list(self._at_door):
            self._send_away(connection)

    def _send_away(self, connection: socket.socket) -> None:
        """Shut the connection down. The task that waits for it wakes up and closes it."""
        turn = self._with_hello.pop(connection, None)
        if turn is not None and not turn.done():
            turn.set_exception(EOFError("sent away"))
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        self.remove(connection)

    def _go_on(self) -> None:
        if not self._with_hello:
            return
        if len(self._in_handshake) < HANDSHAKES_MAX:
            self._scheduler.put_off(self.source, self)
        elif self._yields is None:
            loop = asyncio.get_running_loop()
            longest_s = next(iter(self._in_handshake.values()))
            self._yields = loop.call_at(longest_s + HANDSHAKE_YIELDS_S, self._yield)

    def _yield(self) -> None:
        """End the longest handshake in favour of a waiting one."""
        self._yields = None
        if self._with_hello and len(self._in_handshake) >= HANDSHAKES_MAX:
            connection, since_s = next(iter(self._in_handshake.items()))
            if asyncio.get_running_loop().time() >= since_s + HANDSHAKE_YIELDS_S:
                self._send_away(connection)
        self._go_on()


MakeProtocol = Callable[[bool, Ends | None], asyncio.Protocol]
"""Makes the protocol of a connection, given whether it speaks TLS, and its ends if a load balancer forwards it."""

WAITING_MAX: Final = 1024
ACCEPTED_AT_ONCE_MAX: Final = 4
"""Connections accepted in one loop iteration. Each costs 0.1 to 0.2 ms, handshake aside; with 64 a burst took 12 ms."""

ACCEPT_PAUSE_S: Final = 1.0


class Door:
    """Listens from `open` to `close`, and admits the waiting connections."""

    def __init__(self, tls: LiveTls | None, make: MakeProtocol, resources: FrontResources, *, plain_too: bool) -> None:
        """Make a door that is not open yet. Without `tls` no connection speaks TLS."""
        self._tls = tls
        self._make = make
        self._resources = resources
        self._stats = resources.stats
        self._scheduler = resources.scheduler
        self._plain_too = plain_too
        self._loading: asyncio.Task[None] | None = None
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
            connection.settimeout(0)
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
        task = asyncio.get_running_loop().create_task(self._admit(connection, host, self._join(connection, host)))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    def _join(self, connection: socket.socket, host: str) -> Callers:
        """Let the connection wait with those of its address, and return all of them."""
        if sum(map(len, self._callers.values())) >= min(WAITING_MAX, self._resources.limits.max_greeting):
            max(self._callers.values(), key=len).send_longest_away()
        source = self._scheduler.source(host)
        callers = self._callers.setdefault(source, Callers(self._scheduler, source))
        callers.add(connection)
        return callers

    def _leave(self, connection: socket.socket, callers: Callers) -> None:
        callers.remove(connection)
        if not callers:
            self._callers.pop(callers.source, None)

    async def _admit(self, connection: socket.socket, host: str, callers: Callers) -> None:
        """Let a connection in. One that a load balancer forwards waits with those of its client's address."""
        ends: Ends | None = None
        try:
            if self._is_proxy(host):
                async with asyncio.timeout(GREETING_S):
                    ends = await take_proxy_header(connection)
            if ends is not None:
                self._leave(connection, callers)
                callers = self._join(connection, ends.peer_host)
            await self._let_in(connection, callers, ends)
        except ProxyHeaderMalformed as error:
            self._stats.connections_ended["PROXY_MALFORMED"] += 1
            log.warning("PROXY header is malformed", peer=host, reason=str(error))
            connection.close()
        except (OSError, EOFError):  # a TimeoutError is an OSError
            self._stats.connections_ended["SILENT"] += 1
            connection.close()
        finally:
            self._leave(connection, callers)

    def _is_proxy(self, host: str) -> bool:
        """Return whether PROXY headers from this address are believed."""
        if not self._resources.limits.proxies:
            return False
        address = plain_address(host)
        return address is not None and any(address in each for each in self._resources.limits.proxies)

    async def _let_in(self, connection: socket.socket, callers: Callers, ends: Ends | None) -> None:
        """Let a connection in when its client has spoken. Raises EOFError or OSError if the client stays silent."""
        async with asyncio.timeout(GREETING_S):
            speaks_tls = await first_byte(connection) == TLS_HANDSHAKE
        tls = self._tls
        is_secure = tls is not None and (speaks_tls or not self._plain_too)
        try:
            if tls is not None and is_secure:
                async with asyncio.timeout(GREETING_S):
                    await client_hello(connection)
                await self._certificate(tls)
                await callers.turn(connection)
        except (OSError, EOFError, ValueError) as error:
            self._no_tls(error)
            connection.close()
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make(is_secure, ends),
                connection,
                ssl=tls.now.context if tls is not None and is_secure else None,
                ssl_handshake_timeout=GREETING_S if is_secure else None,
            )
        except OSError as error:  # ssl.SSLError is one
            self._no_tls(error)

    async def _certificate(self, tls: LiveTls) -> None:
        """Wait until there is a certificate: the first client with TLS has it made. Raises EOFError if there is none.

        Another thread makes it, only one at a time: a disk that hangs must not take all threads.
        """
        if tls.is_loaded:
            return
        if self._loading is None or self._loading.done():
            self._loading = asyncio.get_running_loop().create_task(self._load(tls))
        async with asyncio.timeout(GREETING_S):
            await asyncio.shield(self._loading)
        if not tls.is_loaded:
            raise EOFError("there is no certificate")

    async def _load(self, tls: LiveTls) -> None:
        try:
            await asyncio.to_thread(tls.load)
        except ValueError as error:
            log.error("no client can use TLS", reason=str(error))

    def _no_tls(self, error: Exception) -> None:
        self._stats.connections_ended["NO_TLS"] += 1
        log.info("TLS handshake failed", reason=str(error))


BACKLOG: Final = 1024
Listener = asyncio.AbstractServer | Door


async def listen(
    address: str,
    make: MakeProtocol,
    resources: FrontResources,
    tls: LiveTls | None,
    *,
    plain_too: bool,
) -> tuple[Sequence[Listener], str]:
    """Listen on `host:port` for a front; return its listeners and the bound address. `make` is that of a Door.

    Raises OSError that names the address.
    """
    host, _, port = address.rpartition(":")
    try:
        listeners, bound = await _opened((host.strip("[]"), int(port)), make, resources, tls, plain_too=plain_too)
    except OSError as cause:
        raise OSError(f"cannot listen on {address}: {cause.strerror or cause}") from cause
    return listeners, f"{host}:{bound}"


async def _opened(
    at: tuple[str, int],
    make: MakeProtocol,
    resources: FrontResources,
    tls: LiveTls | None,
    *,
    plain_too: bool,
) -> tuple[Sequence[Listener], int]:
    if tls is not None or resources.limits.proxies:
        door = Door(tls, make, resources, plain_too=plain_too)
        return [door], await door.open(*at, backlog=BACKLOG)
    loop, is_secure = asyncio.get_running_loop(), False
    servers = [
        await loop.create_server(lambda: make(is_secure, None), sock=inherited, backlog=BACKLOG)
        for inherited in inherited_sockets(*at)
    ] or [await loop.create_server(lambda: make(is_secure, None), *at, backlog=BACKLOG)]
    return servers, int(servers[0].sockets[0].getsockname()[1])
