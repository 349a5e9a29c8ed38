"""A client with streams and windows, and the handlers behind the engine, in any order, against a model of both.

After every step all that the engine has to say is read. Checked each time: flow control, that answers come once, whole
and in order, that nothing waits which may go, and that the engine's counts are the model's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import (
    FRAME_SIZE_MAX,
    WINDOW_DEFAULT,
    ErrorCode,
    Flag,
    FrameType,
    Setting,
)
from quarry_mq.protocol.h2.grpc_messages import with_prefix
from quarry_mq.server.front import Call, Method
from quarry_mq.server.front.h2.call import H2Call
from quarry_mq.server.front.h2.sender import WAITING_CALL_SIZE
from quarry_mq.server.front.h2.switchboard import WHOLE_REQUEST_S
from tests.front.engine import NOTHING, Engine, Frame, data, headers, statuses

UNARY: Final = "/model/Unary"
STREAM: Final = "/model/Stream"
BIDI: Final = "/model/Bidi"
TIMEOUT_S: Final = 5


@dataclass(eq=False)
class Stream:
    """State of one stream in the model. Sizes and windows are in bytes, as the client sees them."""

    stream_id: int
    path: str
    window: int
    opened_at_s: float
    deadline_s: float | None
    asked: list[bytes] = field(default_factory=list)
    half_closed: bool = False
    cancelled: bool = False
    expired: bool = False
    answered: bytes = b""
    finished: GrpcStatus | None = None
    received: bytes = b""
    status: int | None = None
    reset_by: int | None = None

    @property
    def is_open(self) -> bool:
        """Return whether something may still come on the stream."""
        return not self.cancelled and self.status is None and self.reset_by is None


def is_open(stream: Stream) -> bool:
    return stream.is_open


def may_say(stream: Stream) -> bool:
    return stream.is_open and not stream.half_closed


def any_that(holds: Callable[[Stream], bool]) -> Callable[[FrontMachine], bool]:
    return lambda machine: any(map(holds, machine.model.values()))


class FrontMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[int, list[bytes]] = {}
        self.calls: dict[int, Call] = {}
        self.lost: list[int] = []
        self.half_closed: set[int] = set()
        served = {
            UNARY: Method(self.hear),
            STREAM: Method(self.hear, streaming_out=True),
            BIDI: Method(
                self.hear,
                streaming_in=True,
                streaming_out=True,
                on_open=self.meet,
                on_half_close=lambda call: self.half_closed.add(stream_id_of(call)),
            ),
        }
        self.engine = Engine(served).greet()
        self.model: dict[int, Stream] = {}
        self.window = WINDOW_DEFAULT
        self.initial_window = WINDOW_DEFAULT
        self.next_stream_id = 1

    # -- the handlers

    def meet(self, call: Call) -> None:
        stream_id = stream_id_of(call)
        assert stream_id not in self.calls
        self.calls[stream_id] = call
        call.on_close(lambda: self.lost.append(stream_id))

    def hear(self, call: Call, body: bytes) -> None:
        if stream_id_of(call) not in self.calls:
            self.meet(call)
        self.heard.setdefault(stream_id_of(call), []).append(body)

    def one_that(self, holds: Callable[[Stream], bool], draw: st.DataObject) -> Stream:
        return draw.draw(st.sampled_from([each for each in self.model.values() if holds(each)]))

    def is_answerable(self, stream: Stream) -> bool:
        return stream.stream_id in self.calls and stream.is_open

    # -- what the client does

    @initialize(size=st.sampled_from([0, 10, 1_000, WINDOW_DEFAULT]))
    def begin(self, size: int) -> None:
        self.change_initial_window(size)

    @rule(path=st.sampled_from([UNARY, STREAM, BIDI]), timeout=st.booleans(), asks=st.sampled_from([True, True, False]))
    def open(self, path: str, timeout: bool, asks: bool) -> None:
        now_s = self.engine.clock.now_s
        stream = Stream(self.next_stream_id, path, self.initial_window, now_s, now_s + TIMEOUT_S if timeout else None)
        self.next_stream_id += 2
        self.model[stream.stream_id] = stream
        self.engine.receive(headers(stream.stream_id, path, [(b"grpc-timeout", b"5S")] if timeout else []))
        if asks:
            self.ask(stream, b"a question", [])

    @precondition(any_that(may_say))
    @rule(draw=st.data(), body=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=3))
    def say(self, draw: st.DataObject, body: bytes, cuts: list[int]) -> None:
        """One message in pieces. With it a call that takes only one has been asked."""
        self.ask(self.one_that(may_say, draw), body, cuts)

    def ask(self, stream: Stream, body: bytes, cuts: list[int]) -> None:
        is_last = stream.path != BIDI
        message = with_prefix(body)
        places = sorted({0, len(message), *(cut for cut in cuts if cut < len(message))})
        stream.half_closed = is_last
        if stream.finished is None:
            stream.asked.append(body)
        for start, end in pairwise(places):
            self.engine.receive(data(stream.stream_id, message[start:end], last=is_last and end == len(message)))

    @precondition(any_that(may_say))
    @rule(draw=st.data())
    def half_close(self, draw: st.DataObject) -> None:
        stream = self.one_that(may_say, draw)
        if stream.path == BIDI:
            stream.half_closed = True
            self.engine.receive(data(stream.stream_id, b"", last=True))
            assert (stream.stream_id in self.half_closed) == (stream.finished is None)

    @precondition(any_that(is_open))
    @rule(draw=st.data())
    def cancel(self, draw: st.DataObject) -> None:
        stream = self.one_that(is_open, draw)
        stream.cancelled = True
        self.engine.receive(frames.reset(stream.stream_id, ErrorCode.CANCEL))

    @precondition(any_that(lambda stream: True))
    @rule(draw=st.data(), increment=st.integers(1, 3) | st.integers(1, 100_000))
    def widen_stream(self, draw: st.DataObject, increment: int) -> None:
        """Of any stream: it may have ended before the client knew."""
        stream = self.one_that(is_open if any_that(is_open)(self) else lambda stream: True, draw)
        stream.window += increment
        self.engine.receive(frames.window_update(stream.stream_id, increment))

    @rule(increment=st.integers(1, 3) | st.integers(1, 100_000))
    def widen_connection(self, increment: int) -> None:
        self.window += increment
        self.engine.receive(frames.window_update(0, increment))

    @rule(size=st.sampled_from([0, 1, 100, 5_000, WINDOW_DEFAULT]))
    def change_initial_window(self, size: int) -> None:
        for stream in self.model.values():
            stream.window += size - self.initial_window
        self.initial_window = size
        self.engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: size}))

    # -- what the handlers do

    @precondition(lambda self: any(map(self.is_answerable, self.model.values())))
    @rule(draw=st.data(), sizes=st.lists(st.integers(0, 50) | st.integers(0, 40_000), min_size=1, max_size=5))
    def answer(self, draw: st.DataObject, sizes: list[int]) -> None:
        stream = self.one_that(self.is_answerable, draw)
        for size in sizes:
            self.send(stream, bytes([len(stream.answered) % 251]) * size)

    def send(self, stream: Stream, body: bytes) -> None:
        call = self.calls[stream.stream_id]
        if not call.closed:
            stream.answered += with_prefix(body)
        if stream.path == UNARY:
            if not call.closed:
                stream.finished = GrpcStatus.OK
            call.reply(body)
        else:
            call.send(body)

    @precondition(lambda self: any(map(self.is_answerable, self.model.values())))
    @rule(draw=st.data(), status=st.sampled_from([GrpcStatus.OK, GrpcStatus.INTERNAL]))
    def finish(self, draw: st.DataObject, status: GrpcStatus) -> None:
        stream = self.one_that(self.is_answerable, draw)
        call = self.calls[stream.stream_id]
        if stream.path == UNARY and status == GrpcStatus.OK:
            return
        if not call.closed:
            stream.finished = status
        call.finish(status)

    # -- what happens to both

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 4.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.engine.board.expire(self.engine.clock.now_s)
        self.engine.clock.now_s += seconds
        now_s = self.engine.clock.now_s
        for stream in self.model.values():
            whole_by_s = stream.opened_at_s + WHOLE_REQUEST_S
            is_late = stream.path != BIDI and not stream.half_closed and whole_by_s <= now_s
            if stream.is_open and (is_late or (stream.deadline_s is not None and stream.deadline_s <= now_s)):
                stream.expired = True
        self.engine.board.expire(now_s)

    @rule(paused=st.booleans())
    def the_transport_is(self, paused: bool) -> None:
        self.engine.connection.sender.is_paused = paused
        if not paused:
            self.engine.connection.sender.pump()

    # -- what must hold

    def read(self, found: list[Frame]) -> None:
        for each in found:
            stream = self.model.get(each.stream_id)
            if stream is None:
                assert each.kind in (FrameType.SETTINGS, FrameType.WINDOW_UPDATE)
                continue
            if each.kind == FrameType.WINDOW_UPDATE:
                continue
            if each.kind == FrameType.RST_STREAM:
                assert stream.reset_by is None
                stream.reset_by = each.code
                continue
            assert stream.is_open, f"{FrameType(each.kind).name} on a stream that has ended"
            if each.kind == FrameType.DATA:
                stream.received += each.payload
                stream.window -= len(each.payload)
                self.window -= len(each.payload)
                assert stream.window >= 0
                assert self.window >= 0
                assert len(each.payload) <= FRAME_SIZE_MAX
            elif each.flags & Flag.END_STREAM:
                stream.status = statuses([each])[each.stream_id]

    @invariant()
    def answers_come_once_whole_and_in_order(self) -> None:
        self.read(self.engine.all_frames())
        paused = self.engine.connection.sender.is_paused
        for stream in self.model.values():
            if stream.cancelled:
                continue
            assert stream.answered.startswith(stream.received)
            if stream.status is not None:
                assert stream.received == stream.answered
                expected = GrpcStatus.DEADLINE_EXCEEDED if stream.expired else stream.finished
                assert stream.status == expected
                assert stream.reset_by == (None if stream.half_closed else ErrorCode.NO_ERROR)
            elif stream.reset_by is not None:
                assert stream.expired
                assert stream.reset_by == ErrorCode.CANCEL
            elif not paused and (stream.received == stream.answered or (self.window > 0 and stream.window > 0)):
                assert stream.received == stream.answered, "what may go waits"
                assert stream.finished is None
                assert not stream.expired

    @invariant()
    def handlers_hear_each_message_once(self) -> None:
        for stream in self.model.values():
            assert self.heard.get(stream.stream_id, []) == stream.asked
        assert len(self.lost) == len(set(self.lost))
        for stream_id in self.lost:
            assert self.model[stream_id].cancelled or self.model[stream_id].expired

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        still_open = {each.stream_id: each for each in self.model.values() if each.is_open}
        connection = self.engine.connection
        assert connection.calls.open.keys() == still_open.keys()
        assert self.engine.stats.calls_open == len(still_open)
        waiting = sum(len(each.answered) - len(each.received) for each in still_open.values())
        calls_waiting = sum(call.outbox is not None for call in connection.calls.open.values())
        assert connection.sender.waiting_size == waiting + calls_waiting * WAITING_CALL_SIZE
        assert connection.ended_with is None

    def teardown(self) -> None:
        """Whatever was left: when all have ended, or the connection has, nothing is kept."""
        self.engine.connection.sender.is_paused = False
        self.engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 2**24}), frames.window_update(0, 2**24))
        for call in self.calls.values():
            if stream_id_of(call) % 4 == 1:
                call.finish(GrpcStatus.INTERNAL)
        self.engine.all_frames()
        self.engine.connection.lost()
        assert self.engine.retained() == NOTHING
        for stream_id, call in self.calls.items():
            assert call.closed
            assert self.lost.count(stream_id) <= 1


def stream_id_of(call: Call) -> int:
    assert isinstance(call, H2Call)
    return call.stream_id


TestFront = FrontMachine.TestCase
TestFront.settings = settings(max_examples=150, stateful_step_count=60)
