"""The h2 engine without a socket: what a client would write, and what it would read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import FRAME_HEAD, FRAME_HEAD_SIZE, PREFACE, U32, Flag, FrameType
from quarry_mq.protocol.h2.grpc_messages import with_prefix
from quarry_mq.protocol.h2.header_blocks import encode_fields
from quarry_mq.server.front import Call, FrontLimits, Method
from quarry_mq.server.front.h2.call import Client, H2Call
from quarry_mq.server.front.h2.connection import Connection
from quarry_mq.server.front.h2.request_head import ScannerMaker
from quarry_mq.server.front.h2.switchboard import Switchboard
from quarry_mq.server.front.resources import FrontResources

ECHO: Final = "/test.Service/Echo"
KEEP: Final = "/test.Service/Keep"
STREAM: Final = "/test.Service/Stream"
BIDI: Final = "/test.Service/Bidi"
RAISE: Final = "/test.Service/Raise"

GREETING: Final = PREFACE + frames.settings({}) + frames.SETTINGS_ACK
SIZE_0: Final = b"\x20"
"""A size update to 0: the peer keeps no table."""


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> int:
        """Return the error code of RST_STREAM and GOAWAY."""
        code: int = U32.unpack_from(self.payload, 4 if self.kind == FrameType.GOAWAY else 0)[0]
        return code


def frames_of(data: bytes) -> Iterator[Frame]:
    """Return the frames that the bytes consist of. Bytes that are none fail the test."""
    position = 0
    while position < len(data):
        high, low, kind, flags, stream_id = FRAME_HEAD.unpack_from(data, position)
        end = position + FRAME_HEAD_SIZE + (high << 16 | low)
        assert end <= len(data), "half a frame was written"
        yield Frame(kind, flags, stream_id, data[position + FRAME_HEAD_SIZE : end])
        position = end


# -- what a client writes


def request_fields(path: str, extra: Sequence[tuple[bytes, bytes]] = ()) -> list[tuple[bytes, bytes]]:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"test"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *extra,
    ]


def headers(
    stream_id: int, path: str = ECHO, extra: Sequence[tuple[bytes, bytes]] = (), flags: int = Flag.END_HEADERS
) -> bytes:
    return frames.frame(FrameType.HEADERS, flags, stream_id, SIZE_0 + encode_fields(request_fields(path, extra)))


def data(stream_id: int, payload: bytes, *, last: bool = False) -> bytes:
    return frames.frame(FrameType.DATA, Flag.END_STREAM if last else 0, stream_id, payload)


def call(stream_id: int, body: bytes = b"", path: str = ECHO, extra: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """A whole call with one message of at most one frame."""
    return headers(stream_id, path, extra) + data(stream_id, with_prefix(body), last=True)


# -- what serves it


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Kept:
    """A handler that keeps its calls, and knows which of them were lost."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.lost: list[Call] = []

    def __call__(self, call: Call, _body: bytes = b"") -> None:
        self.calls.append(call)
        call.on_close(lambda: self.lost.append(call))


def echo(call: Call, body: bytes) -> None:
    call.reply(body)


def send_back(call: Call, body: bytes) -> None:
    call.send(body)


def stream_thrice(call: Call, body: bytes) -> None:
    for _ in range(3):
        call.send(body)
    call.finish()


def fault(_call: Call, _body: bytes) -> None:
    raise RuntimeError("a fault of the handler")


def methods(kept: Kept) -> dict[str, Method]:
    return {
        ECHO: Method(echo),
        KEEP: Method(kept),
        STREAM: Method(stream_thrice, streaming_out=True),
        BIDI: Method(send_back, streaming_in=True, streaming_out=True, on_half_close=lambda call: call.finish()),
        RAISE: Method(fault),
    }


class Engine:
    """A `Connection` with a clock of its own and nothing behind it."""

    def __init__(
        self,
        served: Mapping[str, Method] | None = None,
        limits: FrontLimits | None = None,
        call_ended: Callable[[H2Call, GrpcStatus], None] | None = None,
        make_scanner: ScannerMaker | None = None,
        headers: frozenset[str] | None = None,
    ) -> None:
        self.clock = Clock()
        resources = FrontResources(limits or FrontLimits())
        self.stats = resources.stats
        self.kept = Kept()
        self.later: list[Callable[[], None]] = []
        self.notifications = 0
        self.board = Switchboard(
            methods(self.kept) if served is None else served,
            resources,
            clock=self.clock,
            soon=self.later.append,
            call_ended=call_ended,
            make_scanner=make_scanner,
            headers=headers,
        )
        self.connection = Connection(self.board, Client("127.0.0.1:5"), self._notified)

    def _notified(self) -> None:
        self.notifications += 1

    def receive(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.receive(piece)

    def greet(self) -> Engine:
        """Say the preface and forget the answer."""
        self.receive(GREETING)
        self.written()
        return self

    def written(self) -> bytes:
        """Return the bytes written since the last call, as a transport would get them."""
        return b"".join(self.connection.sender.take())

    def frames(self) -> list[Frame]:
        return list(frames_of(self.written()))

    def all_frames(self) -> list[Frame]:
        """Frames of as many passes as it takes until nothing more comes."""
        found: list[Frame] = []
        while taken := self.frames():
            found += taken
            self.connection.sender.pump()
        return found

    def retained(self) -> dict[str, int]:
        """Everything that must be 0 when all calls have ended."""
        calls, sender = self.connection.calls, self.connection.sender
        return {
            "open": len(calls.open),
            "calls_open": self.stats.calls_open,
            "waiting": len(sender._waiting),
            "waiting_size": sender.waiting_size,
            "buffered_size": self.board.incoming.size,
            "buffered_here": calls._buffered_size,
            "blocks_size": self.board.incoming.blocks_size,
            "answered_calls": self.board.unread.answered_calls,
            "refused": len(self.board._refused),
        }


NOTHING: Final = dict.fromkeys(
    (
        *("open", "calls_open", "waiting", "waiting_size", "buffered_size", "buffered_here"),
        *("blocks_size", "answered_calls", "refused"),
    ),
    0,
)


def ended_by(found: Sequence[Frame]) -> int | None:
    """The code of a GOAWAY; None without one."""
    return next((each.code for each in reversed(found) if each.kind == FrameType.GOAWAY), None)


def resets(found: Sequence[Frame]) -> dict[int, int]:
    return {each.stream_id: each.code for each in found if each.kind == FrameType.RST_STREAM}


def body_of(found: Sequence[Frame], stream_id: int) -> bytes:
    """All DATA of a stream."""
    return b"".join(each.payload for each in found if each.kind == FrameType.DATA and each.stream_id == stream_id)


def statuses(found: Sequence[Frame]) -> dict[int, int]:
    """Status by stream, of the calls whose trailers are there. Our own blocks are literals, or known bytes."""
    name = b"\x00\x0bgrpc-status"
    ends = {}
    for each in found:
        if each.kind == FrameType.HEADERS and each.flags & Flag.END_STREAM and name in each.payload:
            start = each.payload.index(name) + len(name) + 1
            ends[each.stream_id] = int(each.payload[start : start + each.payload[start - 1]])
    return ends
