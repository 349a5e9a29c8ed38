"""The h2 front: its listeners, the asyncio protocol of a connection, the end of a loop iteration, and how it stops."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

import structlog

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.h2.frames import ErrorCode
from quarry_mq.server.addresses import Ends
from quarry_mq.server.front.contract import Front, FrontLimits, FrontStats, Methods, check_methods, log_call
from quarry_mq.server.front.door import BACKLOG, Listener, MakeProtocol, listen
from quarry_mq.server.front.fairness import Source
from quarry_mq.server.front.h2.call import Client, H2Call
from quarry_mq.server.front.h2.connection import Connection
from quarry_mq.server.front.h2.request_head import ScannerMaker, State
from quarry_mq.server.front.h2.switchboard import Switchboard
from quarry_mq.server.front.h2.timeouts import Timeouts
from quarry_mq.server.front.hello import has_hung_up
from quarry_mq.server.front.inherited import close_inherited
from quarry_mq.server.front.resources import FrontResources
from quarry_mq.server.front.tls import LiveTls
from quarry_mq.server.tasks import run_guarded

OTHER_PROTOCOL: Final = 0
"""First byte of a connection with the remoting protocol: its first frame has less than 16 MiB."""

LINGER_S: Final = 1.0
"""Seconds for which a refused peer is still read from, so that it can read the reason before the socket is closed."""

WRITE_BUFFER_MAX: Final = 256 * 1024
"""Bytes that the transport may buffer before messages wait in their calls."""

UNSENT_MAX: Final = 256 * 1024
"""Bytes of a connection that the kernel may accept before it can send them.

