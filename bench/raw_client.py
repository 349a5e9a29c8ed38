"""An HTTP/2 client with very little cost: requests are made beforehand, answers are counted and not decoded.

It opens plain connections, respects the windows of its peer, and parses only as much of the answers as is needed to see
where calls end. Header blocks are those that the official Java client sends once a server has asked for no table, with
the same fields.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from random import Random
from struct import Struct
from typing import Final

from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import FrameType, Setting
from quarry_mq.protocol.h2.header_blocks import encode_fields

SILENCE_S: Final = 30.0
"""Seconds of silence after which nothing more is expected from the server."""

READ_SIZE: Final = 256 * 1024
CLIENT_ID: Final = b"bench-host@4711@1@abcdefgh"
_TABLE_SIZE_0: Final = b"\x20"
_PREFIX: Final = Struct(">BI")
_HEAD: Final = frames.FRAME_HEAD
_HEAD_SIZE: Final = frames.FRAME_HEAD_SIZE
_DATA: Final = int(FrameType.DATA)
_NO_ERROR: Final = bytes(4)
_HEADERS: Final = int(FrameType.HEADERS)

GREETING: Final = (
    frames.PREFACE
    + frames.settings({Setting.INITIAL_WINDOW_SIZE: frames.WINDOW_MAX})
    + frames.window_update(0, frames.WINDOW_MAX - frames.WINDOW_DEFAULT)
)
"""The greeting makes windows as wide as they can be: 2 GiB per connection, far more than a benchmark reads."""

Taken = Callable[[int, memoryview], None]
"""Called with the stream and the payload of each DATA frame."""


class RawClientFailed(Exception):
    """The server ended a call or the connection, or went silent."""


class RawConnection:
    """Hold one connection to the server.

    `messages` and `ended` count DATA frames and calls that have ended: equal for small unary calls, unless some are
    refused. `data_size` is in bytes. `window` is how many bytes of data may be sent; header blocks are not counted
    (RFC 9113, 6.9).
    """

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.messages = 0
        self.ended = 0
        self.window = frames.WINDOW_DEFAULT
        self.is_greeted = False
        self.data_size = 0
        self.on_data: Taken | None = None
        self._rest = b""
        self.socket.sendall(GREETING)

    def send(self, request: bytes) -> None:
        """Send whole frames, with up to `window` bytes of data."""
        self.window -= _data_size(request)
        self.socket.sendall(request)

    def read(self) -> int:
        """Read what has come; return how many calls have ended by it. Raises RawClientFailed."""
        data = self.socket.recv(READ_SIZE)
        if not data:
            raise RawClientFailed("the server closed the connection")
        if self._rest:
            data = self._rest + data
        unpack, position, end, ended = _HEAD.unpack_from, 0, len(data), 0
        while end - position >= _HEAD_SIZE:
            high, low, kind, flags, stream_id = unpack(data, position)
            start = position + _HEAD_SIZE
            after = start + (high << 16 | low)
            if after > end:
                break
            position = after
            if kind == _DATA:
                self.messages += 1
                self.data_size += after - start
                if self.on_data is not None:
                    self.on_data(stream_id, memoryview(data)[start:after])
            elif kind != _HEADERS:
                self._control(kind, flags, stream_id, data[start:after])
                continue
            ended += flags & 1
        self._rest = data[position:]
        self.ended += ended
        return ended

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == FrameType.SETTINGS and not flags & frames.Flag.ACK:
            self.is_greeted = True
            self.socket.sendall(frames.SETTINGS_ACK)
        elif kind == FrameType.PING and not flags & frames.Flag.ACK:
            self.socket.sendall(frames.ping(payload, ack=True))
        elif kind == FrameType.WINDOW_UPDATE:
            if stream_id == 0:  # no request fills more than a little of a stream's own window
                self.window += frames.U32.unpack(payload)[0]
        elif kind == FrameType.RST_STREAM and payload == _NO_ERROR:
            pass  # the call was answered before all of its request was read: the rest is not wanted
        elif kind in (FrameType.RST_STREAM, FrameType.GOAWAY):
            raise RawClientFailed(f"{FrameType(kind).name} {payload!r}")


class RawClient:
    """Connections that are read together."""

    def __init__(self, endpoint: str, count: int) -> None:
        self._poll = select.epoll()
        self._by_descriptor: dict[int, RawConnection] = {}
        for _ in range(count):
            connection = RawConnection(endpoint)
            self._by_descriptor[connection.socket.fileno()] = connection
            self._poll.register(connection.socket, select.EPOLLIN)
        self.connections: Sequence[RawConnection] = list(self._by_descriptor.values())
        self.read_until(lambda: all(each.is_greeted for each in self.connections))

    @property
    def data_size(self) -> int:
        return sum(each.data_size for each in self.connections)

    @property
    def ended(self) -> int:
        return sum(each.ended for each in self.connections)

    def on_data(self, taken: Taken) -> None:
        for connection in self.connections:
            connection.on_data = taken

    def send(self, connection: RawConnection, request: bytes) -> None:
        """Send as soon as the server's window allows it."""
        size = _data_size(request)
        self.read_until(lambda: connection.window >= size)
        connection.send(request)

    def read_until(self, done: Callable[[], bool]) -> None:
        """Read until the condition holds. Raises RawClientFailed when the server goes silent before."""
        while not done():
            for connection in self.ready():
                connection.read()

    def read_for(self, seconds: float) -> None:
        """Read for some time from a server that always sends data."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            for connection in self.ready():
                connection.read()

    def call_all(self, requests: Sequence[bytes], depth: int) -> None:
        """Make the same calls on every connection, `depth` at a time on each, until all have ended."""
        count = len(requests)
        sent: dict[RawConnection, int] = {}
        for connection in self.connections:
            connection.send(b"".join(requests[:depth]))
            sent[connection] = min(depth, count)
        remaining = count * len(self.connections)
        while remaining:
            for connection in self.ready():
                ended = connection.read()
                remaining -= ended
                at = sent[connection]
                if at < count and ended:
                    connection.send(requests[at] if ended == 1 else b"".join(requests[at : at + ended]))
                    sent[connection] = at + ended

    def ready(self) -> Iterable[RawConnection]:
        """Return connections with data to read; waits for one. Raises RawClientFailed after `SILENCE_S` without any."""
        events = self._poll.poll(SILENCE_S)
        if not events:
            raise RawClientFailed("the server says nothing any more")
        return [self._by_descriptor[descriptor] for descriptor, _ in events]

    def close(self) -> None:
        self._poll.close()
        for connection in self.connections:
            connection.socket.close()


class CallMaker:
    """Makes frames of whole unary calls, with the header fields of the official Java client."""

    def __init__(self, random: Random, path: str) -> None:
        self._random = random
        self._fixed = encode_fields(
            [
                (b":authority", b"127.0.0.1:8081"),
                (b":path", path.encode()),
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b"content-type", b"application/grpc"),
                (b"te", b"trailers"),
                (b"user-agent", b"grpc-java-netty/1.50.0"),
                (b"x-mq-language", b"JAVA"),
                (b"x-mq-protocol", b"GRPC_V2"),
                (b"x-mq-client-version", b"5.2.0"),
                (b"x-mq-date-time", b"20260101T000000Z"),
                (b"grpc-accept-encoding", b"gzip"),
            ]
        )

    def call(self, number: int, body: bytes, *, client_id: bytes = CLIENT_ID, goes_on: bool = False) -> bytes:
        """Return the `number`-th call of a connection, from 0 on; its stream is numbered accordingly.

        With `goes_on` it is a stream on which the client may send more.
        """
        block = (_TABLE_SIZE_0 if number == 0 else b"") + self._fixed
        request_id = b"%032x" % self._random.getrandbits(128)
        block += encode_fields([(b"x-mq-client-id", client_id), (b"x-mq-request-id", request_id)])
        return _request(2 * number + 1, block, _PREFIX.pack(0, len(body)) + body, goes_on=goes_on)


def _data_size(request: bytes) -> int:
    """Return the bytes in the DATA frames of a request."""
    at, size = 0, 0
    while at < len(request):
        high, low, kind, _, _ = _HEAD.unpack_from(request, at)
        length = high << 16 | low
        at += _HEAD_SIZE + length
        if kind == _DATA:
            size += length
    return size


def make_requests(random: Random, path: str, body: bytes, first: int, count: int) -> list[bytes]:
    """Return repetitions of a call: the `first`-th call of a connection and those after it."""
    maker = CallMaker(random, path)
    return [maker.call(number, body) for number in range(first, first + count)]


def _request(stream_id: int, block: bytes, message: bytes, *, goes_on: bool) -> bytes:
    flags = 0 if goes_on else frames.Flag.END_STREAM
    return frames.frame(FrameType.HEADERS, frames.Flag.END_HEADERS, stream_id, block) + frames.frame(
        FrameType.DATA, flags, stream_id, message
    )
