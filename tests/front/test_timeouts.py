"""Connections without progress, on a clock of the test's own."""

from __future__ import annotations

import pytest

from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import ErrorCode, Flag, FrameType, PeerError, Setting
from quarry_mq.protocol.h2.grpc_messages import with_prefix
from quarry_mq.protocol.h2.header_blocks import encode_fields
from quarry_mq.server.front import Call, FrontLimits, Method
from quarry_mq.server.front.h2.call import Client
from quarry_mq.server.front.h2.calls import Calls
from quarry_mq.server.front.h2.connection import Connection
from quarry_mq.server.front.h2.request_head import State
from quarry_mq.server.front.h2.sender import Sender
from quarry_mq.server.front.h2.switchboard import STALE_DEADLINES_MAX, Switchboard
from quarry_mq.server.front.h2.timeouts import IDLE_S, PROBE_AFTER_S, PROBE_ANSWER_S, STALL_S, Timeouts
from quarry_mq.server.front.hello import GREETING_S
from quarry_mq.server.front.resources import FrontResources

GREETING = frames.PREFACE + frames.settings({})
CALL = encode_fields(
    [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/t/Echo"), (b"content-type", b"application/grpc")]
)


class Watched:
    """A connection that is looked at, and what it has said since it was last asked."""

    def __init__(self, greeting: bytes = GREETING) -> None:
        self.kept: list[Call] = []
        board = Switchboard(
            {"/t/Echo": Method(lambda call, _body: self.kept.append(call))},
            FrontResources(FrontLimits()),
            clock=lambda: 0.0,
            soon=lambda callback: callback(),
        )
        self.connection = Connection(board, Client("peer"), lambda: None)
        self.connection.receive(greeting)
        self.timeouts = Timeouts(self.connection, 0.0)
        self.said()

    def said(self) -> bytes:
        return b"".join(self.connection.sender.take())

    def call(self, stream: int) -> None:
        self.connection.receive(frames.frame(FrameType.HEADERS, Flag.END_HEADERS, stream, CALL))
        self.connection.receive(frames.frame(FrameType.DATA, Flag.END_STREAM, stream, with_prefix(b"")))

    def look(self, now_s: float) -> ErrorCode | None:
        ending = self.timeouts.look(now_s)
        return ending.code if isinstance(ending, PeerError) else None


@pytest.mark.parametrize("said", [b"", frames.PREFACE[:20], frames.PREFACE])
def test_a_peer_that_does_not_greet_is_given_ten_seconds(said: bytes) -> None:
    watched = Watched(said)
    assert watched.look(GREETING_S) is None
    assert watched.look(GREETING_S + 1) is ErrorCode.PROTOCOL_ERROR


def test_a_header_block_has_ten_seconds_to_end() -> None:
    watched = Watched()
    watched.connection.receive(frames.frame(FrameType.HEADERS, 0, 1, CALL[:10]))
    watched.connection.receive(frames.frame(FrameType.CONTINUATION, Flag.END_HEADERS, 1, CALL[10:]))
    assert watched.look(GREETING_S + 1) is None
    watched.connection.receive(frames.frame(FrameType.HEADERS, 0, 3, CALL[:10]))
    assert watched.look(GREETING_S) is None
    watched.connection.receive(frames.frame(FrameType.CONTINUATION, 0, 3, b""))
    assert watched.look(GREETING_S + 1) is ErrorCode.PROTOCOL_ERROR


def test_a_silent_peer_is_asked_once_and_then_given_up() -> None:
    watched = Watched()
    watched.look(0.0)
    watched.look(PROBE_AFTER_S)
    assert watched.said() == b""
    watched.look(PROBE_AFTER_S + 1)
    assert watched.said()[3] == FrameType.PING
    assert watched.look(PROBE_AFTER_S + PROBE_ANSWER_S) is None
    assert watched.said() == b""
    assert watched.look(PROBE_AFTER_S + PROBE_ANSWER_S + 1) is ErrorCode.NO_ERROR


def test_dripping_bytes_are_no_sign_of_life_and_an_answer_is() -> None:
    watched = Watched()
    watched.look(0.0)
    watched.look(PROBE_AFTER_S + 1)
    ping = watched.said()
    watched.connection.receive(b"\0")
    assert watched.look(PROBE_AFTER_S + PROBE_ANSWER_S + 1) is ErrorCode.NO_ERROR
    watched = Watched()
    watched.look(0.0)
    watched.look(PROBE_AFTER_S + 1)
    watched.connection.receive(ping[:4] + b"\x01" + ping[5:])
    assert watched.look(PROBE_AFTER_S + PROBE_ANSWER_S + 1) is None


def test_answers_may_lie_here_for_a_minute() -> None:
    watched = Watched(frames.PREFACE + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
    watched.call(1)
    watched.kept[0].reply(b"answer")
    watched.look(0.0)
    assert watched.look(STALL_S) is None
    assert watched.look(STALL_S + 1) is ErrorCode.ENHANCE_YOUR_CALM


def test_an_idle_connection_is_drained_and_then_closed() -> None:
    """A client that pings without calls for ten minutes is not disconnected; one that idles for half an hour is."""
    watched = Watched()
    for minute in range(31):
        watched.connection.receive(frames.ping(b"whatever", ack=False))
        assert watched.look(60.0 * minute) is None
        assert watched.connection.state is State.OPEN
    watched.said()
    watched.connection.receive(frames.ping(b"whatever", ack=False))
    assert watched.look(IDLE_S + 60) is None
    assert watched.connection.state is State.DRAINING
    said = watched.said()
    ping = said[said.index(b"drained?") - 9 :]
    assert watched.look(IDLE_S + 61) is None  # it may have opened a call before it read that
    watched.connection.receive(ping[:4] + b"\x01" + ping[5:])
    assert watched.look(IDLE_S + 62) is ErrorCode.NO_ERROR


def test_an_open_call_is_not_idleness() -> None:
    watched = Watched()
    watched.call(1)
    for minute in range(120):
        watched.connection.receive(frames.ping(b"whatever", ack=False))
        assert watched.look(60.0 * minute) is None
    assert watched.connection.state is State.OPEN
    watched.kept[0].reply(b"")
    watched.connection.receive(frames.ping(b"whatever", ack=False))
    assert watched.look(7_200.0) is None
    assert watched.connection.state is State.OPEN


def test_calls_that_end_long_before_their_deadlines_leave_nothing_after() -> None:
    """A client may set each deadline a thousand years ahead."""
    board = Switchboard(
        {"/t/Unary": Method(lambda _call, _body: None)},
        FrontResources(FrontLimits()),
        clock=lambda: 0.0,
        soon=lambda callback: callback(),
    )
    calls = Calls(board, Client("peer"), Sender(1024, lambda: None))
    for number in range(3 * STALE_DEADLINES_MAX):
        calls.begin(2 * number + 1, (b"/t/Unary", {b"grpc-timeout": b"99999999H"}), client_done=False)
        board.expire(1.0)
        calls.lose_all()
    assert len(board._deadlines) <= STALE_DEADLINES_MAX + 1
    assert board.stats.calls_open == 0
