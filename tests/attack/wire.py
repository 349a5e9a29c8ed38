"""Whole gRPC calls as bytes, made beforehand: an attack must cost the attacker little."""

from __future__ import annotations

import time
from struct import Struct
from typing import Final

from quarry_mq.protocol.h2.frames import Flag, FrameType, Setting, frame, settings, window_update
from quarry_mq.protocol.h2.header_blocks import encode_fields
from quarry_mq.protocol.signature import signed_messaging_headers
from tests.hostile.http2 import PREFACE, SERVICE

PREFIX: Final = Struct(">BI")
STREAM_OF: Final = range(1, 1 << 31, 2)
WIDE_GREETING: Final = (
    PREFACE + settings({Setting.INITIAL_WINDOW_SIZE: 2**31 - 1}) + window_update(0, 2**31 - 1 - 65_535)
)
"""Windows as wide as they can be: answers never wait for the client's leave."""

Headers = tuple[tuple[bytes, bytes], ...]

SHUT_GREETING: Final = PREFACE + settings({Setting.INITIAL_WINDOW_SIZE: 0})
"""No answer ever gets the client's leave."""

TABLE_SIZE_0: Final = b"\x20"
FRAME_SIZE: Final = 16_384


def signed(user: str, secret: str, *, off_s: float = 0.0) -> Headers:
    """What says who calls; the date is so far off."""
    headers = signed_messaging_headers(user, secret, now_ms=int((time.time() + off_s) * 1000))
    return tuple((name.encode(), value.encode()) for name, value in headers)


def block(method: str, *extra: tuple[bytes, bytes], client_id: bytes = b"hostile") -> bytes:
    """The header block of a call, as clients send it that obey our table size of 0."""
    return encode_fields(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", (SERVICE + method).encode()),
            (b":authority", b"broker"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"x-mq-client-id", client_id),
            *extra,
        ]
    )


def call(number: int, head: bytes, body: bytes, *, end: bool = True) -> bytes:
    """The `number`-th call of a connection, from 0 on."""
    stream = STREAM_OF[number]
    message = PREFIX.pack(0, len(body)) + body
    pieces = [message[at : at + FRAME_SIZE] for at in range(0, len(message), FRAME_SIZE)]
    first = TABLE_SIZE_0 + head if number == 0 else head
    written = [frame(FrameType.HEADERS, Flag.END_HEADERS, stream, first)]
    written += [frame(FrameType.DATA, 0, stream, each) for each in pieces[:-1]]
    written.append(frame(FrameType.DATA, Flag.END_STREAM if end else 0, stream, pieces[-1]))
    return b"".join(written)