By default it accepts megabytes for a peer that does not read, which only the memory limit of a container counts.
"""

UNREAD_MAX: Final = 4 * 1024 * 1024
"""Bytes of answers that may wait for a peer whose socket is full; above that it is not read from until it reads."""


class H2Protocol(asyncio.Protocol):
    """The asyncio protocol of one connection of an `H2Front`."""

    def __init__(self, front: H2Front, *, secure: bool, ends: Ends | None = None) -> None:
        """`ends` are those that a load balancer has named."""
        self._front = front
        self._secure = secure
        self._ends = ends
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._timeouts: Timeouts | None = None
        self._source: Source | None = None  # set while the connection belongs to the front
        self._put_off = bytearray()  # bytes that came in while the turn of its address was over
        self._waiting_size = 0  # bytes of `_put_off` and of the connection's backlog, as its address knows them
        self._has_backlog = False  # whether something waits for the next turn
        self._is_deaf = False  # not read from until the peer reads
        self._is_to_drain = False  # to be drained when its first call has come
        self._has_left = False  # the last bytes are written
        self._has_been_cut = False  # what the transport still buffers is dropped

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        speaks_http = not self._secure or (tls is not None and tls.selected_alpn_protocol() == "h2")
        if not speaks_http and self._hand_over():
            return
        ends = self._ends or Ends.of(transport)
        self._source = self._front.add(self, ends.peer_host)
        if self._source is None:
            self._transport.abort()
            return
        if not speaks_http:
            log.info("client does not speak h2 over TLS", peer=ends.peer)
            self._front.resources.stats.connections_ended["NO_ALPN"] += 1
            self._transport.close()
            return
        connected: socket.socket | None = transport.get_extra_info("socket")
        if connected is not None and connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if sys.platform == "linux":
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_MAX)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_MAX)
        certificate = tls.getpeercert(binary_form=True) if tls else None
        client = Client(ends.peer, is_secure=self._secure, peer_certificate=certificate)
        self._connection = Connection(self._front.board, client, self._something_to_write)
        self._connection.sender.outlet = self
        self._timeouts = Timeouts(self._connection, self._front.board.clock())
        if self._front.is_stopping:
            self.see_off()  # it was accepted just before the listener closed

    def data_received(self, data: bytes) -> None:
        source = self._source
        if self._connection is None or source is None:
            return
        if data[0] == OTHER_PROTOCOL and self._connection.state is State.NEW and self._hand_over(data):
            return
        self._front.resources.stats.bytes_received += len(data)
        if self._connection.state is State.OVER:
            return  # it is only read from so that it can read the reason
        if self._has_backlog or not source.has_turn(self._front.resources.scheduler.number):
            self._put_off += data
            self._account(self._connection, source)
            self._wait_for_turn(source)
        else:
            self._handle(self._connection, source, data)

    def _hand_over(self, data: bytes = b"") -> bool:
        """Let the protocol that the peer speaks take over the transport, if the front has been given it."""
        make, transport = self._front.other_protocol, self._transport
        if make is None or transport is None:
            return False
        if self._source is not None:
            self.depart()
            self._front.resources.stats.connections -= 1  # the other protocol counts the same connection
        self._transport = self._connection = self._timeouts = None
        other = make(self._secure, self._ends)
        transport.set_protocol(other)
        other.connection_made(transport)
        if data:
            other.data_received(data)
        return True

    def catch_up(self) -> None:
        """Handle what was put off; see `fairness.Reader`."""
        source = self._source
        if self._connection is None or source is None:
            return
        if self._peer_is_gone():
            self.abort()
            return
        data, self._put_off = bytes(self._put_off), bytearray()
        self._has_backlog = False
        self._handle(self._connection, source, data)
        if not self._has_backlog:
            self.listen()

    def listen(self) -> None:
        """Start or stop reading from the transport; see `fairness.Reader`."""
        transport, source = self._transport, self._source
        if transport is None or source is None or transport.is_closing():
            return
        if self._has_backlog or self._is_deaf or source.is_paused:
            if transport.is_reading():
                transport.pause_reading()
        elif not transport.is_reading():
            transport.resume_reading()

    def _handle(self, connection: Connection, source: Source, data: bytes) -> None:
        """Handle the data within what is left of the address's turn."""
        was_over = connection.state is State.OVER
        before = connection.frames_received
        connection.receive(data, source.frames_left, source.seconds_left)
        source.spend(connection.frames_received - before, self._front.board.clock() - connection.calls.now_s)
        self._account(connection, source)
        if connection.backlog_size:
            self._wait_for_turn(source)
        if self._is_to_drain:
            self.see_off()
        if connection.state is State.OVER and not was_over:
            self._leave(LINGER_S)
        elif connection.sender.is_paused and self._unread_size > UNREAD_MAX:
            self._is_deaf = True
            self.listen()

    def _account(self, connection: Connection, source: Source) -> None:
        """Report to the address how many of its bytes wait here."""
        size = len(self._put_off) + connection.backlog_size
        if size != self._waiting_size:
            grown, self._waiting_size = size - self._waiting_size, size
            source.grew(grown)

    def _peer_is_gone(self) -> bool:
        """Return whether the peer has closed the connection, so that answers to its earlier requests would be lost."""
        connected: socket.socket | None = self._transport.get_extra_info("socket") if self._transport else None
        return connected is None or has_hung_up(connected)

    def _wait_for_turn(self, source: Source) -> None:
        self._has_backlog = True
        self._front.resources.scheduler.put_off(source, self)
        self.listen()

    def eof_received(self) -> bool:
        return False  # gRPC clients do not half close their sockets: the transport closes

    def connection_lost(self, _error: Exception | None) -> None:
        self.depart()
        self._transport = None
        self._timeouts = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.lost()
            connection.sender.take()
            connection.sender.refresh()

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.sender.is_paused = True

    def resume_writing(self) -> None:
        connection, transport = self._connection, self._transport
        if connection is not None and transport is not None:
            connection.sender.is_paused = False
            if self._is_deaf and connection.state is not State.OVER:
                self._is_deaf = False
                self.listen()
            connection.sender.pump()

    # -- called by the front

    @property
    def has_calls(self) -> bool:
        """Return whether calls are open, or may be in what was put off."""
        return self._connection is not None and (self._has_backlog or bool(self._connection.calls.open))

    @property
    def open_paths(self) -> list[str]:
        """Return the methods of the open calls."""
        return [] if self._connection is None else [call.path for call in self._connection.calls.open.values()]

    def flush(self) -> None:
        """Write everything that the loop iteration has produced, in one piece."""
        connection, transport = self._connection, self._transport
        if connection is None or transport is None or self._has_left or transport.is_closing():
            return  # nothing that would be written now would leave
        sender = connection.sender
        written = b"".join(sender.take())
        self._front.resources.stats.bytes_sent += len(written)
        transport.write(written)
        sender.refresh()
        if sender.waiting_size:
            sender.pump()

    def look_after(self, now_s: float) -> None:
        """End the connection if it makes no progress; called every second or so."""
        if self._timeouts is None or self._connection is None or self._connection.state is State.OVER:
            return
        ending = self._timeouts.look(now_s)
        if ending is not None:
            self.end(ending.code, ending.reason)

    @property
    def awaits_late_calls(self) -> bool:
        connection = self._connection
        return connection is not None and (self._is_to_drain or connection.awaits_late_calls)

    def see_off(self) -> None:
        """Drain the connection. A peer that has just connected may first make its call: otherwise its user would see an
        error.
        """
        connection = self._connection
        if connection is not None:
            self._is_to_drain = not connection.is_used and connection.state is not State.OVER
            if not self._is_to_drain:
                connection.drain()

    def stop(self) -> None:
        """End the connection with everything that is still open."""
        if self._connection is not None and self._connection.state is not State.OVER:
            self._connection.stop()
            self._leave(linger_s=0.0)
        else:
            self.close()  # also if it is still read from after its last bytes

    def end(self, code: ErrorCode, reason: str) -> None:
        """End the connection with an error code and a reason."""
        if self._connection is not None and self._connection.state is not State.OVER:
            self._connection.end(code, reason)
            self._leave(LINGER_S)

    def depart(self) -> None:
        """Leave the front. What was put off is dropped, since its answers could not be delivered."""
        source, self._source = self._source, None
        if source is not None:
            source.grew(-self._waiting_size)
            self._waiting_size = 0
            self._front.remove(self, source)
        self._put_off.clear()

    def give_way(self) -> None:
        """Make room for another connection: the last bytes are written, but not waited for."""
        self.end(ErrorCode.ENHANCE_YOUR_CALM, "made room for another connection")
        self.abort()

    def buffered_size(self) -> int:
        """Return the bytes that the transport buffers; see `sender.Outlet`."""
        return 0 if self._transport is None or self._has_been_cut else self._transport.get_write_buffer_size()

    def give_up(self) -> None:
        """Give up what waits for the peer; see `sender.Outlet`.

        A peer that does not even read its socket loses its connection: no answer reaches it.
        """
        connection = self._connection
        if connection is not None and connection.sender.waiting_size and not connection.sender.is_paused:
            connection.calls.lose_waiting()
            return
        self._front.resources.stats.limits_met["unread_size"] += 1
        self.end(ErrorCode.ENHANCE_YOUR_CALM, "the client does not read its answers")
        self.abort()
        self._has_been_cut = True
        if connection is not None:
            connection.sender.refresh()

    def close(self) -> None:
        # only once: a TLS transport of asyncio that is closed twice cannot be aborted any more
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """Close without waiting for a peer that does not read."""
        if self._transport is not None:
            self._transport.abort()

    def _leave(self, linger_s: float) -> None:
        """Write the last bytes, and close when the peer has had time to read them."""
        connection, transport = self._connection, self._transport
        if connection is None or transport is None:
            return
        if transport.is_closing():
            transport.abort()  # the peer has closed its side, but does not read what it asked for
            return
        self.flush()
        self._has_left = True
        ending = connection.ended_with
        name = "HTTP_1" if ending is None else ending.code.name
        self._front.resources.stats.connections_ended[name] += 1
        if ending is not None and ending.code is not ErrorCode.NO_ERROR:
            log.info("connection ended", peer=connection.calls.client.peer, code=name, reason=ending.reason)
        if linger_s:
            with suppress(OSError):  # the peer has reset the connection, and this side has not heard of it yet
                if transport.can_write_eof():
                    transport.write_eof()
            asyncio.get_running_loop().call_later(linger_s, self._part)
        else:
            transport.close()

    def _part(self) -> None:
        """Close, and drop what the peer has not read by now: a transport that only closes would wait for ever."""
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self.close()

    @property
    def _unread_size(self) -> int:
        """Return the bytes that wait for the peer to read. Refusals and short frames are in the transport only."""
        assert self._connection is not None
        assert self._transport is not None
        return self._connection.sender.waiting_size + self._transport.get_write_buffer_size()

    def _something_to_write(self) -> None:
        self._front.resources.to_flush(self)


