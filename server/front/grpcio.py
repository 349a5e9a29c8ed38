"""The front on grpc.aio: raw bytes in, raw bytes out, one coroutine per open call.

It costs 130 to 280 µs per unary call and serves as the oracle of the contract suite. grpc.aio runs each call as a
coroutine. That coroutine passes the messages to the synchronous handlers of `contract.py`, and sleeps on one future
until the handler sends something. An idle long poll costs no task beyond grpc.aio's own.

Clients see these statuses when something goes wrong:

| event                                 | status of the call  |
|---------------------------------------|---------------------|
| no such method                        | UNIMPLEMENTED       |
| message above `max_message_size`, or  |                     |
| above that of its method              | RESOURCE_EXHAUSTED  |
| `max_open_calls` calls are open       | RESOURCE_EXHAUSTED  |
| the handler raised                    | INTERNAL            |
| `stop` ran out of grace               | UNAVAILABLE         |
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Never
from urllib.parse import unquote

import grpc
import grpc.aio
import structlog

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.server.front.contract import Call, FrontLimits, Method, Methods, check_methods, log_call, told_of
from quarry_mq.server.front.tls import LiveTls, Shown
from quarry_mq.server.tasks import run_guarded

log = structlog.get_logger(__name__)

HALF_CLOSE_SETTLE_S: Final = 0.02
"""Seconds for which the end of a client's messages is held back.

grpc.aio reports a cancelled call first as "no more messages" and only a few loop iterations later as cancelled. Waiting
a moment keeps a cancelled call from looking like an orderly half close.
"""

MIN_PING_INTERVAL_MS: Final = 1_000
"""Shortest interval at which clients may ping.

The C++ client pings every 60 s without any call open, Go and C# may ping more often; the C core's own default (one ping
in 300 s, two strikes) would answer them with GOAWAY `too_many_pings`.
"""

PENDING_CALLS_MAX: Final = 100_000
"""Calls that may wait to be accepted.

