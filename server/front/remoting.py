"""The remoting front: listeners and connections of clients that speak RocketMQ's remoting protocol.

`quarry_mq.protocol.remoting.frames` reads and writes frames; this module brings them to handlers, which are plain
functions by request code, and writes what handlers answer, now or later. A connection carries requests in both
directions: the broker asks clients, too.

Limits are those of the h2 front, with the same counters: connections and turns of each address, bytes of incomplete
frames, bytes of answers that a client does not read. What cannot be understood is not answered: its connection is
closed, as by RocketMQ.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, cast

import structlog

from quarry_mq.protocol.remoting.codes import ResponseCode, request_name
from quarry_mq.protocol.remoting.frames import (
    Command,
    Flag,
    Frame,
    FrameMalformed,
    FrameReader,
    Language,
    read_command,
    write_command,
)
from quarry_mq.server.addresses import Ends
from quarry_mq.server.front.door import Listener, listen
from quarry_mq.server.front.fairness import Source
from quarry_mq.server.front.hello import has_hung_up
from quarry_mq.server.front.resources import FrontResources
from quarry_mq.server.front.tls import LiveTls
from quarry_mq.server.tasks import run_guarded

log = structlog.get_logger(__name__)

IDLE_S: Final = 120.0
"""Seconds after which a connection without a whole frame in either direction is closed, as by RocketMQ. Clients send
heartbeats every 30 s.
"""

WRITE_BUFFER_MAX: Final = 256 * 1024
"""Bytes that the transport may buffer before no further request of the connection is handled."""

UNREAD_MAX: Final = 1024 * 1024
"""Bytes of answers to one connection that may wait; above that none of its requests is handled until it reads."""

UNSENT_MAX: Final = 256 * 1024
"""Bytes of a connection that the kernel may accept before it can send them, see `server.front.h2.front`."""

LOOK_AFTER_S: Final = 1.0
STOP_LOOK_S: Final = 0.01
PACE_S: Final = 60.0
"""Seconds in which a client has to be able to read all that waits for it, at its present pace, when memory is short."""

_NONE: Final[Mapping[str, str]] = MappingProxyType({})

Answered = Callable[[Command | None], None]
"""Called with a client's answer to a request of the broker; with None when there will be none."""


class RemotingCall:
    """A call is one request of a client. It is answered once, now or later; a oneway request is never answered."""

    __slots__ = ("command", "connection", "is_answered")

    def __init__(self, connection: RemotingConnection, command: Command) -> None:
        self.connection = connection
        self.command = command
        self.is_answered = False

    @property
    def path(self) -> str:
        """Return the name of what the request asks for, for logs."""
        return request_name(self.command.code)

    @property
    def code(self) -> int:
        """Return the request code."""
        return self.command.code

    @property
    def fields(self) -> Mapping[str, str]:
        """Return the custom header: texts by name."""
        return self.command.fields

    @property
    def peer(self) -> str:
        """Return `ip:port` of the client (IPv6 in brackets)."""
        return self.connection.peer

    @property
    def closed(self) -> bool:
        """Return whether nobody waits for an answer any more."""
        return self.is_answered or self.connection.is_closed

    def answer(
        self, code: int = ResponseCode.SUCCESS, fields: Mapping[str, str] = _NONE, body: bytes = b"", remark: str = ""
    ) -> None:
        """Answer the request. Later answers to the same request are dropped."""
        if self.is_answered:
            return
        self.is_answered = True
        self.connection.answered(self, code, fields, body, remark)


Handler = Callable[[RemotingCall], None]

Gather = Callable[["RemotingConnection", Frame], bool]
"""Takes a frame to serve it at the end of the loop iteration, together with others, and returns whether it did.

Each frame that it takes is given back to its connection: by `RemotingConnection.serve_gathered`, or together with
others by `answer_gathered`.
"""


