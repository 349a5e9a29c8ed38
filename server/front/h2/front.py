"""The h2 front: its listeners, the end of a loop iteration, and how it stops."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final, cast

import structlog

from quarry_mq.server.front.caller import log_call
from quarry_mq.server.front.contract import Front, FrontLimits, Methods, check_methods
from quarry_mq.server.front.figures import FrontFigures
from quarry_mq.server.front.h2.adapter import H2Protocol
from quarry_mq.server.front.h2.call import H2Call
from quarry_mq.server.front.h2.door import Door
from quarry_mq.server.front.h2.limits.turns import Source, Turns
from quarry_mq.server.front.h2.protocol.scanner import ScannerMaker
from quarry_mq.server.front.h2.switchboard import Switchboard
from quarry_mq.server.front.inherited import close_inherited, inherited_sockets
from quarry_mq.server.front.status import GrpcStatus
from quarry_mq.server.front.tls import LiveTls
from quarry_mq.server.tasks.guarded import run_guarded

log = structlog.get_logger(__name__)

BACKLOG: Final = 1024
UNIX: Final = "unix:"
DEADLINES_S: Final = 0.05
"""Delay with which a call may end after its deadline. Its client has given up by itself, exactly in time."""

LOOK_AFTER_S: Final = 1.0
STOP_LOOK_S: Final = 0.01
LAST_WORDS_S: Final = 0.25
"""Time for a peer to read the last bytes when the front stops."""
LATE_CALLS_S: Final = 1.0
"""Time for which a stop waits for a client without calls, since it may be gone for good.

