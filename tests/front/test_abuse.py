"""Abuse of the engine: every flood ends with the right code after a bounded number of frames, each of bounded cost.

The figures are printed (`pytest -s`). Bounds on CPU are an order of magnitude above what was measured.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import count
from time import process_time
from typing import Final, NamedTuple

import hpack
import pytest

from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import FRAME_SIZE_MAX, ErrorCode, Flag, FrameType, Setting
from quarry_mq.protocol.h2.grpc_messages import with_prefix
from quarry_mq.protocol.h2.header_blocks import encode_fields
from quarry_mq.server.front import FrontLimits
from quarry_mq.server.front.h2.calls import STREAMS_MAX
from quarry_mq.server.front.h2.connection import CONTINUATIONS_MAX
from quarry_mq.server.front.h2.limits import BURST, PER_MESSAGE, PER_SECOND
from quarry_mq.server.front.h2.request_head import State
from tests.front.engine import (
    BIDI,
    ECHO,
    KEEP,
    NOTHING,
    SIZE_0,
    STREAM,
    Engine,
    body_of,
    call,
    data,
    ended_by,
    headers,
    request_fields,
    resets,
    statuses,
)

FRAME_COST_US: Final = 100.0
"""CPU that one frame of a flood may cost: 2 to 30 µs were measured, on a machine that does other things as well."""

MEMORY: Final = 2 * 1024 * 1024
"""Bytes that a flood may leave behind while it goes on."""


class Flood(NamedTuple):
    """`first` opens what the flood needs; `piece(number)` is repeated; `frames` is what it is charged for."""

    piece: Callable[[int], bytes]
    frames: int = 1
    first: bytes = b""


def stream_of(number: int) -> int:
    return 2 * number + 1


MALFORMED: Final = frames.frame(FrameType.HEADERS, Flag.END_HEADERS, 0, SIZE_0 + b"\x82")[9:]

FLOODS: Final = {
    "rapid reset": Flood(lambda n: headers(stream_of(n)) + frames.reset(stream_of(n), ErrorCode.CANCEL)),
    "rapid reset of open streams": Flood(
        lambda n: headers(stream_of(n), BIDI) + frames.reset(stream_of(n), ErrorCode.CANCEL)
    ),
    "made you reset: window by nothing": Flood(
        lambda n: headers(stream_of(n), BIDI) + frames.window_update(stream_of(n), 0)
    ),
    "made you reset: window too large": Flood(
        lambda n: headers(stream_of(n), BIDI) + frames.window_update(stream_of(n), 2**31 - 1)
    ),
    "made you reset: malformed headers": Flood(
        lambda n: frames.frame(FrameType.HEADERS, Flag.END_HEADERS, stream_of(n), MALFORMED)
    ),
    "made you reset: data after the end": Flood(
        lambda n: headers(stream_of(n), BIDI, flags=Flag.END_HEADERS | Flag.END_STREAM) + data(stream_of(n), b"x")
    ),
    "PING": Flood(lambda n: frames.ping(bytes(8), ack=False)),
    "PING acknowledged": Flood(lambda n: frames.ping(bytes(8), ack=True)),
    "SETTINGS": Flood(lambda n: frames.settings({})),
    "SETTINGS acknowledged": Flood(lambda n: frames.SETTINGS_ACK),
    "SETTINGS with many values": Flood(lambda n: frames.frame(FrameType.SETTINGS, 0, 0, b"\0\3\0\0\0\1" * 999), 1_000),
    "PRIORITY": Flood(lambda n: frames.frame(FrameType.PRIORITY, 0, stream_of(n), bytes(5))),
    "WINDOW_UPDATE of the connection": Flood(lambda n: frames.window_update(0, 1)),
    "WINDOW_UPDATE of a stream": Flood(lambda n: frames.window_update(1, 1), first=headers(1, BIDI)),
    "WINDOW_UPDATE of closed streams": Flood(lambda n: frames.window_update(1, 1), 2, call(1)),
    "empty DATA": Flood(lambda n: data(1, b""), first=headers(1, BIDI)),
    "DATA of nothing but padding": Flood(
        lambda n: frames.frame(FrameType.DATA, Flag.PADDED, 1, b"\3\0\0\0"), first=headers(1, BIDI)
    ),
    "DATA of a closed stream": Flood(lambda n: data(1, b"x"), first=call(1)),
    "RST_STREAM of a closed stream": Flood(lambda n: frames.reset(1, ErrorCode.CANCEL), 2, call(1)),
    "unknown frames": Flood(lambda n: frames.FRAME_HEAD.pack(0, 0, 0xFA, 0, 0)),
    "GOAWAY": Flood(lambda n: frames.go_away(0, ErrorCode.NO_ERROR)),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_ends(flood: Flood, request: pytest.FixtureRequest) -> None:
    engine = Engine().greet()
    engine.receive(flood.first)
    pieces, sent, written = 0, 0, 0
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    while engine.connection.state is not State.OVER and pieces * flood.frames < 3 * BURST:
        batch = b"".join(map(flood.piece, range(pieces, pieces + 100)))
        engine.receive(batch)
        pieces, sent = pieces + 100, sent + len(batch)
        engine.board.expire(engine.clock.now_s)
        last = engine.frames()
        written += len(last)
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert ended_by(last) == ErrorCode.ENHANCE_YOUR_CALM
    assert BURST <= pieces * flood.frames <= BURST + 100 * flood.frames + 200
    assert kept < MEMORY
    assert engine.retained() == NOTHING

    fresh = Engine().greet()
    whole = flood.first + b"".join(map(flood.piece, range(pieces - 200)))
    began_s = process_time()
    fresh.receive(whole)
    cost_us = (process_time() - began_s) / max(1, pieces - 200) * 1e6
    print(f"{request.node.callspec.id}: {pieces:,} in {sent:,} bytes, {cost_us:.1f} µs each, {kept:,} bytes kept")
    assert cost_us < FRAME_COST_US * (1 + flood.frames / 10)


@pytest.mark.parametrize("name", ["PING", "rapid reset", "PRIORITY"])
def test_a_peer_that_stays_below_is_left_alone(name: str) -> None:
    engine = Engine().greet()
    numbers = count()
    for _ in range(30):
        engine.clock.now_s += 1.0
        for _ in range(PER_SECOND):
            engine.receive(FLOODS[name].piece(next(numbers)))
        engine.written()
    engine.receive(call(999_999, b"served"))
    assert body_of(engine.frames(), 999_999) == with_prefix(b"served")


def test_clients_that_ping_with_each_call_are_left_alone() -> None:
    """As the grpc C core does: WINDOW_UPDATE and PING for most messages."""
    engine = Engine().greet()
    for number in range(20_000):
        engine.receive(
            call(stream_of(number)) + frames.ping(bytes(8), ack=False) * 2 + frames.window_update(0, 5),
        )
        engine.written()
    assert engine.connection.ended_with is None


def test_more_streams_than_allowed_are_refused() -> None:
    engine = Engine().greet()
    for number in range(STREAMS_MAX + 500):
        engine.receive(call(stream_of(number), path=KEEP))
    found = engine.frames()
    assert resets(found) == {
        stream_of(number): ErrorCode.REFUSED_STREAM for number in range(STREAMS_MAX, STREAMS_MAX + 500)
    }
    assert engine.stats.calls_open == STREAMS_MAX
    numbers = count(STREAMS_MAX + 500)
    while engine.connection.state is not State.OVER:
        engine.receive(headers(stream_of(next(numbers)), KEEP))
    assert next(numbers) < STREAMS_MAX + BURST + PER_MESSAGE * STREAMS_MAX + 10
    assert engine.retained() == NOTHING


# -- header blocks


def blocks_in_frames(stream_id: int, block: bytes, size: int, flags: int = 0) -> bytes:
    pieces = [block[at : at + size] for at in range(0, len(block), size)]
    whole = frames.frame(FrameType.HEADERS, flags, stream_id, pieces[0])
    for number, piece in enumerate(pieces[1:], 2):
        last = Flag.END_HEADERS if number == len(pieces) else 0
        whole += frames.frame(FrameType.CONTINUATION, last, stream_id, piece)
    return whole


def test_continuation_floods() -> None:
    for piece in (b"", b"x"):
        engine = Engine().greet()
        engine.receive(frames.frame(FrameType.HEADERS, 0, 1, b""))
        engine.receive(frames.frame(FrameType.CONTINUATION, 0, 1, piece) * CONTINUATIONS_MAX)
        assert engine.frames() == []
        engine.receive(frames.frame(FrameType.CONTINUATION, 0, 1, piece))
        assert ended_by(engine.frames()) == ErrorCode.ENHANCE_YOUR_CALM


def test_a_header_block_without_an_end_is_bounded() -> None:
    engine = Engine().greet()
    tracemalloc.start()
    sent = 0
    engine.receive(frames.frame(FrameType.HEADERS, 0, 1, b""))
    while engine.connection.state is not State.OVER:
        engine.receive(frames.frame(FrameType.CONTINUATION, 0, 1, bytes(FRAME_SIZE_MAX)))
        sent += FRAME_SIZE_MAX
        assert sent < 1024 * 1024
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"header block without an end: {sent:,} bytes taken, {peak:,} at most in memory")
    assert ended_by(engine.frames()) == ErrorCode.ENHANCE_YOUR_CALM
    assert peak < 4 * sent


def table_bomb() -> bytes:
    """One entry of the whole table, referred to by one byte each."""
    block = b"\x40\x01a" + hpack.hpack.encode_integer(4_000, 7) + b"v" * 4_000
    return bytes(block) + b"\xbe" * 12_000


def crowd(count: int, rest: int) -> bytes:
    """Tiny fields before one long value, each of which makes the library copy all that follows."""
    return b"\x00\x01a\x00" * count + b"\x00\x01b" + bytes(hpack.hpack.encode_integer(rest, 7)) + b"v" * rest


BOMBS: Final = {
    "references to one large entry": table_bomb(),
    "static references": b"\x82" * 16_000,
    "tiny fields": b"\x00\x01a\x00" * 4_000,
    "tiny fields before a long one": crowd(8_000, 200_000),
    "tiny fields behind a padded length": b"\x00\x01a\x7f\x80\x80\x80\x80\x80\x00" + bytes(127) + crowd(8_000, 200_000),
    "as many as allowed before a long one": crowd(500, 200_000),
    "one long Huffman code": b"\x00\x01a"
    + bytes([0xFF])
    + bytes(hpack.hpack.encode_integer(250_000, 7))[1:]
    + b"\x00" * 250_000,
    "size updates": b"\x3f\xe1\x1f\x20" * 8_000,
    "entries that push each other out": b"".join(b"\x40\x02%02d\x00" % (n % 100) for n in range(4_000)),
}


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_header_bombs(bomb: bytes, stateless: bool, request: pytest.FixtureRequest) -> None:
    engine = Engine()
    engine.receive(frames.PREFACE + frames.settings({}))
    if stateless:
        engine.receive(frames.SETTINGS_ACK + call(1))
    assert engine.connection._decoder.is_stateless is stateless
    engine.written()
    written = blocks_in_frames(3, bomb, FRAME_SIZE_MAX)
    if len(bomb) <= FRAME_SIZE_MAX:
        written = frames.frame(FrameType.HEADERS, Flag.END_HEADERS, 3, bomb)
    tracemalloc.start()
    engine.receive(written)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    found = engine.frames()
    assert ended_by(found) in (ErrorCode.ENHANCE_YOUR_CALM, ErrorCode.COMPRESSION_ERROR, None)
    if ended_by(found) is None:
        assert statuses(found) == {3: 8} or resets(found) == {3: ErrorCode.PROTOCOL_ERROR}
    assert peak < 4 * 1024 * 1024

    fresh = Engine()
    fresh.receive(frames.PREFACE + frames.settings({}))
    if stateless:
        fresh.receive(frames.SETTINGS_ACK + call(1))
    began_s = process_time()
    fresh.receive(written)
    cost_s = process_time() - began_s
    print(
        f"{request.node.callspec.id}: {len(bomb):,} bytes, {cost_s * 1e3:.1f} ms,"
        f" {cost_s / len(bomb) * 1e9:.0f} ns per byte, {peak:,} bytes at most"
    )
    assert cost_s < 0.25


def test_headers_above_the_limit_are_refused_and_the_connection_goes_on() -> None:
    engine = Engine(limits=FrontLimits(max_metadata_size=1_000)).greet()
    engine.receive(call(1, extra=[(b"x", b"v" * 1_000)]), call(3, b"served"))
    found = engine.frames()
    assert statuses(found)[1] == 8
    assert body_of(found, 3) == with_prefix(b"served")
    engine.receive(frames.frame(FrameType.HEADERS, 4, 5, encode_fields(request_fields(ECHO, [(b"x", b"v" * 5_000)]))))
    assert ended_by(engine.frames()) == ErrorCode.ENHANCE_YOUR_CALM


def test_a_connection_that_was_ended_keeps_nothing_of_what_it_was_sent() -> None:
    """Peers that send nonsense again and again made the broker grow by a gigabyte: the error held what was read."""
    tracemalloc.start()
    ended = []
    for _ in range(50):
        engine = Engine().greet()
        engine.receive(bytes(200_000) + b"\xff" * 56_000)
        assert engine.connection.ended_with is not None
        ended.append(engine)
    kept = tracemalloc.get_traced_memory()[0] / len(ended)
    tracemalloc.stop()
    print(f"a connection that was ended keeps {kept:,.0f} bytes")
    assert kept < 50_000


# -- windows


def test_a_large_answer_by_windows_of_one_byte() -> None:
    """It costs what the frames cost, the client as much as us."""
    engine = Engine().greet()
    body = bytes(range(256)) * 40
    engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}), call(1, body, STREAM))
    engine.written()
    size = 3 * len(with_prefix(body))
    began_s = process_time()
    engine.receive(frames.window_update(1, 1) * size)
    cost_us = (process_time() - began_s) / size * 1e6
    found = engine.all_frames()
    print(f"windows of one byte: {cost_us:.1f} µs per byte of the answer")
    assert body_of(found, 1) == with_prefix(body) * 3
    assert statuses(found) == {1: 0}
    assert cost_us < FRAME_COST_US
    assert engine.retained() == NOTHING


def test_windows_that_never_open_keep_a_bounded_amount() -> None:
    engine = Engine().greet()
    engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
    body = bytes(16_000)
    tracemalloc.start()
    for number in range(6_000):
        engine.receive(call(stream_of(number), body, STREAM))
        engine.written()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    print(f"6,000 answers of 48 KB that nobody takes: {kept:,} bytes kept")
    assert kept < 80 * 1024 * 1024
    assert engine.connection.ended_with is None
    engine.connection.lost()
    assert engine.retained() == NOTHING


# -- bodies


def test_bodies_that_never_end_keep_a_bounded_amount() -> None:
    limits = FrontLimits(max_message_size=1024 * 1024)
    engine = Engine(limits=limits).greet()
    tracemalloc.start()
    for number in range(50):
        engine.receive(headers(stream_of(number)))
        engine.receive(
            *[data(stream_of(number), b"\0\0\x0f\xff\xff" + bytes(16_000))]
            + [data(stream_of(number), bytes(16_000))] * 50
        )
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    found = engine.frames()
    print(f"50 bodies of 1 MB without an end: {kept:,} bytes kept, {len(statuses(found))} refused")
    assert set(statuses(found).values()) == {8}
    assert kept < 8 * limits.max_message_size
    engine.clock.now_s += 61.0
    engine.board.expire(engine.clock.now_s)
    engine.clock.now_s += 61.0
    engine.board.expire(engine.clock.now_s)
    assert engine.retained() == NOTHING


def test_a_slow_body_does_not_outlive_its_time() -> None:
    engine = Engine().greet()
    engine.receive(headers(1))
    for _ in range(70):
        engine.clock.now_s += 1.0
        engine.receive(data(1, b"\0"))
        engine.board.expire(engine.clock.now_s)
    assert statuses(engine.frames()) == {1: 4}
    assert engine.retained() == NOTHING
