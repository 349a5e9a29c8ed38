"""The interface of a front: how calls come in. It has no domain words, no grpcio objects, no frames.

A front serves gRPC methods by their full path. All handlers run on the event loop's thread and must not block. Every
implementation passes `tests/contracts/test_front.py`.

The metrics of a front are plain numbers: counting must cost next to nothing. The fields of log lines about a call are
here, too, and the access log with one line for each ended call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import Final, Protocol

import structlog

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.server.counters import BucketHistogram
from quarry_mq.server.front.tls import LiveTls

log = structlog.get_logger(__name__)

PASS_BUCKETS_S: Final = tuple(0.000_025 * 2**step for step in range(15))
"""25 µs … 0.4 s: from one small call to a loop that was blocked for all clients."""

CALL_BUCKETS: Final = tuple(2**step for step in range(12))
"""1 … 2048 calls: as many as one read of 256 KiB can hold, from several connections."""


FRONT_LIMITS: Final = (
    "connections",
    "connections_per_address",
    "calls_per_connection",
    "open_calls",
    "metadata_size",
    "request_size",
    "incoming_size",
    "unread_size",
    "unhandled_size",
    "frames_that_carry_nothing",
)
"""Names of the limits by which a front refuses something before any handler is called."""


@dataclass(slots=True)
class FrontStats:
    """The front's metrics: totals since the start, unless the name says open."""

    connections: int = 0
    connections_open: int = 0
    connections_refused: int = 0
    connections_ended: Counter[str] = field(default_factory=Counter)
    """Connections closed by the broker, by HTTP/2 error code.

    `HTTP_1`, `NO_ALPN`, `NO_TLS` and `SILENT` count peers that did not speak HTTP/2, `PROXY_MALFORMED` load balancers.
    """

    limits_met: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(FRONT_LIMITS, 0)))
    """Refusals and losses because of a limit, by the limit's name (docs/limits.md)."""

    calls: int = 0
    calls_open: int = 0
    calls_failed: Counter[GrpcStatus] = field(default_factory=Counter)
    """Calls that ended with another gRPC status than OK, by status."""

    resets_received: Counter[str] = field(default_factory=Counter)
    resets_sent: Counter[str] = field(default_factory=Counter)
    bytes_received: int = 0
    bytes_sent: int = 0
    pass_seconds: BucketHistogram = field(default_factory=lambda: BucketHistogram(PASS_BUCKETS_S))
    pass_calls: BucketHistogram = field(default_factory=lambda: BucketHistogram(CALL_BUCKETS))