A client that has just connected may make its first call; others confirm that they have read the GOAWAY.
"""


class H2Front:
    """Serves `methods` on the project's own engine. Implements server.front.contract.Front."""

    def __init__(
        self,
        methods: Methods,
        *,
        limits: FrontLimits | None = None,
        access_log: bool = False,
        make_scanner: ScannerMaker | None = None,
        headers: frozenset[str] | None = None,
    ) -> None:
        """`make_scanner` enables native code that finds complete calls. Only `headers` are kept; None keeps all."""
        self._headers = headers
        check_methods(methods)
        self._make_scanner = make_scanner
        self._methods = methods
        self._limits = limits or FrontLimits()
        self._access_log = access_log
        self._figures = FrontFigures()
        self._board: Switchboard | None = None
        self._servers: list[asyncio.AbstractServer | Door] = []
        self._protocols: dict[H2Protocol, None] = {}  # the oldest first
        self._pass_callbacks: list[Callable[[], None]] = []
        self._unflushed: list[H2Protocol] = []
        self._pass_ends = False  # whether `_end_pass` is scheduled
        self._pass_began_s = 0.0
        self._calls_seen = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.is_stopping = False
        self.turns = Turns(_soon)

    # -- server.front.contract.Front

    def configure(self, limits: FrontLimits) -> None:
        self._limits = limits
        if self._board is not None:
            self._board.limits = limits

    async def start(self, address: str, tls: LiveTls | None = None, *, plain_too: bool = False) -> str:
        self._begin()
        if address.startswith(UNIX):
            if tls is not None:
                raise ValueError(f"{address}: a unix socket needs no TLS")
            loop = asyncio.get_running_loop()
            path = address.removeprefix(UNIX)
            self._servers.append(await loop.create_unix_server(self._protocol, path, backlog=BACKLOG))
            return address
        host, _, port = address.rpartition(":")
        try:
            if tls is None:
                bound = await self._listen(host.strip("[]"), int(port))
            else:
                door = Door(
                    tls,
                    lambda secure: H2Protocol(self, secure=secure),
                    self._figures,
                    self.turns,
                    plain_too=plain_too,
                    waiting_max=self._limits.max_greeting,
                )
                bound = await door.open(host.strip("[]"), int(port), backlog=BACKLOG)
                self._servers.append(door)
        except OSError as cause:
            raise OSError(f"cannot listen on {address}: {cause.strerror or cause}") from cause
        return f"{host}:{bound}"

    async def _listen(self, host: str, port: int) -> int:
        loop = asyncio.get_running_loop()
        servers = [
            await loop.create_server(self._protocol, sock=inherited, backlog=BACKLOG)
            for inherited in inherited_sockets(host, port)
        ] or [await loop.create_server(self._protocol, host, port, backlog=BACKLOG)]
        self._servers += servers
        return int(servers[0].sockets[0].getsockname()[1])

    def _protocol(self) -> H2Protocol:
        return H2Protocol(self, secure=False)

    def _begin(self) -> None:
        """Create what all listeners share, with the first one."""
        if self._board is not None:
            return
        loop = asyncio.get_running_loop()

        def soon(callback: Callable[[], None]) -> None:
            loop.call_soon(run_guarded, callback)

        self._board = Switchboard(
            self._methods,
            self._limits,
            self._figures,
            clock=loop.time,
            soon=soon,
            call_ended=_log_call if self._access_log else None,
            make_scanner=self._make_scanner,
            headers=self._headers,
        )
        self._every("deadlines", DEADLINES_S, self._board.expire)
        self._every("look after", LOOK_AFTER_S, self._look_after)

    async def stop(self, grace_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.is_stopping = True
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        close_inherited()
        for protocol in list(self._protocols):
            protocol.see_off()
        began_s = loop.time()
        while (passed_s := loop.time() - began_s) < grace_s and any(
            protocol.has_calls or (protocol.awaits_late_calls and passed_s < LATE_CALLS_S)
            for protocol in self._protocols
        ):
            await asyncio.sleep(STOP_LOOK_S)
        left = Counter(path for protocol in self._protocols for path in protocol.open_paths)
        if left:
            log.warning("calls did not end within the grace of the stop", calls=left.total(), paths=dict(left))
        for protocol in list(self._protocols):
            protocol.stop()
        while self._pass_ends:
            await asyncio.sleep(0)
        last_words_s = loop.time() + LAST_WORDS_S
        while self._protocols and loop.time() < last_words_s:
            await asyncio.sleep(STOP_LOOK_S)
        while self._protocols:
            for protocol in list(self._protocols):
                protocol.abort()
            await asyncio.sleep(0)
        for timer in self._timers.values():
            timer.cancel()
        for server in servers:
            await server.wait_closed()

    def after_pass(self, callback: Callable[[], None]) -> None:
        self._pass_callbacks.append(callback)
        self._let_pass_end()

    # -- called by connections

    @property
    def board(self) -> Switchboard:
        if self._board is None:
            raise RuntimeError("the front has not been started")
        return self._board

    @property
    def figures(self) -> FrontFigures:
        return self._figures

    def add(self, protocol: H2Protocol, host: str) -> Source | None:
        """Add one more connection of the host. Return the source of its address, or None to refuse the connection.

        At a limit the oldest connection without an open call gives way. One of the same address comes first, and is the
        only choice if that address has too many; then come those of the address with most connections. An address that
        is far behind with handling its bytes gets no new connections.
        """
        figures, limits = self._figures, self.board.limits
        source = self.turns.source(host)
        if source.is_full:
            figures.limits_met["unhandled_size"] += 1
            figures.connections_refused += 1
            return None
        for limit, most, present in (
            ("connections_per_address", limits.max_connections_per_address, source.connections),
            ("connections", limits.max_connections, self._protocols),
        ):
            if len(present) < most:
                continue
            figures.limits_met[limit] += 1
            # its own before those of others: a client that connects again and again only replaces its own connections
            busiest = self.turns.busiest() if present is self._protocols else ()
            candidates = chain(source.connections, busiest, present)
            idle = next((each for each in cast("Iterable[H2Protocol]", candidates) if not each.has_calls), None)
            if idle is None:
                figures.connections_refused += 1
                return None
            idle.give_way()
            idle.depart()
        self._protocols[protocol] = None
        self.turns.join(source, protocol)
        figures.connections += 1
        figures.connections_open = len(self._protocols)
        return source

    def remove(self, protocol: H2Protocol, source: Source) -> None:
        self.turns.leave(source, protocol)
        self._protocols.pop(protocol, None)
        self._figures.connections_open = len(self._protocols)

    def to_flush(self, protocol: H2Protocol) -> None:
        """Write the connection's pending bytes when the loop iteration ends."""
        self._unflushed.append(protocol)
        self._let_pass_end()

    # -- loop iterations and time

    def _let_pass_end(self) -> None:
        if not self._pass_ends:
            self._pass_ends = True
            loop = asyncio.get_running_loop()
            self._pass_began_s = loop.time()
            loop.call_soon(self._end_pass)

    def _end_pass(self) -> None:
        """Do the work that was put off to the end of the loop iteration, then write all answers, one write per
        connection.
        """
        self._pass_ends = False
        self.turns.next()
        self.board.unread.number += 1
        callbacks, self._pass_callbacks = self._pass_callbacks, []
        for callback in callbacks:
            run_guarded(callback)
        unflushed, self._unflushed = self._unflushed, []
        for protocol in unflushed:
            protocol.flush()
        if self.board.unread.is_too_much:
            self.board.unread.relieve()
        figures = self._figures
        figures.pass_seconds.add(asyncio.get_running_loop().time() - self._pass_began_s)
        figures.pass_calls.add(figures.calls - self._calls_seen)
        self._calls_seen = figures.calls

    def _every(self, name: str, interval_s: float, work: Callable[[float], None]) -> None:
        """Do the work again and again, at an interval, until the front stops."""
        loop = asyncio.get_running_loop()

        def again() -> None:
            self._timers[name] = loop.call_later(interval_s, again)
            work(loop.time())

        self._timers[name] = loop.call_later(interval_s, again)

    def _look_after(self, now_s: float) -> None:
        self.board.unread.look_at_paces()
        for protocol in list(self._protocols):
            protocol.look_after(now_s)


def _soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


def _log_call(call: H2Call, status: GrpcStatus) -> None:
    log_call(call, status, call.calls.clock() - call.opened_at_s)


def _conforms(front: H2Front) -> Front:
    """Let the type checker prove that this class is a front."""
    return front
