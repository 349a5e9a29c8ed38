"""The sending side: both windows, turns, order, negative windows, and what may wait."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import (
    FRAME_SIZE_MAX,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    ErrorCode,
    FrameType,
    Setting,
)
from quarry_mq.protocol.h2.grpc_messages import MESSAGE_PREFIX_SIZE, with_prefix
from quarry_mq.server.front import Call, FrontLimits, Method
from quarry_mq.server.front.h2 import sender as sending
from quarry_mq.server.front.h2.sender import WAITING_CALL_SIZE
from tests.front.engine import (
    ECHO,
    KEEP,
    NOTHING,
    Engine,
    Frame,
    Kept,
    body_of,
    call,
    ended_by,
    frames_of,
    resets,
    statuses,
)


def streaming(kept: Kept, limits: FrontLimits | None = None) -> Engine:
    """Calls that a test answers itself."""
    return Engine({KEEP: Method(kept, streaming_out=True), ECHO: Method(kept)}, limits).greet()


def opened(
    count: int, limits: FrontLimits | None = None, initial_window: int = WINDOW_DEFAULT
) -> tuple[Engine, list[Call]]:
    kept = Kept()
    engine = streaming(kept, limits)
    engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: initial_window}))
    for number in range(count):
        engine.receive(call(2 * number + 1, path=KEEP))
    engine.written()
    return engine, kept.calls


def data_of(found: list[Frame]) -> list[tuple[int, int]]:
    return [(each.stream_id, len(each.payload)) for each in found if each.kind == FrameType.DATA]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50_000)), max_size=8),
    st.integers(0, 100_000),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60_000)), max_size=30),
)
def test_neither_window_is_exceeded(
    sent: list[tuple[int, int]], initial_window: int, updates: list[tuple[int, int]]
) -> None:
    engine, calls = opened(3, initial_window=initial_window)
    connection_window, windows = WINDOW_DEFAULT, dict.fromkeys((1, 3, 5), initial_window)
    expected = {1: b"", 3: b"", 5: b""}
    found: list[Frame] = []
    for number, (which, size) in enumerate(sent):
        body = bytes([number]) * size
        calls[which].send(body)
        expected[2 * which + 1] += with_prefix(body)
    for each in calls:
        each.finish()
    for which, increment in [*updates, (3, 10_000_000), (0, 10_000_000), (1, 10_000_000), (2, 10_000_000)]:
        if 2 * which + 1 in engine.connection.calls.open or which == 3:
            engine.receive(frames.window_update(0 if which == 3 else 2 * which + 1, increment))
            if which == 3:
                connection_window += increment
            else:
                windows[2 * which + 1] += increment
        for stream_id, size in data_of(taken := engine.all_frames()):
            connection_window -= size
            windows[stream_id] -= size
            assert connection_window >= 0
            assert windows[stream_id] >= 0
            assert size <= FRAME_SIZE_MAX
        found += taken
    assert {stream_id: body_of(found, stream_id) for stream_id in expected} == expected
    assert statuses(found) == {1: 0, 3: 0, 5: 0}
    assert engine.retained() == NOTHING


def test_calls_take_turns() -> None:
    engine, calls = opened(3)
    engine.receive(frames.window_update(0, 2**20))
    engine.connection.sender.is_paused = True
    for each in calls:
        each.send(bytes(3 * FRAME_SIZE_MAX))
    engine.connection.sender.is_paused = False
    engine.connection.sender.pump()
    scheduler = [stream_id for stream_id, _ in data_of(engine.frames())]
    assert scheduler[:9] == [1, 3, 5] * 3


def test_a_stream_without_window_holds_nobody_up() -> None:
    engine, calls = opened(2, initial_window=10)
    calls[0].send(bytes(100))
    engine.receive(frames.window_update(3, 1_000))
    calls[1].send(bytes(500))
    assert data_of(engine.frames()) == [(1, 10), (3, 505)]
    engine.receive(frames.window_update(1, 1))
    assert data_of(engine.frames()) == [(1, 1)]


def test_small_answers_pass_large_ones_that_wait() -> None:
    engine, calls = opened(1, initial_window=100)
    calls[0].send(bytes(1_000))
    engine.receive(call(3, path=ECHO))
    calls[1].reply(b"small")
    assert data_of(engine.frames()) == [(1, 100), (3, 5 + MESSAGE_PREFIX_SIZE)]


def test_messages_of_a_call_keep_their_order() -> None:
    engine, calls = opened(1, initial_window=3)
    expected = b""
    for number in range(50):
        calls[0].send(b"%d" % number)
        expected += with_prefix(b"%d" % number)
    found = engine.frames()
    for _ in range(len(expected)):
        engine.receive(frames.window_update(1, 1))
        found += engine.frames()
    assert body_of(found, 1) == expected


def test_a_window_may_become_negative() -> None:
    engine, calls = opened(1, initial_window=100)
    calls[0].send(bytes(300))
    assert data_of(engine.frames()) == [(1, 100)]
    engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))  # now -100
    engine.receive(frames.window_update(1, 100))
    assert data_of(engine.frames()) == []
    engine.receive(frames.window_update(1, 1))
    assert data_of(engine.frames()) == [(1, 1)]
    engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 50}))
    assert data_of(engine.frames()) == [(1, 50)]


def test_windows_that_grow_too_large() -> None:
    engine, _ = opened(1)
    engine.receive(frames.window_update(1, WINDOW_MAX))
    assert resets(engine.frames()) == {1: ErrorCode.FLOW_CONTROL_ERROR}
    engine.receive(frames.window_update(0, WINDOW_MAX))
    assert ended_by(engine.frames()) == ErrorCode.FLOW_CONTROL_ERROR


def test_a_setting_that_makes_a_window_too_large() -> None:
    engine, _ = opened(1)
    engine.receive(frames.window_update(1, WINDOW_MAX - WINDOW_DEFAULT))
    engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: WINDOW_DEFAULT + 1}))
    assert ended_by(engine.frames()) == ErrorCode.FLOW_CONTROL_ERROR


def test_one_pass_hands_on_a_bounded_amount() -> None:
    for path in (ECHO, KEEP):
        kept = Kept()
        engine = streaming(kept)
        engine.receive(frames.window_update(0, 2**30))
        for number in range(300):
            engine.receive(call(2 * number + 1, path=path))
        engine.written()
        for each in kept.calls:
            if path == KEEP:
                each.send(bytes(16_000))
                each.finish()
            else:
                each.reply(bytes(16_000))
        first = engine.written()
        assert len(first) < sending.UNWRITTEN_MAX + 300 * 100
        engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 100_000}))
        found = [*frames_of(first), *engine.all_frames()]
        assert sum(size for _, size in data_of(found)) == 300 * (16_000 + MESSAGE_PREFIX_SIZE)
        assert engine.retained() == NOTHING


def test_a_client_that_leaves_too_much_lying_loses_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "WAITING_MAX", 100_000)
    engine, calls = opened(3, initial_window=0)
    calls[0].send(bytes(60_000))
    calls[1].send(bytes(60_000))
    assert not calls[0].closed
    calls[2].send(b"one more")
    assert calls[2].closed
    assert statuses(engine.frames()) == {5: 8}
    calls[1].send(bytes(60_000))
    assert calls[1].closed
    assert resets(engine.frames()) == {3: ErrorCode.CANCEL}
    assert engine.connection.sender.waiting_size == 60_000 + MESSAGE_PREFIX_SIZE + WAITING_CALL_SIZE
    assert not calls[0].closed


def test_messages_sent_together_wait_within_the_same_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "WAITING_MAX", 100_000)
    engine, calls = opened(2, FrontLimits(stream_buffer_size=50_000), initial_window=0)
    assert calls[0].send_all([bytes(1_000)] * 40)
    assert calls[0].send_all([bytes(1_000)] * 20) is False
    calls[1].send_all([bytes(1_000)] * 1_000)
    assert calls[1].closed
    assert engine.connection.sender.waiting_size == 60 * (1_000 + MESSAGE_PREFIX_SIZE) + WAITING_CALL_SIZE
    assert not calls[0].closed


def test_send_says_slow_down_and_on_drain_says_go_on() -> None:
    engine, (first, *_) = opened(1, FrontLimits(stream_buffer_size=1_000), initial_window=0)
    drained: list[str] = []
    assert first.send(bytes(900))
    assert first.send(bytes(900)) is False
    first.on_drain(lambda: drained.append("drained"))
    engine.receive(frames.window_update(1, 1_000))
    assert drained == []
    engine.receive(frames.window_update(1, 500))
    assert drained == ["drained"]
    engine.receive(frames.window_update(1, 500))
    assert drained == ["drained"]


def test_trailers_come_after_all_that_waits() -> None:
    engine, calls = opened(1, initial_window=0)
    calls[0].send(b"a message")
    calls[0].finish()
    assert engine.frames() == []
    engine.receive(frames.window_update(1, 100))
    assert [each.kind for each in engine.frames()] == [FrameType.DATA, FrameType.HEADERS]
    assert engine.retained() == NOTHING


def cost_us(engine: Engine, frame: bytes, count: int) -> float:
    """Microseconds of CPU per frame: the least of five, since the collector of garbage may come in between."""
    costs_s = []
    for _ in range(5):
        began_s = process_time()
        engine.receive(frame * count)
        costs_s.append(process_time() - began_s)
    return min(costs_s) / count * 1e6


@pytest.mark.parametrize("stream_id", [0, 1])
def test_a_window_update_costs_the_same_however_many_calls_wait(stream_id: int) -> None:
    """One byte for one of them must not mean a look at each."""
    costs = {}
    for waiting in (10, 5_000):
        engine, calls = opened(waiting, initial_window=0)
        for each in calls:
            each.send(bytes(10_000))
        costs[waiting] = cost_us(engine, frames.window_update(stream_id, 1), 400)
        assert engine.connection.ended_with is None
    print(f"WINDOW_UPDATE on stream {stream_id}, µs with so many calls waiting: {costs}")
    assert costs[5_000] < 10 * costs[10] + 20


def test_settings_are_paid_for_by_the_calls_they_touch() -> None:
    engine, _ = opened(5_000)
    began_s = process_time()
    for value in range(100):
        engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: value}) * 100)
        engine.written()
    cost_s = process_time() - began_s
    print(f"10,000 SETTINGS that move 5,000 windows each: {cost_s:.3f} s until the peer was sent away")
    assert engine.connection.ended_with is not None
    assert engine.connection.ended_with.code == ErrorCode.ENHANCE_YOUR_CALM
    assert cost_s < 1.0