class Call(Protocol):
    """Represent one call of a client, from its first message to its end.

    All properties may also be read after the call has ended.
    """

    @property
    def path(self) -> str: ...

    @property
    def peer(self) -> str:
        """Return `ip:port` of the client (IPv6 in brackets)."""

    @property
    def closed(self) -> bool:
        """Return whether the call has ended, on either side. Answers to a closed call are dropped silently."""

    @property
    def has_begun(self) -> bool:
        """Return whether a byte of the streamed answer was handed to the transport: its client may have seen it."""

    @property
    def is_secure(self) -> bool:
        """Return whether the client came over TLS."""

    @property
    def peer_certificate(self) -> bytes | None:
        """Return the client's certificate in DER, or None without TLS or without a certificate."""

    def header(self, name: str) -> str | None:
        """Return one request header by its name in lower case, None if missing or not text. Cheaper than `metadata`."""

    def metadata(self) -> Mapping[str, str]:
        """Return the request headers, names in lower case.

        Of a repeated name the last value counts; binary headers (names that end in `-bin`) are left out.
        """

    def remaining_s(self) -> float | None:
        """Return the seconds until the client's deadline, as of now; None if it set none."""

    def reply(self, body: bytes) -> None:
        """Send the one answer of a unary call, with status OK. Ends the call."""

    def send(self, body: bytes) -> bool:
        """Send one message of a streaming answer. It is always accepted; False asks the caller to await `on_drain`."""

    def send_all(self, bodies: Sequence[bytes]) -> bool:
        """Send several messages, as `send` does for each, at less cost."""

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        """End a streaming call, or refuse any call with a status other than OK."""

    def on_close(self, callback: Callable[[], None]) -> None:
        """Run the callback once if the call ends before the handler ended it, or before its streamed answer has left.

        That is: cancelled, past its deadline, connection lost, or the handler raised. On a call that has already ended
        in this way the callback runs soon. After `finish` it still runs if messages of the answer were not handed to
        the transport yet: the client cannot have seen them.
        """

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Run the callback once when `send` may go on after it returned False. Never on a closed call."""


MessageHandler = Callable[[Call, bytes], None]
"""Called with each request message: once for unary and server-streaming calls, repeatedly for client streams."""

HalfCloseHandler = Callable[[Call], None]
"""Called when the client of a streaming-in method has sent its last message."""


@dataclass(frozen=True, slots=True)
class Method:
    """The handlers of one method. `streaming_in` methods may get many messages per call."""

    handler: MessageHandler
    streaming_in: bool = False
    streaming_out: bool = False
    on_open: Callable[[Call], None] | None = None
    on_half_close: HalfCloseHandler | None = None
    admit: Callable[[Call], None] | None = None
    """Called before a message is collected or parsed; it may end the call, and then the message is dropped.

    For a call with one message it may also be called when only its headers have come. A front need not call it:
    handlers check for themselves.
    """
    size_max: int | None = None
    """Largest message of the method in bytes, if that is less than the front accepts."""

    def message_size_max(self, limits: FrontLimits) -> int:
        return limits.max_message_size if self.size_max is None else min(self.size_max, limits.max_message_size)


@dataclass(frozen=True, slots=True)
class FrontLimits:
    """The limits up to which a front accepts calls and data; beyond them it refuses on its own.

    Sizes are in bytes. `stream_buffer_size` is what `Call.send` keeps before it asks to slow down; `max_unread_size` is
    what may wait for all clients together to read it.
    """

    max_message_size: int = 16 * 1024 * 1024
    max_metadata_size: int = 16 * 1024
    max_open_calls: int = 100_000
    stream_buffer_size: int = 1024 * 1024
    max_connections: int = 10_000
    max_connections_per_address: int = 5_000
    max_greeting: int = 1_024
    max_unread_size: int = 192 * 1024 * 1024
    proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """Load balancers whose PROXY header is believed (`server.front.proxy_header`)."""


class Front(Protocol):
    @property
    def stats(self) -> FrontStats | None:
        """Return the front's metrics, or None if it does not count."""

    def configure(self, limits: FrontLimits) -> None:
        """Apply other limits from now on, as far as open calls and connections allow. Not every front can do it at
        once.
        """

    async def start(self, address: str, tls: LiveTls | None = None, *, plain_too: bool = False) -> str:
        """Listen on `host:port` (port 0: any free one) or `unix:path` and return the bound address.

        May be called more than once, to listen on several addresses. With `plain_too` the client's first byte decides
        whether a connection speaks TLS. Raises OSError that names the address, and ValueError for what this front does
        not offer: not all offer `plain_too`, or optional client certificates.
        """

    async def stop(self, grace_s: float) -> None:
        """Accept no new calls, let open ones end within `grace_s`, then cancel the rest.

        If it is called again meanwhile, the shorter grace counts.
        """

    def after_pass(self, callback: Callable[[], None]) -> None:
        """Run the callback once, at the end of the current loop iteration, in order of registration.

        Work of many calls is done here at once; answers given here leave in few writes.
        """


Methods = Mapping[str, Method]
"""The methods of a front by their full gRPC path (`/package.Service/Method`)."""


def check_methods(methods: Methods) -> None:
    """Raise ValueError for a method whose kind of streaming no front serves."""
    for path, method in methods.items():
        if method.streaming_in and not method.streaming_out:
            raise ValueError(f"{path}: client streaming calls with a single answer are not supported")


LOGGED_HEADERS: Final[Mapping[str, str]] = {"client_id": "x-mq-client-id", "request_id": "x-mq-request-id"}
"""Keys of a log line, with the headers by which clients state their id and that of the request."""

VALUE_LENGTH_MAX: Final = 128
"""Characters of a logged header. Ids of clients have up to a hundred; requests are identified by UUIDs."""


def told_of(call: Call) -> dict[str, str]:
    """Return `path`, `peer`, and the ids of client and request if they were sent. Clients may state any id."""
    told = {"path": call.path, "peer": call.peer}
    for key, header in LOGGED_HEADERS.items():
        value = call.header(header)
        if value:
            told[key] = value[:VALUE_LENGTH_MAX]
    return told


def log_call(call: Call, status: GrpcStatus, seconds: float) -> None:
    log.info("call", **told_of(call), status=status.name, seconds=round(seconds, 6))