class RemotingConnection(asyncio.Protocol):
    """The connection of one client."""

    def __init__(self, front: RemotingFront, *, secure: bool, ends: Ends | None) -> None:
        """`ends` are those that a load balancer has named."""
        self._front = front
        self._ends = ends
        self.is_secure: Final = secure
        self.peer = self.local = ""
        """`ip:port` of the client, and that of this broker which the client dialled."""
        self.peer_certificate: bytes | None = None
        self.is_registered = False
        """True if the client has registered a group: then the connection never gives way to another."""
        self.is_closed = False
        self._transport: asyncio.Transport | None = None
        self._source: Source | None = None
        self._reader = FrameReader()
        self._frames: deque[Frame] = deque()  # they wait for the turn of the address, or for the client to read
        self._waiting_size = 0  # bytes of `_frames`, as the address knows them
        self._kept_size = 0  # bytes of an incomplete frame, as all connections together know them
        self._out: list[bytes] = []
        self._out_size = 0
        self._is_paused = False  # the transport is full
        self._open = 0  # requests that are not answered yet
        self._asked: dict[int, tuple[Answered, asyncio.TimerHandle]] = {}
        self._next_opaque = 0
        self.lost: dict[object, Callable[[], None]] = {}
        """Callbacks to be run once when the connection has ended, by whatever they belong to."""
        self._active_s = 0.0
        self._unread_size = 0
        self._taken_before = self._taken = 0  # bytes that the client took, until the last look and until now
        self.moved_in = 0
        self.is_dragging = False

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        host, self.peer, self.local = self._ends or Ends.of(transport)
        self._source = self._front.resources.add(self, host)
        if self._source is None:
            self.is_closed = True
            self._transport.abort()
            return
        self._front.add(self)
        connected: socket.socket | None = transport.get_extra_info("socket")
        if connected is not None and connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if sys.platform == "linux":
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_MAX)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_MAX)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self.peer_certificate = tls.getpeercert(binary_form=True) if tls else None
        self._active_s = asyncio.get_running_loop().time()
        if self._front.is_stopping:
            self.close("the broker stops")

    def data_received(self, data: bytes) -> None:
        source = self._source
        if source is None or self.is_closed:
            return
        self._front.resources.stats.bytes_received += len(data)
        try:
            found = self._reader.feed(data)
        except FrameMalformed as error:
            self.refuse(str(error))
            return
        if not self._keep(source, self._reader.kept_size):
            return
        if found:
            self._active_s = asyncio.get_running_loop().time()
            waited = bool(self._frames)
            self._frames.extend(found)
            if not waited and source.has_turn(self._front.resources.scheduler.number):
                self._handle(source)
            else:
                self._account(source)
                self._wait_for_turn(source)

    def catch_up(self) -> None:
        """Handle what was put off; see `fairness.Waiting`."""
        source = self._source
        if source is None or self._is_full:
            return  # `resume_writing` goes on
        connected: socket.socket | None = self._transport.get_extra_info("socket") if self._transport else None
        if connected is None or has_hung_up(connected):
            self.abort()
            return
        self._handle(source)

    def listen(self) -> None:
        """Start or stop reading from the transport; see `fairness.Reader`."""
        transport, source = self._transport, self._source
        if transport is None or source is None or transport.is_closing():
            return
        if self._frames or source.is_paused:
            if transport.is_reading():
                transport.pause_reading()
        elif not transport.is_reading():
            transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self.depart()
        self._transport = None
        self._out.clear()
        self._out_size = 0
        self.refresh()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.refresh()
        if self._frames and self._source is not None:
            self._wait_for_turn(self._source)

    # -- requests

    @property
    def _is_full(self) -> bool:
        """Return whether the client has to read before more of its requests are handled."""
        return self._is_paused or self._out_size > UNREAD_MAX

    def _handle(self, source: Source) -> None:
        """Handle frames within what is left of the address's turn."""
        loop = asyncio.get_running_loop()
        frames, before_s, handled = self._frames, loop.time(), 0
        gather = self._front.gather
        while frames and handled < source.frames_left and not self._is_full:
            frame = frames.popleft()
            if gather is not None and gather(self, frame):
                self._open += 1
            else:
                self._serve(frame)
            handled += 1
            if loop.time() - before_s > source.seconds_left:
                break
        source.spend(handled, loop.time() - before_s)
        if self._source is None:
            return
        self._account(source)
        if frames:
            self._wait_for_turn(source)
        else:
            self.listen()

    def _serve(self, frame: Frame) -> None:
        try:
            command = read_command(frame)
        except FrameMalformed as error:
            self.refuse(str(error))
            return
        if command.is_response:
            asked = self._asked.pop(command.opaque, None)
            if asked is not None:
                answered, timer = asked
                timer.cancel()
                run_guarded(answered, command)
            return
        if not command.is_oneway:
            self._open += 1
        self._front.serve(RemotingCall(self, command))

    def serve_gathered(self, frame: Frame) -> None:
        """Serve a frame that `gather` has taken, by itself; also if the client is gone: it may have been oneway."""
        self._open -= 1
        self._serve(frame)

    def answer_gathered(self, count: int, answers: bytes) -> None:
        """Write the answers to all requests among that many frames that `gather` has taken."""
        self._front.resources.stats.calls += count
        self._open -= count
        if answers and not self.is_closed:
            self._write(answers)

    def answered(self, call: RemotingCall, code: int, fields: Mapping[str, str], body: bytes, remark: str) -> None:
        """Write the answer to a call; for `RemotingCall.answer`."""
        command = call.command
        if command.is_oneway:
            return
        self._open -= 1
        if self.is_closed:
            return
        try:
            data = write_command(command.response(code, fields, body, remark=remark or None))
        except ValueError:  # the protocol has no pages: a client that asks for very much has to ask for parts
            reason = f"the answer has {len(body)} bytes, which do not fit into a frame: ask for less"
            data = write_command(command.response(ResponseCode.SYSTEM_ERROR, remark=reason))
        self._write(data)

    # -- requests of the broker

    def tell(self, code: int, fields: Mapping[str, str] = _NONE, body: bytes = b"") -> None:
        """Send a oneway request to the client."""
        if not self.is_closed:
            self._write(write_command(self._request(code, fields, body, Flag.ONEWAY)))

    def ask(self, code: int, fields: Mapping[str, str], body: bytes, answered: Answered, *, timeout_s: float) -> None:
        """Send a request to the client. `answered` is called once, with None if no answer comes within the time."""
        if self.is_closed:
            run_guarded(answered, None)
            return
        command = self._request(code, fields, body, Flag(0))
        loop = asyncio.get_running_loop()
        self._asked[command.opaque] = answered, loop.call_later(timeout_s, self._unanswered, command.opaque)
        self._write(write_command(command))

    def _request(self, code: int, fields: Mapping[str, str], body: bytes, flag: Flag) -> Command:
        self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        return Command(code, self._next_opaque, fields, body, flag, language=Language.JAVA)

    def _unanswered(self, opaque: int) -> None:
        answered, _ = self._asked.pop(opaque)
        run_guarded(answered, None)

    # -- the end

    @property
    def has_calls(self) -> bool:
        """Return whether the client waits for something, or is registered; see `resources.FrontConnection`."""
        return self.is_registered or bool(self._open or self._frames or self._asked)

    @property
    def has_open_calls(self) -> bool:
        """Return whether requests are not answered yet, or answers not written."""
        return bool(self._open or self._frames or self._out)

    def refuse(self, reason: str) -> None:
        """Close a connection whose peer breaks a rule of the protocol. Nothing is answered."""
        self._front.resources.stats.connections_ended["REMOTING_MALFORMED"] += 1
        log.info("remoting connection ended", peer=self.peer, reason=reason)
        self.abort()

    def close(self, reason: str) -> None:
        """Close the connection when what is written has left."""
        log.debug("remoting connection closed", peer=self.peer, reason=reason)
        self.flush()
        self.depart()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """Close without waiting for a peer that does not read."""
        self.depart()
        if self._transport is not None:
            self._transport.abort()

    def give_way(self) -> None:
        """Make room for another connection; see `resources.FrontConnection`."""
        self.close("made room for another connection")
        if self._transport is not None:
            self._transport.abort()

    def depart(self) -> None:
        """Leave the front; see `resources.FrontConnection`."""
        source, self._source = self._source, None
        self.is_closed = True
        if source is None:
            return
        self._frames.clear()
        self._account(source)
        self._keep(source, 0)
        self._front.resources.remove(self, source)
        self._front.remove(self)
        asked, self._asked = self._asked, {}
        for answered, timer in asked.values():
            timer.cancel()
            run_guarded(answered, None)
        lost = list(self.lost.values())
        self.lost.clear()
        for callback in lost:
            run_guarded(callback)

    def look_after(self, now_s: float) -> None:
        """Close the connection if nothing happens on it; called every second or so."""
        if now_s - self._active_s > IDLE_S and not self._open:
            self._front.resources.stats.connections_ended["REMOTING_IDLE"] += 1
            self.close("idle")

    # -- writing

    def _write(self, data: bytes) -> None:
        if not self._out:
            self._front.resources.to_flush(self)
        self._out.append(data)
        self._out_size += len(data)

    def flush(self) -> None:
        """Write everything that the loop iteration has produced, in one piece."""
        out, self._out = self._out, []
        self._out_size = 0
        transport = self._transport
        if not out or transport is None or transport.is_closing():
            return
        written = b"".join(out)
        loop_now_s = asyncio.get_running_loop().time()
        self._active_s = loop_now_s
        self._front.resources.stats.bytes_sent += len(written)
        transport.write(written)
        self._unread_size += len(written)
        self._front.resources.unread.grew(self, len(written))
        self.refresh()
        if self._frames and self._source is not None:  # they waited for these answers to leave
            self._wait_for_turn(self._source)

    # -- reading answers, see `memory.Reading`

    @property
    def unread_size(self) -> int:
        """Return the bytes that wait for the client to read them."""
        return self._unread_size

    def look_at_pace(self) -> None:
        """Measure how fast the client reads; called every second."""
        self.refresh()
        taken, self._taken_before = self._taken - self._taken_before, self._taken
        self.is_dragging = 0 < taken * PACE_S < self._unread_size

    def refresh(self) -> None:
        """Update how much the transport still holds."""
        transport = self._transport
        size = 0 if transport is None else transport.get_write_buffer_size()
        taken = self._unread_size - size
        if taken:
            unread = self._front.resources.unread
            self._unread_size = size
            self._taken += taken
            self.moved_in = unread.number
            unread.grew(self, -taken)

    def give_up(self) -> None:
        """Give up what waits for a client that does not read: the connection is lost with it."""
        self._front.resources.stats.limits_met["unread_size"] += 1
        self.abort()
        self._transport = None
        self.refresh()

    # -- limits

    def _account(self, source: Source) -> None:
        """Report to the address how many of its bytes wait here."""
        size = sum([len(header) + len(body) for _, header, body in self._frames])
        if size != self._waiting_size:
            grown, self._waiting_size = size - self._waiting_size, size
            source.grew(grown)

    def _keep(self, source: Source, size: int) -> bool:
        """Report how many bytes of an incomplete frame wait here; close the connection if there are too many in all.

        Return whether the connection goes on.
        """
        grown, self._kept_size = size - self._kept_size, size
        if not grown:
            return True
        resources = self._front.resources
        resources.incoming.grew(source.address, grown)
        if grown > 0 and resources.incoming.is_too_much(resources.limits, source.address, size):
            resources.stats.limits_met["incoming_size"] += 1
            self.refuse("too many bytes of incomplete requests")
            return False
        return True

    def _wait_for_turn(self, source: Source) -> None:
        if not self._is_full:
            self._front.resources.scheduler.put_off(source, self)
        self.listen()


