"""HTTP/2 by hand, to say what no gRPC library would: frames, and header blocks without compression (RFC 9113, 7541)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, NamedTuple

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_SIZE_MAX: Final = 16_384
END_STREAM: Final = 1
END_HEADERS: Final = 4
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
CANCEL: Final = struct.pack(">I", 8)
SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"

Header = tuple[bytes, bytes]


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _integer(value: int) -> bytes:
    """With a prefix of seven bits."""
    if value < 127:
        return bytes([value])
    encoded, value = bytearray([127]), value - 127
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def header_block(headers: Sequence[Header]) -> bytes:
    """Every header as a literal that is not indexed."""
    return b"".join(b"\0" + _integer(len(name)) + name + _integer(len(value)) + value for name, value in headers)


def call_headers(method: str, /, *extra: Header, **replaced: bytes | None) -> list[Header]:
    """The headers of a gRPC call; `replaced` by name without colon and with underscores, None leaves one out."""
    headers: dict[str, bytes | None] = {
        ":method": b"POST",
        ":scheme": b"http",
        ":path": (SERVICE + method).encode(),
        ":authority": b"broker",
        "te": b"trailers",
        "content-type": b"application/grpc",
        "x-mq-client-id": b"hostile",
    }
    for name, value in replaced.items():
        spelled = name.replace("_", "-")
        headers[":" + spelled if ":" + spelled in headers else spelled] = value
    return [(name.encode(), value) for name, value in headers.items() if value is not None] + list(extra)


def grpc_message(body: bytes, *, flag: int = 0, length: int | None = None) -> bytes:
    """The body behind gRPC's prefix, which may lie."""
    return struct.pack(">BI", flag, len(body) if length is None else length) + body


class Connection:
    """One connection that says whatever it is told to."""

    def __init__(self, endpoint: str, *, timeout_s: float = 10.0) -> None:
        host, _, port = endpoint.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._received = b""
        self.send(PREFACE + frame(SETTINGS, 0, 0))

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def cut(self) -> None:
        """End the connection at once, without goodbye: a reset, not an orderly close."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def open_call(self, stream: int, headers: Sequence[Header], *, end: bool = False) -> None:
        block = header_block(headers)
        pieces = [block[at : at + FRAME_SIZE_MAX] for at in range(0, len(block), FRAME_SIZE_MAX)]
        for number, piece in enumerate(pieces):
            flags = END_HEADERS if number == len(pieces) - 1 else 0
            if number == 0:
                self.send(frame(HEADERS, flags | (END_STREAM if end else 0), stream, piece))
            else:
                self.send(frame(CONTINUATION, flags, stream, piece))

    def data(self, stream: int, data: bytes, *, end: bool = True) -> None:
        """Without regard for flow control, so not more than 64 KiB."""
        for at in range(0, len(data), FRAME_SIZE_MAX):
            self.send(frame(DATA, 0, stream, data[at : at + FRAME_SIZE_MAX]))
        if end:
            self.send(frame(DATA, END_STREAM, stream))

    def frames(self) -> Iterator[Frame]:
        """What the server says, until it closes the connection. Raises TimeoutError when it says nothing more."""
        while True:
            while len(self._received) < 9 or len(self._received) < 9 + int.from_bytes(self._received[:3], "big"):
                try:
                    received = self.socket.recv(65_536)
                except ConnectionError:
                    return
                if not received:
                    return
                self._received += received
            size = int.from_bytes(self._received[:3], "big")
            kind, flags = self._received[3:5]
            stream = int.from_bytes(self._received[5:9], "big")
            payload, self._received = self._received[9 : 9 + size], self._received[9 + size :]
            yield Frame(kind, flags, stream, payload)

    def ending(self, stream: int) -> str:
        """How the server ends the call: `grpc-status N`, `http-status N`, `reset N`, `closed` (the connection)."""
        for each in self.frames():
            if each.kind == GOAWAY:
                return "closed"
            if each.stream != stream:
                continue
            if each.kind == RST_STREAM:
                return f"reset {int.from_bytes(each.payload, 'big')}"
            if each.kind == HEADERS and b":status" in each.payload:
                return f"http-status {each.payload[each.payload.index(b':status') + 8 :][:3].decode()}"
            if each.kind == HEADERS and each.flags & END_STREAM:
                name = each.payload.index(b"grpc-status") + len(b"grpc-status")
                size = each.payload[name]
                return f"grpc-status {each.payload[name + 1 : name + 1 + size].decode()}"
        return "closed"
