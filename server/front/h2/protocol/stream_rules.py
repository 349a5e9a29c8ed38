"""The rules for frames on a stream that is not simply open, and their consequences (RFC 9113 §5.1).

The fast path knows open calls; every other case is looked up here. `docs/front.md` shows the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from quarry_mq.protocol.h2.frames import ErrorCode, FrameType


class StreamState(Enum):
    """The state of a stream as the peer left it.

    Open streams are calls; whether the broker has ended its side does not matter here.
    """

    IDLE = "idle"
    HALF_CLOSED = "half closed by the peer"
    CLOSED = "closed"
    RESET = "reset by us"
    """The broker has reset the stream recently, so frames that the peer sent before it knew may still come."""


class Outcome(Enum):
    IGNORE = "ignore"
    RESET_STREAM = "reset the stream"
    END_CONNECTION = "end the connection"


class Rule(NamedTuple):
    outcome: Outcome
    code: ErrorCode = ErrorCode.NO_ERROR


_IGNORE: Final = Rule(Outcome.IGNORE)
_NOT_BEFORE_HEADERS: Final = Rule(Outcome.END_CONNECTION, ErrorCode.PROTOCOL_ERROR)
_NO_MORE: Final = Rule(Outcome.RESET_STREAM, ErrorCode.STREAM_CLOSED)

RULES: Final[Mapping[tuple[StreamState, FrameType], Rule]] = {
    (StreamState.IDLE, FrameType.DATA): _NOT_BEFORE_HEADERS,
    (StreamState.IDLE, FrameType.RST_STREAM): _NOT_BEFORE_HEADERS,
    (StreamState.IDLE, FrameType.WINDOW_UPDATE): _NOT_BEFORE_HEADERS,
    (StreamState.HALF_CLOSED, FrameType.DATA): _NO_MORE,
    (StreamState.HALF_CLOSED, FrameType.HEADERS): _NO_MORE,
    (StreamState.CLOSED, FrameType.DATA): _NO_MORE,
    (StreamState.CLOSED, FrameType.HEADERS): Rule(Outcome.END_CONNECTION, ErrorCode.STREAM_CLOSED),
    (StreamState.CLOSED, FrameType.RST_STREAM): _IGNORE,
    (StreamState.CLOSED, FrameType.WINDOW_UPDATE): _IGNORE,
    (StreamState.RESET, FrameType.DATA): _IGNORE,
    (StreamState.RESET, FrameType.HEADERS): _IGNORE,
    (StreamState.RESET, FrameType.RST_STREAM): _IGNORE,
    (StreamState.RESET, FrameType.WINDOW_UPDATE): _IGNORE,
}