class RemotingFront:
    """Serves handlers by request code to the clients of its listeners, and of connections that another front gives."""

    def __init__(self, handlers: Mapping[int, Handler], unknown: Handler, resources: FrontResources) -> None:
        """`unknown` answers requests whose code has no handler. Handlers must not raise."""
        self._handlers = handlers
        self._unknown = unknown
        self.gather: Gather | None = None
        self.resources: Final = resources
        self.is_stopping = False
        self._servers: list[Listener] = []
        self._connections: dict[RemotingConnection, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> Iterable[RemotingConnection]:
        """Return the open connections, the oldest first."""
        return tuple(self._connections)

    async def start(self, address: str, tls: LiveTls | None = None, *, plain_too: bool = False) -> str:
        """Listen on `host:port` and return the bound address; see `contract.Front.start`. Raises OSError."""
        self.begin()
        servers, bound = await listen(address, self.protocol, self.resources, tls, plain_too=plain_too)
        self._servers += servers
        return bound

    def begin(self) -> None:
        """Begin to look after connections; also for those of another front's listeners."""
        if self._timer is None:
            self._look_after()

    def protocol(self, secure: bool, ends: Ends | None) -> RemotingConnection:  # noqa: FBT001 - it is a MakeProtocol
        """Return the protocol of a new connection."""
        return RemotingConnection(self, secure=secure, ends=ends)

    def serve(self, call: RemotingCall) -> None:
        """Give a request to its handler."""
        self.resources.stats.calls += 1
        self._handlers.get(call.code, self._unknown)(call)

    def add(self, connection: RemotingConnection) -> None:
        """Note a new connection."""
        self._connections[connection] = None

    def remove(self, connection: RemotingConnection) -> None:
        """Remove a connection that has ended."""
        self._connections.pop(connection, None)

    async def stop(self, grace_s: float) -> None:
        """Accept nothing new, let open requests end within the grace period, then close all connections."""
        self.is_stopping = True
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + grace_s
        while any(each.has_open_calls for each in self._connections) and loop.time() < until_s:
            await asyncio.sleep(STOP_LOOK_S)
        for connection in self.connections:
            connection.close("the broker stops")
        if self._timer is not None:
            self._timer.cancel()
        for server in servers:
            await server.wait_closed()

    def _look_after(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_AFTER_S, self._look_after)
        now_s = loop.time()
        for connection in self.connections:
            connection.look_after(now_s)