By default the C core ends calls at random once 1,000 wait, which happens within some milliseconds of a busy loop; their
clients see CANCELLED and take the network for broken.
"""

HANDSHAKE_MS: Final = 10_000
"""Time for a handshake. By default the C core lets a silent peer hold a connection for two minutes."""

IDLE_MS: Final = 30 * 60_000
"""Time after which a connection without a call is closed, as in the front `h2`."""

UNIX: Final = "unix:"

_STATUS_CODES: Final[Mapping[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}

_Context = grpc.aio.ServicerContext[Any, bytes]


class _Ending(NamedTuple):
    status: GrpcStatus
    message: str


class GrpcioCall:
    """Represent one call on grpc.aio. The handler writes into `_outbox`, the call's coroutine empties it.

    IMPORTANT: everything that a handler may read is copied here first. grpc.aio frees a call when its coroutine ends,
    and a handler that asks its context for the peer after that ends the process with a segmentation fault.
    """

    __slots__ = (
        "_buffer_limit",
        "_buffered",
        "_close_callbacks",
        "_deadline_s",
        "_drain_callbacks",
        "_ending",
        "_has_begun",
        "_is_secure",
        "_left",
        "_lost",
        "_metadata",
        "_method",
        "_outbox",
        "_path",
        "_peer",
        "_peer_certificate",
        "_wakeup",
    )

    def __init__(self, path: str, method: Method, context: _Context, buffer_limit: int) -> None:
        self._path = path
        self._method = method
        self._peer = context.peer()
        security = context.auth_context()
        self._is_secure = b"ssl" in security.get("transport_security_type", ())
        pem = next(iter(security.get("x509_pem_cert", ())), None)
        self._peer_certificate = None if pem is None else ssl.PEM_cert_to_DER_cert(pem.decode())
        self._metadata = context.invocation_metadata() or ()
        remaining_s: float | None = context.time_remaining()
        self._deadline_s = None if remaining_s is None else asyncio.get_running_loop().time() + remaining_s
        self._buffer_limit = buffer_limit
        self._outbox: deque[bytes] = deque()
        self._buffered = 0
        self._ending: _Ending | None = None
        self._lost = False
        self._left = False
        self._has_begun = False
        self._wakeup: asyncio.Future[None] | None = None
        self._close_callbacks: list[Callable[[], None]] = []
        self._drain_callbacks: list[Callable[[], None]] = []

    # What handlers use: server.front.contract.Call.

    @property
    def path(self) -> str:
        return self._path

    @property
    def peer(self) -> str:
        return peer_text(self._peer)

    @property
    def closed(self) -> bool:
        return self._lost or self._ending is not None

    @property
    def has_begun(self) -> bool:
        """Return whether a message was written. The one being written does not count until its write is done.

        gRPC does not say how far that write got. Answers begin with a status, which no client misses.
        """
        return self._has_begun

    @property
    def is_secure(self) -> bool:
        return self._is_secure

    @property
    def peer_certificate(self) -> bytes | None:
        return self._peer_certificate

    def header(self, name: str) -> str | None:
        return self.metadata().get(name)

    def metadata(self) -> Mapping[str, str]:
        return {str(key).lower(): value for key, value in self._metadata if isinstance(value, str)}

    def remaining_s(self) -> float | None:
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - asyncio.get_running_loop().time())

    def reply(self, body: bytes) -> None:
        if self._method.streaming_out:
            raise ValueError(f"{self._path} answers with a stream: use send and finish")
        if not self.closed:
            self._outbox.append(body)
            self._end(_Ending(GrpcStatus.OK, ""))

    def send(self, body: bytes) -> bool:
        if not self._method.streaming_out:
            raise ValueError(f"{self._path} has one answer: use reply")
        if self.closed:
            return True
        self._outbox.append(body)
        self._buffered += len(body)
        self._wake()
        return self._buffered <= self._buffer_limit

    def send_all(self, bodies: Sequence[bytes]) -> bool:
        may_go_on = True
        for body in bodies:
            may_go_on = self.send(body)
        return may_go_on

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        if status == GrpcStatus.OK and not self._method.streaming_out:
            raise ValueError(f"{self._path} needs a reply before it can end with OK")
        if not self.closed:
            self._end(_Ending(status, message))

    def on_close(self, callback: Callable[[], None]) -> None:
        if self._lost:
            asyncio.get_running_loop().call_soon(run_guarded, callback)
        elif self._ending is None or not self._left:
            self._close_callbacks.append(callback)

    def on_drain(self, callback: Callable[[], None]) -> None:
        if self.closed:
            return
        if self._buffered <= self._buffer_limit:
            asyncio.get_running_loop().call_soon(run_guarded, callback)
        else:
            self._drain_callbacks.append(callback)

    # What the call's own coroutine uses.

    @property
    def ending(self) -> _Ending | None:
        return self._ending

    def next_message(self) -> bytes | None:
        return self._outbox.popleft() if self._outbox else None

    def message_left(self, size: int) -> None:
        """Note that a message of the outbox was passed to the transport, which can take more."""
        self._has_begun = True
        self._buffered -= size
        if self._drain_callbacks and self._buffered <= self._buffer_limit // 2:
            callbacks, self._drain_callbacks = self._drain_callbacks, []
            for callback in callbacks:
                run_guarded(callback)

    async def changed(self) -> None:
        """Sleep until the handler sends, replies or finishes."""
        self._wakeup = asyncio.get_running_loop().create_future()
        await self._wakeup

    def leave(self) -> None:
        """Note that all of the answer was passed to the transport, so that nothing is reported as lost any more."""
        self._left = True
        self._close_callbacks.clear()

    def lose(self, ending: _Ending | None = None) -> None:
        """End a call that its handler did not end, or whose answer has not left: run its close callbacks, once."""
        if self._lost or self._left:
            return
        self._lost = True
        self._ending = self._ending or ending
        self._outbox.clear()
        self._drain_callbacks.clear()
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            run_guarded(callback)
        self._wake()

    def _end(self, ending: _Ending) -> None:
        self._ending = ending
        self._drain_callbacks.clear()
        if not self._method.streaming_out:
            self.leave()
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)


class GrpcioFront:
    """Serves `methods` on a grpc.aio server. Implements server.front.contract.Front."""

    stats = None

    def __init__(self, methods: Methods, *, limits: FrontLimits | None = None, access_log: bool = False) -> None:
        check_methods(methods)
        self._access_log = access_log
        self._limits = limits or FrontLimits()
        self._handlers = {path: self._rpc_handler(path, method) for path, method in methods.items()}
        self._servers: list[grpc.aio.Server] = []
        self._pass_callbacks: list[Callable[[], None]] = []

    def configure(self, limits: FrontLimits) -> None:
        """Apply the limits to addresses that are listened on from now on: gRPC takes its limits when it starts."""
        self._limits = limits

    async def start(self, address: str, tls: LiveTls | None = None, *, plain_too: bool = False) -> str:
        if plain_too:
            raise ValueError("the front grpcio does not support TLS and plain text on one port")
        server = grpc.aio.server(
            options=channel_options(self._limits), maximum_concurrent_rpcs=self._limits.max_open_calls
        )
        server.add_generic_rpc_handlers((_ByPath(self._handlers),))
        port = bind(server, address, tls)
        await server.start()
        self._servers.append(server)
        return address if address.startswith(UNIX) else f"{address.rpartition(':')[0]}:{port}"

    async def stop(self, grace_s: float) -> None:
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))

    def after_pass(self, callback: Callable[[], None]) -> None:
        if not self._pass_callbacks:
            asyncio.get_running_loop().call_soon(self._end_pass)
        self._pass_callbacks.append(callback)

    def _end_pass(self) -> None:
        callbacks, self._pass_callbacks = self._pass_callbacks, []
        for callback in callbacks:
            run_guarded(callback)

    def _rpc_handler(self, path: str, method: Method) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return closures, because grpc.aio decides by `iscoroutinefunction` how to run a handler."""
        buffer_limit = self._limits.stream_buffer_size

        @contextmanager
        def opened(context: _Context) -> Iterator[GrpcioCall]:
            call = GrpcioCall(path, method, context, buffer_limit)
            began_s = asyncio.get_running_loop().time()
            try:
                yield call
            finally:
                if self._access_log:
                    seconds = asyncio.get_running_loop().time() - began_s
                    log_call(call, GrpcStatus.CANCELLED if call.ending is None else call.ending.status, seconds)

        async def unary(request: bytes, context: _Context) -> bytes:
            with opened(context) as call:
                return await _serve_unary(call, method, request, context)

        async def stream(request: bytes, context: _Context) -> None:
            with opened(context) as call:
                await _serve_stream(call, method, request, context)

        async def bidirectional(_requests: object, context: _Context) -> None:
            with opened(context) as call:
                await _serve_bidirectional(call, method, context)

        if method.streaming_in:
            return grpc.stream_stream_rpc_method_handler(bidirectional)
        if method.streaming_out:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)


