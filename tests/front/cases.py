"""Recorded conversations: what a client writes from its first byte on, and how it ends. Fuzzing starts from these."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import hpack

from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import PREFACE, WINDOW_MAX, ErrorCode, Flag, FrameType, Setting
from quarry_mq.protocol.h2.grpc_messages import MESSAGE_PREFIX, with_prefix
from quarry_mq.protocol.h2.header_blocks import encode_fields
from tests.front.engine import BIDI, ECHO, GREETING, KEEP, RAISE, SIZE_0, STREAM, call, data, headers, request_fields


class Case(NamedTuple):
    """The bytes that are written; then the status of each ended stream, the code of each reset one, and of a GOAWAY."""

    written: bytes
    statuses: Mapping[int, int] = MappingProxyType({})
    resets: Mapping[int, int] = MappingProxyType({})
    ended_by: int | None = None


def in_table(encoder: hpack.Encoder, stream_id: int, path: str, number: int) -> bytes:
    """HEADERS of a client that keeps a table, with Huffman codes."""
    extra = [(b"x-request-id", b"%d" % number), (b"grpc-timeout", b"5S")]
    block = encoder.encode(request_fields(path, extra))
    return frames.frame(FrameType.HEADERS, Flag.END_HEADERS, stream_id, block)


def with_table(count: int) -> bytes:
    encoder = hpack.Encoder()
    whole = b""
    for number in range(count):
        whole += in_table(encoder, 2 * number + 1, ECHO, number) + data(2 * number + 1, with_prefix(b"x"), last=True)
    return whole


def continued(stream_id: int, block: bytes, *places: int) -> bytes:
    """A header block over several frames."""
    whole, kind, start = b"", FrameType.HEADERS, 0
    for place in places:
        whole += frames.frame(kind, 0, stream_id, block[start:place])
        kind, start = FrameType.CONTINUATION, place
    return whole + frames.frame(kind, Flag.END_HEADERS, stream_id, block[start:])


def padded(stream_id: int, payload: bytes, padding: int) -> bytes:
    flags = Flag.PADDED | Flag.END_STREAM
    return frames.frame(FrameType.DATA, flags, stream_id, bytes([padding]) + payload + bytes(padding))


BLOCK: Final = encode_fields(request_fields(ECHO))
MESSAGE: Final = with_prefix(b"a message")
PING: Final = frames.ping(b"12345678", ack=False)
NOT_GRPC: Final = encode_fields([(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")])

SOUND: Final = {
    "greeting": Case(b""),
    "one call": Case(call(1, b"hello"), {1: 0}),
    "empty message": Case(call(1), {1: 0}),
    "many calls": Case(
        b"".join(call(each, b"%d" % each) for each in range(1, 40, 2)), dict.fromkeys(range(1, 40, 2), 0)
    ),
    "with a table": Case(with_table(5), dict.fromkeys(range(1, 10, 2), 0)),
    "message in pieces": Case(
        headers(1) + data(1, MESSAGE[:3]) + data(1, MESSAGE[3:7]) + data(1, MESSAGE[7:], last=True), {1: 0}
    ),
    "message over two frames": Case(
        headers(1) + data(1, with_prefix(bytes(20_000))[:16_000]) + data(1, bytes(4_005), last=True), {1: 0}
    ),
    "streamed answer": Case(call(1, b"again", STREAM), {1: 0}),
    "both ways": Case(
        headers(1, BIDI) + data(1, MESSAGE + MESSAGE[:4]) + data(1, MESSAGE[4:]) + data(1, b"", last=True), {1: 0}
    ),
    "both ways, nothing said": Case(headers(1, BIDI, flags=Flag.END_HEADERS | Flag.END_STREAM), {1: 0}),
    "trailers of a request": Case(
        headers(1, BIDI)
        + data(1, MESSAGE)
        + frames.frame(FrameType.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, 1, encode_fields([(b"x", b"y")])),
        {1: 0},
    ),
    "interleaved": Case(
        headers(1) + headers(3) + data(3, MESSAGE, last=True) + data(1, MESSAGE, last=True), {1: 0, 3: 0}
    ),
    "padded": Case(headers(1) + padded(1, MESSAGE, 17), {1: 0}),
    "padded headers with priority": Case(
        frames.frame(
            FrameType.HEADERS, Flag.END_HEADERS | Flag.PADDED | Flag.PRIORITY, 1, b"\x03" + bytes(5) + BLOCK + bytes(3)
        )
        + data(1, MESSAGE, last=True),
        {1: 0},
    ),
    "continuation": Case(continued(1, SIZE_0 + BLOCK, 1, 2, 40, 40, 90) + data(1, MESSAGE, last=True), {1: 0}),
    "gzip": Case(
        headers(1, extra=[(b"grpc-encoding", b"gzip")])
        + data(
            1,
            MESSAGE_PREFIX.pack(1, len(gzip.compress(b"x" * 99, mtime=0))) + gzip.compress(b"x" * 99, mtime=0),
            last=True,
        ),
        {1: 0},
    ),
    "content-length": Case(call(1, b"hello", extra=[(b"content-length", b"10")]), {1: 0}),
    "windows": Case(
        frames.settings({Setting.INITIAL_WINDOW_SIZE: 4})
        + call(1, b"window", STREAM)
        + frames.window_update(1, 5)
        + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0})
        + frames.window_update(0, 100)
        + frames.window_update(1, 100)
        + frames.settings({Setting.INITIAL_WINDOW_SIZE: 65_535}),
        {1: 0},
    ),
    "ping, priority, unknown": Case(
        PING
        + frames.frame(FrameType.PRIORITY, 0, 3, bytes(5))
        + frames.FRAME_HEAD.pack(0, 3, 0xFA, 0xFF, 9)
        + b"abc"
        + call(1),
        {1: 0},
    ),
    "cancelled": Case(call(1, path=KEEP) + frames.reset(1, ErrorCode.CANCEL) + call(3), {3: 0}),
    "client says goodbye": Case(call(1) + frames.go_away(0, ErrorCode.NO_ERROR) + PING, {1: 0}),
}
"""Things that an honest client may do."""

REFUSED: Final = {
    "no such method": Case(call(1, path="/no/such"), {1: 12}, {1: 0}),
    "handler raises": Case(call(1, path=RAISE), {1: 13}),
    "bad timeout": Case(call(1, extra=[(b"grpc-timeout", b"soon")]), {1: 13}, {1: 0}),
    "no message": Case(headers(1, flags=Flag.END_HEADERS | Flag.END_STREAM), {1: 13}),
    "two messages": Case(headers(1) + data(1, MESSAGE * 2, last=True), {1: 13}),
    "half a message": Case(headers(1) + data(1, MESSAGE[:7], last=True), {1: 13}),
    "half a message of a stream": Case(headers(1, BIDI) + data(1, MESSAGE[:7], last=True), {1: 13}),
    "compressed, it says": Case(headers(1) + data(1, b"\1" + MESSAGE[1:], last=True), {1: 13}),
    "unknown compression": Case(
        headers(1, extra=[(b"grpc-encoding", b"lz4")]) + data(1, b"\1" + MESSAGE[1:], last=True), {1: 12}
    ),
    "message too large": Case(headers(1) + data(1, b"\0\xff\xff\xff\xff"), {1: 8}, {1: 0}),
    "not gRPC": Case(
        frames.frame(FrameType.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, 1, NOT_GRPC) + call(3), {3: 0}
    ),
    "wrong content-length": Case(
        call(1, b"x", extra=[(b"content-length", b"1")]), resets={1: ErrorCode.PROTOCOL_ERROR}
    ),
    "absurd content-length": Case(
        call(1, b"x", extra=[(b"content-length", b"9" * 5_000)]), resets={1: ErrorCode.PROTOCOL_ERROR}
    ),
    "malformed": Case(headers(1, extra=[(b"Upper", b"v")]) + call(3), {3: 0}, {1: ErrorCode.PROTOCOL_ERROR}),
    "empty block": Case(frames.frame(FrameType.HEADERS, Flag.END_HEADERS, 1), resets={1: ErrorCode.PROTOCOL_ERROR}),
    "data after the end": Case(call(1, path=KEEP) + data(1, b"x"), resets={1: ErrorCode.STREAM_CLOSED}),
    "window of a stream by nothing": Case(
        call(1, path=KEEP) + frames.window_update(1, 0), resets={1: ErrorCode.PROTOCOL_ERROR}
    ),
    "trailers without an end": Case(
        headers(1, BIDI) + frames.frame(FrameType.HEADERS, Flag.END_HEADERS, 1, b""),
        resets={1: ErrorCode.PROTOCOL_ERROR},
    ),
}
"""Things that end one stream; the connection goes on."""


def error(written: bytes, code: ErrorCode) -> Case:
    return Case(written, ended_by=code)


ENDED: Final = {
    "frame too large": error(frames.FRAME_HEAD.pack(0, 16_385, 0, 0, 1), ErrorCode.FRAME_SIZE_ERROR),
    "unknown frame too large": error(frames.FRAME_HEAD.pack(1, 0, 0xFA, 0, 1), ErrorCode.FRAME_SIZE_ERROR),
    "data on stream 0": error(data(0, b""), ErrorCode.PROTOCOL_ERROR),
    "data before headers": error(data(1, b""), ErrorCode.PROTOCOL_ERROR),
    "even stream": error(headers(2), ErrorCode.PROTOCOL_ERROR),
    "push promise": error(frames.frame(FrameType.PUSH_PROMISE, 4, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "continuation of nothing": error(frames.frame(FrameType.CONTINUATION, 4, 1), ErrorCode.PROTOCOL_ERROR),
    "interrupted block": error(frames.frame(FrameType.HEADERS, 0, 1, BLOCK) + PING, ErrorCode.PROTOCOL_ERROR),
    "continued elsewhere": error(
        frames.frame(FrameType.HEADERS, 0, 1, BLOCK) + frames.frame(FrameType.CONTINUATION, 4, 3),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "padding longer than its frame": error(
        headers(1) + frames.frame(FrameType.DATA, Flag.PADDED, 1, b"\5abc"), ErrorCode.PROTOCOL_ERROR
    ),
    "no padding length": error(headers(1) + frames.frame(FrameType.DATA, Flag.PADDED, 1), ErrorCode.PROTOCOL_ERROR),
    "depends on itself": error(frames.frame(FrameType.PRIORITY, 0, 3, b"\0\0\0\3\0"), ErrorCode.PROTOCOL_ERROR),
    "short priority": error(frames.frame(FrameType.PRIORITY, 0, 3, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
    "priority that is not there": error(
        frames.frame(FrameType.HEADERS, Flag.END_HEADERS | Flag.PRIORITY, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR
    ),
    "short reset": error(headers(1) + frames.frame(FrameType.RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    "reset of an idle stream": error(frames.reset(1, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    "settings on a stream": error(frames.frame(FrameType.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "odd settings": error(frames.frame(FrameType.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
    "acknowledgement with settings": error(
        frames.frame(FrameType.SETTINGS, 1, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR
    ),
    "window above its maximum": error(
        frames.settings({Setting.INITIAL_WINDOW_SIZE: WINDOW_MAX + 1}), ErrorCode.FLOW_CONTROL_ERROR
    ),
    "frames above their maximum": error(frames.settings({Setting.MAX_FRAME_SIZE: 1 << 24}), ErrorCode.PROTOCOL_ERROR),
    "frames below their minimum": error(frames.settings({Setting.MAX_FRAME_SIZE: 16_383}), ErrorCode.PROTOCOL_ERROR),
    "push is no switch": error(frames.settings({Setting.ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR),
    "short ping": error(frames.ping(bytes(7), ack=False), ErrorCode.FRAME_SIZE_ERROR),
    "ping on a stream": error(frames.frame(FrameType.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "short goodbye": error(frames.frame(FrameType.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "window update by nothing": error(frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    "window update above the maximum": error(frames.window_update(0, WINDOW_MAX), ErrorCode.FLOW_CONTROL_ERROR),
    "short window update": error(frames.frame(FrameType.WINDOW_UPDATE, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    "undecodable headers": error(frames.frame(FrameType.HEADERS, 4, 1, b"\xff" * 30), ErrorCode.COMPRESSION_ERROR),
    "headers cut short": error(frames.frame(FrameType.HEADERS, 4, 1, BLOCK[:-1]), ErrorCode.COMPRESSION_ERROR),
    "headers of a closed stream": Case(call(1) + headers(1), {1: 0}, ended_by=ErrorCode.STREAM_CLOSED),
}
"""Things that end the connection."""


def greeted(cases: dict[str, Case]) -> dict[str, Case]:
    return {name: case._replace(written=GREETING + case.written) for name, case in cases.items()}


UNGREETED: Final = {
    "nothing": Case(b""),
    "half a preface": Case(PREFACE[:10]),
    "wrong preface": error(b"PRI * HTTP/2.1\r\n\r\nSM\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
    "TLS": error(bytes.fromhex("16030100c8010000c40303") + bytes(200), ErrorCode.PROTOCOL_ERROR),
    "no settings": error(PREFACE + call(1), ErrorCode.PROTOCOL_ERROR),
    "acknowledgement first": error(PREFACE + frames.SETTINGS_ACK, ErrorCode.PROTOCOL_ERROR),
}
CASES: Final = {**greeted(SOUND), **greeted(REFUSED), **greeted(ENDED), **UNGREETED}