log = structlog.get_logger(__name__)

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
        self.resources: Final = FrontResources(limits or FrontLimits())
        self._access_log = access_log
        self._board: Switchboard | None = None
        self._servers: list[Listener] = []
        self._protocols: dict[H2Protocol, None] = {}  # the oldest first
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.is_stopping = False
        self.other_protocol: MakeProtocol | None = None
        """Makes what takes over a connection, with TLS or without, that does not speak HTTP/2; None: it is refused."""

    # -- server.front.contract.Front

    def configure(self, limits: FrontLimits) -> None:
        self.resources.configure(limits)
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
        servers, bound = await listen(address, self._protocol, self.resources, tls, plain_too=plain_too)
        self._servers += servers
        return bound

    def _protocol(self, secure: bool = False, ends: Ends | None = None) -> H2Protocol:  # noqa: FBT001, FBT002 - MakeProtocol
        return H2Protocol(self, secure=secure, ends=ends)

    def _begin(self) -> None:
        """Create what all listeners share, with the first one."""
        if self._board is not None:
            return
        loop = asyncio.get_running_loop()

        def soon(callback: Callable[[], None]) -> None:
            loop.call_soon(run_guarded, callback)

        self._board = Switchboard(
            self._methods,
            self.resources,
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
        while self.resources.pass_is_open:
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
        self.resources.after_pass(callback)

    # -- called by connections

    @property
    def board(self) -> Switchboard:
        if self._board is None:
            raise RuntimeError("the front has not been started")
        return self._board

    @property
    def stats(self) -> FrontStats:
        return self.resources.stats

    def add(self, protocol: H2Protocol, host: str) -> Source | None:
        """Add one more connection of the host; see `FrontResources.add`."""
        source = self.resources.add(protocol, host)
        if source is not None:
            self._protocols[protocol] = None
        return source

    def remove(self, protocol: H2Protocol, source: Source) -> None:
        self._protocols.pop(protocol, None)
        self.resources.remove(protocol, source)

    # -- time

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


def _log_call(call: H2Call, status: GrpcStatus) -> None:
    log_call(call, status, call.calls.clock() - call.opened_at_s)


def _conforms(front: H2Front) -> Front:
    """Let the type checker prove that this class is a front."""
    return front
