"""HTTP/2 frames: numbers, layouts, and the few frames that this server writes (RFC 9113 §4, §6, §7).

3 bytes length │ 1 type │ 1 flags │ 4 stream (upper bit reserved) │ payload
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The bytes that a client sends before its first frame (§3.4)."""

FRAME_HEAD: Final = Struct(">BHBBI")
"""High byte and low bytes of the length, type, flags, stream."""

FRAME_HEAD_SIZE: Final = FRAME_HEAD.size
STREAM_MASK: Final = 0x7FFF_FFFF
FRAME_SIZE_MAX: Final = 16_384
"""Largest payload that is accepted and sent: the protocol's default, which every peer must accept (§4.2)."""

WINDOW_MAX: Final = 0x7FFF_FFFF
WINDOW_DEFAULT: Final = 65_535
HEADER_TABLE_SIZE_DEFAULT: Final = 4_096

U32: Final = Struct(">I")
SETTING: Final = Struct(">HI")

assert FRAME_HEAD_SIZE == 9


class FrameType(IntEnum):
    """The ten frame types of HTTP/2. Others are ignored (§5.5)."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag:
    """Bits of the flags byte; their meaning depends on the frame type."""

    END_STREAM: Final = 0x01
    ACK: Final = 0x01
    END_HEADERS: Final = 0x04
    PADDED: Final = 0x08
    PRIORITY: Final = 0x20


class ErrorCode(IntEnum):
    """The reasons for which a stream or a connection ends (§7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Setting(IntEnum):
    """Parameters of a SETTINGS frame (§6.5.2)."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class PeerError(Exception):
    """The peer broke the protocol in a way that ends the connection; `code` and `reason` are sent to it by GOAWAY."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


def frame(kind: FrameType, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return FRAME_HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def settings(values: Mapping[Setting, int]) -> bytes:
    return frame(FrameType.SETTINGS, 0, 0, b"".join(SETTING.pack(each, value) for each, value in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, U32.pack(increment))


def reset(stream_id: int, code: ErrorCode) -> bytes:
    return frame(FrameType.RST_STREAM, 0, stream_id, U32.pack(code))


def go_away(last_stream_id: int, code: ErrorCode, reason: str = "") -> bytes:
    return frame(FrameType.GOAWAY, 0, 0, U32.pack(last_stream_id) + U32.pack(code) + reason.encode())


def ping(opaque: bytes, *, ack: bool) -> bytes:
    return frame(FrameType.PING, Flag.ACK if ack else 0, 0, opaque)


SETTINGS_ACK: Final = frame(FrameType.SETTINGS, Flag.ACK, 0)


def unpadded(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the start and end of the payload in a padded frame (§6.1). Raises PeerError."""
    if start == end or data[start] >= end - start:
        raise PeerError(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return start + 1, end - data[start]


def check_dependency(stream_id: int, data: bytes, start: int, end: int) -> None:
    """Raise PeerError for a stream that depends on itself. Apart from that, priorities are ignored (§5.3)."""
    if end - start < 5:
        raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "no space for the priority")
    if U32.unpack_from(data, start)[0] & STREAM_MASK == stream_id:
        raise PeerError(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} depends on itself")