class _ByPath(grpc.GenericRpcHandler):
    def __init__(self, handlers: Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]) -> None:
        self._handlers = handlers

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._handlers.get(details.method)


async def _serve_unary(call: GrpcioCall, method: Method, request: bytes, context: _Context) -> bytes:
    try:
        _open(call, method)
        _deliver(call, method, request)
        while call.ending is None:
            await call.changed()
    except asyncio.CancelledError:
        call.lose()
        raise
    body = call.next_message()
    return await _abort(context, call.ending) if body is None else body


async def _serve_stream(call: GrpcioCall, method: Method, request: bytes, context: _Context) -> None:
    _open(call, method)
    _deliver(call, method, request)
    await _pump(call, context)


async def _serve_bidirectional(call: GrpcioCall, method: Method, context: _Context) -> None:
    _open(call, method)
    reader = asyncio.create_task(_read(call, method, context))
    try:
        await _pump(call, context)
    finally:
        reader.cancel()


async def _read(call: GrpcioCall, method: Method, context: _Context) -> None:
    """Pass the client's messages to the handler until the client closes its side."""
    while isinstance(request := await context.read(), bytes):
        _deliver(call, method, request)
    await asyncio.sleep(HALF_CLOSE_SETTLE_S)
    if method.on_half_close is not None and not call.closed:
        _run_step(call, method.on_half_close, call)


