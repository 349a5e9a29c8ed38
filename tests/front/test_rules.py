"""Tables and counters: which frame may come when, what a peer may spend, and where a connection may go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import ErrorCode, FrameType
from quarry_mq.server.front.h2.limits import BURST, PER_MESSAGE, PER_SECOND, AbuseBudget
from quarry_mq.server.front.h2.request_head import RULES, TRANSITIONS, Outcome, State, StreamState
from tests.front.engine import BIDI, GREETING, KEEP, NOTHING, Engine, call, data, ended_by, headers, resets

LOOKED_UP: Final = {
    StreamState.IDLE: {FrameType.DATA, FrameType.RST_STREAM, FrameType.WINDOW_UPDATE},
    StreamState.HALF_CLOSED: {FrameType.DATA, FrameType.HEADERS},
    StreamState.CLOSED: {FrameType.DATA, FrameType.HEADERS, FrameType.RST_STREAM, FrameType.WINDOW_UPDATE},
    StreamState.RESET: {FrameType.DATA, FrameType.HEADERS, FrameType.RST_STREAM, FrameType.WINDOW_UPDATE},
}
"""HEADERS open an idle stream; a half closed one may still be reset and widened. Other frames know no streams."""

FRAMES: Final[dict[FrameType, Callable[[int], bytes]]] = {
    FrameType.DATA: lambda stream_id: data(stream_id, b"late"),
    FrameType.HEADERS: headers,
    FrameType.RST_STREAM: lambda stream_id: frames.reset(stream_id, ErrorCode.CANCEL),
    FrameType.WINDOW_UPDATE: lambda stream_id: frames.window_update(stream_id, 1),
}


def test_the_table_is_complete_and_has_nothing_else() -> None:
    assert set(RULES) == {(state, kind) for state, kinds in LOOKED_UP.items() for kind in kinds}


def in_state(state: StreamState) -> tuple[Engine, int]:
    """An engine, and a stream of it in that state."""
    engine = Engine().greet()
    match state:
        case StreamState.IDLE:
            return engine, 7
        case StreamState.HALF_CLOSED:
            engine.receive(call(7, path=KEEP))
        case StreamState.CLOSED:
            engine.receive(call(7))
        case StreamState.RESET:
            engine.receive(headers(7, BIDI), frames.window_update(7, 0))
    engine.written()
    return engine, 7


@pytest.mark.parametrize(("state", "kind"), RULES, ids=str)
def test_each_rule_is_followed(state: StreamState, kind: FrameType) -> None:
    rule = RULES[state, kind]
    engine, stream_id = in_state(state)
    engine.receive(FRAMES[kind](stream_id))
    found = engine.frames()
    match rule.outcome:
        case Outcome.IGNORE:
            assert found == []
        case Outcome.RESET_STREAM:
            assert resets(found) == {stream_id: rule.code}
            assert ended_by(found) is None
        case Outcome.END_CONNECTION:
            assert ended_by(found) == rule.code
            assert engine.connection.state is State.OVER
    if state is not StreamState.HALF_CLOSED or rule.outcome is not Outcome.IGNORE:
        assert engine.retained() == NOTHING


@pytest.mark.parametrize("stream_id", [0, 2])
@pytest.mark.parametrize("kind", [FrameType.DATA, FrameType.HEADERS, FrameType.RST_STREAM, FrameType.WINDOW_UPDATE])
def test_streams_no_client_may_use(stream_id: int, kind: FrameType) -> None:
    engine = Engine().greet()
    engine.receive(call(5), FRAMES[kind](stream_id))
    if (stream_id, kind) == (0, FrameType.WINDOW_UPDATE):
        assert ended_by(engine.frames()) is None
    else:
        assert ended_by(engine.frames()) == ErrorCode.PROTOCOL_ERROR


def test_priority_may_come_at_any_time() -> None:
    for state in StreamState:
        engine, stream_id = in_state(state)
        engine.receive(frames.frame(FrameType.PRIORITY, 0, stream_id, bytes(5)))
        assert engine.frames() == []


# -- states of the connection


def test_every_state_can_end() -> None:
    assert set(TRANSITIONS) == set(State)
    assert all(State.OVER in after for state, after in TRANSITIONS.items() if state is not State.OVER)
    assert TRANSITIONS[State.OVER] == set()


@pytest.mark.parametrize("said", range(len(GREETING) + 1))
def test_a_connection_may_drain_wherever_its_greeting_stands(said: int) -> None:
    engine = Engine()
    engine.receive(GREETING[:said])
    engine.connection.drain()
    engine.receive(GREETING[said:] + call(1, b"served"))
    found = engine.frames()
    assert ended_by(found) in (None, ErrorCode.NO_ERROR)
    assert any(each.kind == FrameType.DATA and each.payload.endswith(b"served") for each in found)
    assert engine.retained() == NOTHING


def test_the_first_frame_must_be_settings_also_while_draining() -> None:
    for first in (frames.SETTINGS_ACK, call(1), frames.ping(bytes(8), ack=False)):
        engine = Engine()
        engine.receive(frames.PREFACE)
        engine.connection.drain()
        engine.receive(first)
        assert ended_by(engine.frames()) == ErrorCode.PROTOCOL_ERROR


def test_a_drained_connection_serves_what_was_on_its_way_and_refuses_the_rest() -> None:
    engine = Engine().greet()
    engine.receive(call(1, path=KEEP))
    engine.connection.drain()
    (away, ping) = engine.frames()
    assert (away.kind, ping.kind) == (FrameType.GOAWAY, FrameType.PING)
    engine.receive(call(3, b"on its way"), frames.ping(ping.payload, ack=True), call(5))
    found = engine.frames()
    assert ended_by(found) == ErrorCode.NO_ERROR
    assert resets(found) == {5: ErrorCode.REFUSED_STREAM}
    engine.kept.calls[0].reply(b"late")
    assert [each.stream_id for each in engine.frames()] == [1, 1, 1]
    assert engine.retained() == NOTHING


# -- what a peer may spend


def test_a_burst_and_not_one_more() -> None:
    abuse_budget = AbuseBudget(now_s=5.0)
    assert all(abuse_budget.spend(1, 0, 5.0) for _ in range(BURST))
    assert not abuse_budget.spend(1, 0, 5.0)


def test_a_steady_rate_for_ever() -> None:
    abuse_budget = AbuseBudget(now_s=0.0)
    for second in range(100):
        assert all(abuse_budget.spend(1, 0, second + 1.0) for _ in range(PER_SECOND))


def test_twice_the_rate_ends() -> None:
    abuse_budget = AbuseBudget(now_s=0.0)
    spent = 0
    while abuse_budget.spend(1, 0, spent / (2 * PER_SECOND)):
        spent += 1
    assert 2 * BURST - 10 <= spent <= 2 * BURST + PER_SECOND


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.floats(0, 1)), max_size=50))
def test_never_more_than_was_earned_or_less_than_is_due(steps: list[tuple[int, int, float]]) -> None:
    abuse_budget = AbuseBudget(now_s=0.0)
    spent, messages, now_s = 0, 0, 0.0
    for amount, exchanged, passed_s in steps:
        messages, now_s, spent = messages + exchanged, now_s + passed_s, spent + amount * 100
        may_spend = abuse_budget.spend(amount * 100, messages, now_s)
        if may_spend:
            assert spent <= BURST + now_s * PER_SECOND + messages * PER_MESSAGE
        else:
            assert spent > BURST
            break
