"""Every recorded conversation in three ways: whole, byte by byte, cut at random. The same bytes come out."""

from __future__ import annotations

from random import Random

import pytest

from quarry_mq.server.front.h2.greeting import HTTP_1_ANSWER
from quarry_mq.server.front.h2.request_head import State
from tests.front.cases import CASES, REFUSED, SOUND, Case
from tests.front.engine import GREETING, NOTHING, Engine, call, ended_by, frames_of, resets, statuses

HTTP_1 = ["GET / HTTP/1.1\r\n\r\n", "POST /test.Service/Echo HTTP/1.1\r\nHost: x\r\n\r\n", "PUT / HTTP/1.0\r\n\r\n"]


def whole(written: bytes) -> bytes:
    engine = Engine()
    engine.receive(written)
    return engine.written()


def in_pieces(written: bytes, pieces: list[bytes]) -> bytes:
    """Deliver the bytes as a transport does, one pass for each piece, and return the answer."""
    assert b"".join(pieces) == written
    engine, answer = Engine(), b""
    for piece in pieces:
        engine.receive(piece)
        answer += engine.written()
    return answer


def recut(written: bytes, seed: int) -> list[bytes]:
    places = sorted(Random(seed).choices(range(len(written) + 1), k=Random(seed).randint(1, 12)))
    return [written[start:end] for start, end in zip([0, *places], [*places, len(written)], strict=True)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_in_three_ways(case: Case) -> None:
    answer = whole(case.written)
    if len(case.written) < 50_000:
        assert in_pieces(case.written, [case.written[at : at + 1] for at in range(len(case.written))]) == answer
    for seed in range(20):
        assert in_pieces(case.written, recut(case.written, seed)) == answer, f"{seed=}"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_comes_to_the_end_it_must(case: Case) -> None:
    engine = Engine()
    engine.receive(case.written)
    found = engine.all_frames()
    assert statuses(found) == case.statuses
    assert resets(found) == case.resets
    assert ended_by(found) == case.ended_by
    assert (engine.connection.state is State.OVER) == (case.ended_by is not None)
    engine.connection.lost()
    assert engine.retained() == NOTHING


@pytest.mark.parametrize("name", [*SOUND, *REFUSED])
def test_the_connection_goes_on(name: str) -> None:
    engine = Engine()
    engine.receive(CASES[name].written)
    engine.all_frames()
    engine.receive(call(999, b"still served"))
    assert any(each.stream_id == 999 and each.payload.endswith(b"still served") for each in engine.frames())


@pytest.mark.parametrize("request_line", HTTP_1)
def test_http_1_gets_an_answer_it_understands(request_line: str) -> None:
    written = request_line.encode()
    assert whole(written) == HTTP_1_ANSWER
    assert in_pieces(written, [written[at : at + 1] for at in range(len(written))]) == HTTP_1_ANSWER


def test_nothing_is_said_after_the_end() -> None:
    engine = Engine()
    engine.receive(GREETING + b"\xff" * 100)
    assert list(frames_of(engine.written()))
    engine.receive(call(1), GREETING, b"GET / HTTP/1.1\r\n\r\n")
    assert engine.written() == b""