async def _pump(call: GrpcioCall, context: _Context) -> None:
    """Write what the handler sends, as fast as the client takes it, until the call ends."""
    try:
        body = call.next_message()
        if body is None and call.ending is None:
            # The Rust client does nothing before it has seen the response headers.
            await context.send_initial_metadata(())
            body = call.next_message()
        while True:
            while body is not None:
                await context.write(body)
                call.message_left(len(body))
                body = call.next_message()
            if call.ending is not None:
                call.leave()
                break
            await call.changed()
            body = call.next_message()
    except asyncio.CancelledError:
        call.lose()
        raise
    except grpc.aio.BaseError:
        # The connection went away under a write; grpc.aio cancels this coroutine too, but only later.
        call.lose()
        return
    if call.ending.status != GrpcStatus.OK:
        # set, not raised: grpc.aio keeps an error by which a call is aborted, and with it the frames of the call
        context.set_code(_STATUS_CODES[call.ending.status])
        context.set_details(call.ending.message)


async def _abort(context: _Context, ending: _Ending) -> Never:
    await context.abort(_STATUS_CODES[ending.status], ending.message)


def _open(call: GrpcioCall, method: Method) -> None:
    if method.on_open is not None:
        _run_step(call, method.on_open, call)


def _deliver(call: GrpcioCall, method: Method, request: bytes) -> None:
    if not call.closed and method.size_max is not None and len(request) > method.size_max:
        text = f"a message of {len(request)} bytes; at most {method.size_max} are allowed"
        call.lose(_Ending(GrpcStatus.RESOURCE_EXHAUSTED, text))
    elif not call.closed:
        _run_step(call, method.handler, call, request)


def _run_step(call: GrpcioCall, step: Callable[..., None], *arguments: object) -> None:
    """Run one step of a handler. A handler that raises ends its call, never the server."""
    try:
        step(*arguments)
    except Exception:
        log.exception("handler failed", **told_of(call))
        call.lose(_Ending(GrpcStatus.INTERNAL, "internal error"))


def channel_options(limits: FrontLimits) -> list[tuple[str, Any]]:
    """Return the settings of the C core under which every official client works."""
    return [
        # Without this two brokers could listen on one port and share its clients by chance.
        ("grpc.so_reuseport", 0),
        ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS_MAX),
        ("grpc.max_receive_message_length", limits.max_message_size),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", limits.max_metadata_size),
        ("grpc.absolute_max_metadata_size", limits.max_metadata_size),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", IDLE_MS),
    ]


def bind(server: grpc.aio.Server, address: str, tls: LiveTls | None = None) -> int:
    """Listen on `host:port` or `unix:path` and return the port. Raises OSError that names the address."""
    try:
        if tls is not None:
            return server.add_secure_port(address, grpc_credentials(tls))
        return server.add_insecure_port(address)
    except RuntimeError as cause:
        raise OSError(
            f"cannot listen on {address}: the address is in use or does not belong to this machine"
        ) from cause


def grpc_credentials(tls: LiveTls) -> grpc.ServerCredentials:
    """Return credentials that follow what `tls` shows, per handshake. Raises ValueError for optional certificates."""
    files, shown = tls.files, tls.now
    if files.client_ca is not None and files.client_certificate == "optional":
        raise ValueError("grpcio requires a certificate of clients always or never")

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        if tls.now is shown:
            return None
        shown = tls.now
        return _certificate_configuration(shown)

    return grpc.dynamic_ssl_server_credentials(
        _certificate_configuration(shown),
        changed,  # type: ignore[arg-type]  # the types do not allow None, which means no change
        require_client_authentication=files.client_ca is not None,
    )


def _certificate_configuration(shown: Shown) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(shown.key, shown.certificate)], root_certificates=shown.client_ca
    )


def peer_text(peer: str) -> str:
    """Return the peer as text: `ipv4:127.0.0.1:5` as `127.0.0.1:5`, `ipv6:%5B::1%5D:5` as `[::1]:5`, `unix:…` as
    `unix`.
    """
    kind, _, address = peer.partition(":")
    return kind if kind == "unix" else unquote(address)


def _conforms(call: GrpcioCall) -> Call:
    """Let the type checker prove that the call implements the whole contract."""
    return call
