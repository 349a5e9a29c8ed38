"""Calls at their edges: handlers that end, refuse or fail at the earliest moment, and what is asked of ended calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import ErrorCode, Flag, Setting
from quarry_mq.protocol.h2.grpc_messages import with_prefix
from quarry_mq.server.front import Call, FrontLimits, Method
from quarry_mq.server.front.h2.call import H2Call
from tests.front.engine import BIDI, ECHO, KEEP, NOTHING, Engine, Kept, call, data, headers, resets, statuses


def fault(_call: Call) -> None:
    raise RuntimeError("a fault of the handler")


def ignore(_call: Call, _body: bytes) -> None:
    """Takes messages and does nothing."""


def both_ways(on_open: Callable[[Call], None] | None = None, at_end: Callable[[Call], None] | None = None) -> Engine:
    method = Method(ignore, streaming_in=True, streaming_out=True, on_open=on_open, on_half_close=at_end)
    return Engine({BIDI: method}).greet()


@pytest.mark.parametrize("whole", [False, True])
def test_a_call_that_ends_as_it_opens(whole: bool) -> None:
    """The stream of a request that was whole is closed by the trailers: nothing may follow them."""
    engine = both_ways(on_open=lambda call: call.finish(GrpcStatus.UNAVAILABLE))
    engine.receive(headers(1, BIDI, flags=Flag.END_HEADERS | (Flag.END_STREAM if whole else 0)))
    found = engine.frames()
    assert statuses(found) == {1: 14}
    assert resets(found) == ({} if whole else {1: ErrorCode.NO_ERROR})
    assert engine.retained() == NOTHING


@pytest.mark.parametrize("when", ["on_open", "at_end"])
def test_handlers_that_raise(when: str) -> None:
    engine = both_ways(**{when: fault})
    engine.receive(headers(1, BIDI), data(1, with_prefix(b"x"), last=True))
    assert statuses(engine.frames()) == {1: 13}
    assert engine.retained() == NOTHING


def test_more_open_calls_than_all_connections_may_have() -> None:
    engine = Engine(limits=FrontLimits(max_open_calls=2)).greet()
    for stream_id in (1, 3, 5):
        engine.receive(call(stream_id, path=KEEP))
    assert statuses(engine.frames()) == {5: 8}
    engine.kept.calls[0].reply(b"")
    engine.receive(call(7, path=KEEP))
    assert statuses(engine.frames()) == {1: 0}


def test_a_lost_call_tells_whoever_asks_later() -> None:
    engine = Engine().greet()
    engine.receive(call(1, path=KEEP), frames.reset(1, ErrorCode.CANCEL))
    (kept,) = engine.kept.calls
    assert engine.kept.lost == [kept]
    told: list[str] = []
    kept.on_close(lambda: told.append("late"))
    kept.on_drain(lambda: told.append("never"))
    kept.reply(b"dropped")
    assert told == []
    for callback in engine.later:
        callback()
    assert told == ["late"]
    assert engine.frames() == []


def test_callbacks_that_raise_stop_no_others() -> None:
    engine = Engine().greet()
    engine.receive(call(1, path=KEEP))
    (kept,) = engine.kept.calls
    told: list[str] = []
    kept.on_close(lambda: fault(kept))
    kept.on_close(lambda: told.append("told"))
    engine.connection.lost()
    assert told == ["told"]


def test_an_ended_call_whose_answer_waits_is_lost_when_its_client_leaves() -> None:
    engine = Engine().greet()
    engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}), call(1, path=KEEP))
    (kept,) = engine.kept.calls
    kept.reply(b"waits")
    told: list[str] = []
    kept.on_close(lambda: told.append("lost"))
    assert kept.closed
    engine.receive(frames.reset(1, ErrorCode.CANCEL))
    assert told == ["lost"]
    assert engine.retained() == NOTHING


def test_an_answer_has_begun_when_its_first_byte_was_handed_on() -> None:
    engine = Engine({KEEP: Method(kept := Kept(), streaming_out=True)}).greet()
    engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}), call(1, path=KEEP))
    (streamed,) = kept.calls
    begun: list[bool] = []
    streamed.on_close(lambda: begun.append(streamed.has_begun))
    streamed.send_all([b"status", b"message"])
    streamed.finish()
    engine.written()
    steps = [streamed.has_begun]  # headers, and what waits for the client's window, say nothing
    engine.receive(frames.window_update(1, 1))
    steps.append(streamed.has_begun)
    engine.written()
    assert [*steps, streamed.has_begun] == [False, False, True]
    engine.receive(frames.reset(1, ErrorCode.CANCEL))
    assert begun == [True]
    assert engine.retained() == NOTHING


@pytest.mark.parametrize("is_taken", [False, True])
def test_an_answer_that_was_not_handed_on_when_the_transport_went_never_left(is_taken: bool) -> None:
    engine = Engine({KEEP: Method(kept := Kept(), streaming_out=True)}).greet()
    engine.receive(call(1, path=KEEP))
    (streamed,) = kept.calls
    begun: list[bool] = []
    streamed.on_close(lambda: begun.append(streamed.has_begun))
    streamed.send_all([b"status", b"message"])
    streamed.finish()
    if is_taken:
        engine.written()
    engine.connection.lost()
    assert begun == ([] if is_taken else [False])
    assert streamed.has_begun is is_taken
    assert engine.retained() == NOTHING


def test_what_a_handler_may_ask() -> None:
    engine = Engine().greet()
    extra = [(b"x-name", b"value"), (b"grpc-timeout", b"10S"), (b"trace-bin", b"AAAA"), (b"bad", b"a\nb")]
    engine.receive(call(1, path=KEEP, extra=extra))
    (kept,) = engine.kept.calls
    engine.clock.now_s += 4.0
    assert kept.remaining_s() == 6.0
    assert kept.header("x-name") == "value"
    assert kept.header("bad") is None
    assert kept.header("missing") is None
    assert kept.metadata().keys() == {"content-type", "te", "x-name", "grpc-timeout"}
    engine.clock.now_s += 100.0
    assert kept.remaining_s() == 0.0
    assert kept.peer == "127.0.0.1:5"
    assert kept.peer_certificate is None


def test_ways_to_end_a_call_that_are_mistakes() -> None:
    engine = Engine().greet()
    engine.receive(call(1, path=KEEP), headers(3, BIDI))
    unary, stream = engine.kept.calls[0], engine.connection.calls.open[3]
    assert isinstance(stream, H2Call)
    for mistake in (lambda: unary.send(b""), unary.finish, lambda: stream.reply(b"")):
        with pytest.raises(ValueError, match=r"reply|send"):
            mistake()


def test_the_server_stops() -> None:
    engine = Engine().greet()
    engine.receive(call(1, path=KEEP), call(3, path=ECHO))
    engine.written()
    engine.connection.stop()
    found = engine.frames()
    assert statuses(found) == {1: 14}
    assert engine.kept.lost == engine.kept.calls
    assert engine.retained() == NOTHING
    engine.connection.stop()
    assert engine.frames() == []
