"""The first bytes of clients of the h2 front: HTTP/2's preface or a request of HTTP/1, and the answers to both."""

from __future__ import annotations

from enum import Enum
from typing import Final

from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import PREFACE, WINDOW_DEFAULT, Setting
from quarry_mq.server.front.h2.calls import CONNECTION_WINDOW, STREAM_WINDOW, STREAMS_MAX

_HTTP_1: Final = (b"GET ", b"POST ", b"HEAD ", b"PUT ", b"OPTIONS ", b"DELETE ", b"PATCH ", b"CONNECT ", b"TRACE ")
HTTP_1_ANSWER: Final = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Type: text/plain\r\nContent-Length: 43\r\n"
    b"Connection: close\r\n\r\nThis port speaks gRPC, which needs HTTP/2.\r\n"
)


class Greeting(Enum):
    """The kind of a connection's first bytes."""

    PREFACE = "the preface"
    BEGINNING = "the beginning of something that is understood"
    HTTP_1 = "a request of HTTP/1"
    ELSE = "anything else"


def greeting_in(data: bytes) -> Greeting:
    known = min(len(data), len(PREFACE))
    if data[:known] == PREFACE[:known]:
        return Greeting.PREFACE if known == len(PREFACE) else Greeting.BEGINNING
    if data.startswith(_HTTP_1):
        return Greeting.HTTP_1
    return Greeting.BEGINNING if any(each.startswith(data) for each in _HTTP_1) else Greeting.ELSE


def answer_to_preface(metadata_size_max: int) -> bytes:
    """Return the broker's settings, and the window of the connection."""
    return frames.settings(
        {
            Setting.HEADER_TABLE_SIZE: 0,
            Setting.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            Setting.MAX_HEADER_LIST_SIZE: metadata_size_max,
        }
    ) + frames.window_update(0, CONNECTION_WINDOW - WINDOW_DEFAULT)
