"""Represent one call on the h2 front: what handlers see, and the state that the connection keeps of its stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.h2.grpc_messages import MessageReader, pack_messages, with_prefix
from quarry_mq.protocol.h2.header_blocks import text_of
from quarry_mq.server.addresses import host_of
from quarry_mq.server.front.contract import Call, Method
from quarry_mq.server.tasks import run_guarded

OK: Final = GrpcStatus.OK
BINARY_SUFFIX = "-bin"


class Client(NamedTuple):
    """The peer of a connection: `ip:port`, whether it came over TLS, and the certificate it showed (DER)."""

    peer: str
    is_secure: bool = False
    peer_certificate: bytes | None = None

    @property
    def host(self) -> str:
        """Return the address without port: `127.0.0.1`, `::1`, `unix`."""
        return host_of(self.peer) or self.peer


class StreamWindows(Protocol):
    """The part of the sender that a new call needs."""

    @property
    def initial_window(self) -> int: ...


class ConnectionCalls(Protocol):
    """The calls of one connection, as one of them and the switchboard see them: see `calls.Calls`."""

    client: Client
    clock: Callable[[], float]
    soon: Callable[[Callable[[], None]], None]
    stream_buffer_size: int
    now_s: float
    open: dict[int, H2Call]

    @property
    def sender(self) -> StreamWindows: ...

    def answer(self, call: H2Call, body: bytes) -> None: ...

    def stream(self, call: H2Call, packed: bytes) -> None: ...

    def end(self, call: H2Call, status: GrpcStatus, message: str) -> None: ...

    def answer_http(self, call: H2Call) -> None: ...

    def left(self, call: H2Call) -> None: ...

    def take_new(self) -> Iterable[H2Call]: ...

    def hold_headers(self, call: H2Call) -> None: ...

    def expire(self, call: H2Call) -> None: ...


class H2Call:
    """Implements `server.front.contract.Call`.

    Of the fields without underscore, `send_window` to `drain_callbacks` belong to the `Sender`, those from
    `client_done` on to `Calls`.
    """

    __slots__ = (
        "_calls",
        "_close_callbacks",
        "_closed",
        "_fields",
        "_method",
        "_opened_at_s",
        "_path",
        "buffered_size",
        "client_done",
        "drain_callbacks",
        "ended_with",
        "has_begun",
        "head_size",
        "headers_sent",
        "http_status",
        "is_admitted",
        "is_unusual",
        "outbox",
        "reader",
        "received",
        "send_window",
        "stream_id",
        "timeout_s",
        "trailers",
        "waiting_size",
    )

    def __init__(
        self,
        calls: ConnectionCalls,
        stream_id: int,
        served: tuple[str, Method],
        fields: dict[bytes, bytes],
        timeout_s: float | None,
    ) -> None:
        self._calls = calls
        self._path, self._method = served
        self._fields = fields
        self._opened_at_s = calls.now_s
        self._closed = False
        self._close_callbacks: list[Callable[[], None]] | None = None
        self.timeout_s = timeout_s
        self.stream_id = stream_id
        self.send_window = calls.sender.initial_window
        self.outbox: deque[memoryview] | None = None
        self.waiting_size = 0
        self.headers_sent = False
        self.has_begun = False  # a byte of a message was handed to the transport
        self.trailers: bytes | None = None
        self.drain_callbacks: list[Callable[[], None]] | None = None
        self.client_done = False
        self.reader: MessageReader | None = None  # for a message that spans several frames
        self.received = 0  # bytes of the stream that were not given back to the peer's window yet
        self.buffered_size = 0  # of `reader` and headers, as last accounted for
        self.head_size = 0  # of headers, once the call has been open for a while
        self.is_admitted = False  # whether its method has admitted the request
        self.ended_with = OK
        self.is_unusual = False  # its request does not allow the fast path
        self.http_status = 0  # HTTP status of the answer to a request that is not a gRPC call

    # -- used by handlers

    @property
    def path(self) -> str:
        return self._path

    @property
    def peer(self) -> str:
        return self._calls.client.peer

    @property
    def is_secure(self) -> bool:
        return self._calls.client.is_secure

    @property
    def peer_certificate(self) -> bytes | None:
        return self._calls.client.peer_certificate

    @property
    def closed(self) -> bool:
        return self._closed

    def header(self, name: str) -> str | None:
        value = self._fields.get(name.encode())
        return None if value is None else text_of(value)

    def metadata(self) -> Mapping[str, str]:
        texts = ((name.decode(), text_of(value)) for name, value in self._fields.items())
        return {name: text for name, text in texts if text is not None and not name.endswith(BINARY_SUFFIX)}

    def remaining_s(self) -> float | None:
        deadline_s = self.deadline_s
        return None if deadline_s is None else max(0.0, deadline_s - self._calls.clock())

    def reply(self, body: bytes) -> None:
        if self._method.streaming_out:
            raise ValueError(f"{self._path} answers with a stream: use send and finish")
        if self._closed:
            return
        self._closed = True
        self._close_callbacks = None
        self._calls.answer(self, body)

    def send(self, body: bytes) -> bool:
        if not self._method.streaming_out:
            raise ValueError(f"{self._path} has one answer: use reply")
        if self._closed:
            return True
        self._calls.stream(self, with_prefix(body))
        return self.waiting_size <= self._calls.stream_buffer_size

    def send_all(self, bodies: Sequence[bytes]) -> bool:
        if not self._method.streaming_out:
            raise ValueError(f"{self._path} has one answer: use reply")
        for packed in pack_messages(bodies):
            if self._closed:
                return True
            self._calls.stream(self, packed)
        return self._closed or self.waiting_size <= self._calls.stream_buffer_size

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        if status == GrpcStatus.OK and not self._method.streaming_out:
            raise ValueError(f"{self._path} needs a reply before it can end with OK")
        if not self._closed:
            self._closed = True
            self.drain_callbacks = None
            self._calls.end(self, status, message)

    def on_close(self, callback: Callable[[], None]) -> None:
        if not self._closed or self.outbox is not None:
            if self._close_callbacks is None:
                self._close_callbacks = []
            self._close_callbacks.append(callback)
        elif self._close_callbacks is _LOST:
            self._calls.soon(callback)

    def on_drain(self, callback: Callable[[], None]) -> None:
        if self._closed:
            return
        if self.waiting_size <= self._calls.stream_buffer_size:
            self._calls.soon(callback)
        elif self.drain_callbacks is None:
            self.drain_callbacks = [callback]
        else:
            self.drain_callbacks.append(callback)

    # -- used by the connection and its parts

    @property
    def method(self) -> Method:
        return self._method

    @property
    def deadline_s(self) -> float | None:
        """Return the deadline on the connection's clock."""
        return None if self.timeout_s is None else self._opened_at_s + self.timeout_s

    @property
    def opened_at_s(self) -> float:
        return self._opened_at_s

    @property
    def calls(self) -> ConnectionCalls:
        """Return the calls of the same connection."""
        return self._calls

    @property
    def is_over(self) -> bool:
        """Return whether all of the answer has left, or never will."""
        return self.stream_id not in self._calls.open

    @property
    def awaits_request(self) -> bool:
        """Return whether the one message of the call has not come in completely."""
        return not self.client_done and not self._method.streaming_in

    def field(self, name: bytes) -> bytes:
        """Return the value of a header as it was sent; empty if there is none."""
        return self._fields.get(name, b"")

    @property
    def fields_size(self) -> int:
        """Return the bytes of the headers that are kept."""
        return sum(map(len, self._fields)) + sum(map(len, self._fields.values()))

    def left(self) -> None:
        """Note that all of the answer was passed on, so that nothing is reported as lost any more."""
        self._close_callbacks = None

    def lost(self) -> None:
        """End a call that its handler did not end, or whose answer has not left: run its close callbacks, once."""
        if self._close_callbacks is _LOST:
            return
        self._closed = True
        self.drain_callbacks = None
        callbacks, self._close_callbacks = self._close_callbacks, _LOST
        for callback in callbacks or ():
            run_guarded(callback)

    def drained(self) -> None:
        """Tell the handler that it may send more."""
        callbacks, self.drain_callbacks = self.drain_callbacks, None
        for callback in callbacks or ():
            run_guarded(callback)


_LOST: list[Callable[[], None]] = []
"""Value of the close callbacks once they have run."""


def _conforms(call: H2Call) -> Call:
    """Let the type checker prove that the call implements the whole contract."""
    return call
