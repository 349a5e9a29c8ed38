"""Memory for open requests is bounded in bytes, headers included, and unwanted bytes are not kept."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import ErrorCode, Flag, FrameType, Setting
from quarry_mq.protocol.h2.grpc_messages import (
    MESSAGE_PREFIX,
    UNPACKED_FREE,
    UNPACKED_RATIO_MAX,
    with_prefix,
)
from quarry_mq.protocol.h2.header_blocks import encode_fields
from quarry_mq.server.front import Call, FrontLimits, Method
from quarry_mq.server.front.h2.call import Client
from quarry_mq.server.front.h2.connection import Connection
from quarry_mq.server.front.h2.request_head import ScannerMaker
from quarry_mq.server.front.h2.sender import WAITING_CALL_SIZE
from quarry_mq.server.front.h2.switchboard import REFUSALS_MAX
from quarry_mq.server.front.memory import MESSAGES_IN_ALL, MESSAGES_PER_ADDRESS, MESSAGES_PER_CONNECTION
from quarry_mq.store.native import NATIVE
from tests.front.engine import (
    BIDI,
    ECHO,
    GREETING,
    KEEP,
    NOTHING,
    SIZE_0,
    Engine,
    body_of,
    call,
    data,
    ended_by,
    frames_of,
    headers,
    request_fields,
    statuses,
)
from tests.front.test_abuse import stream_of

KIB = 1024
LARGEST = 64 * KIB
LIMITS = FrontLimits(max_message_size=LARGEST)
RESOURCE_EXHAUSTED = GrpcStatus.RESOURCE_EXHAUSTED
LONG = ((b"authorization", b"a" * 8_000),)


def test_headers_of_calls_without_a_request_count_and_are_bounded() -> None:
    engine = Engine(limits=LIMITS).greet()
    engine.receive(*[headers(stream_of(number), extra=LONG) for number in range(200)])
    assert engine.board.incoming.size <= MESSAGES_PER_CONNECTION * LARGEST
    refused = statuses(engine.frames())
    assert len(refused) >= 200 - MESSAGES_PER_CONNECTION * LARGEST // 8_000
    assert set(refused.values()) == {RESOURCE_EXHAUSTED}
    assert engine.stats.limits_met["incoming_size"] == len(refused)
    engine.receive(*[frames.reset(stream_of(number), ErrorCode.CANCEL) for number in range(200)])
    assert engine.retained() == NOTHING


def test_headers_of_calls_that_wait_for_their_answer_count_after_a_moment() -> None:
    engine = Engine(limits=LIMITS).greet()
    engine.receive(*[call(stream_of(number), path=KEEP, extra=LONG) for number in range(200)])
    assert engine.board.incoming.size == 0, "a call that is answered at once costs nothing here"
    engine.board.expire(engine.clock.now_s)
    assert 0 < engine.board.incoming.size <= MESSAGES_PER_CONNECTION * LARGEST
    assert set(statuses(engine.all_frames()).values()) == {RESOURCE_EXHAUSTED}
    for kept in engine.kept.calls:
        kept.reply(b"")
    assert engine.retained() == NOTHING


def test_one_address_cannot_have_it_all() -> None:
    engine = Engine(limits=LIMITS).greet()

    def connected(peer: str) -> Connection:
        connection = Connection(engine.board, Client(peer), lambda: None)
        connection.receive(GREETING)
        return connection

    greedy = [connected(f"10.0.0.1:{port}") for port in range(5)]
    for connection in greedy:
        connection.receive(b"".join(headers(stream_of(number), extra=LONG) for number in range(200)))
    assert engine.board.incoming.size <= MESSAGES_PER_ADDRESS * LARGEST < MESSAGES_IN_ALL * LARGEST
    other = connected("10.0.0.2:1")
    other.sender.take()
    message = with_prefix(bytes(16_000))
    for number in range(10):
        other.receive(headers(stream_of(number)) + data(stream_of(number), message[:10]))
    for number in range(10):
        other.receive(data(stream_of(number), message[10:], last=True))
    found = list(frames_of(b"".join(other.sender.take())))
    assert statuses(found) == {stream_of(number): 0 for number in range(4)}, "as many as the windows let through"
    for connection in (*greedy, other):
        connection.lost()
    assert engine.retained() == NOTHING
    assert engine.board.incoming.of("10.0.0.1") == 0


def test_header_blocks_that_do_not_end_have_a_bound_of_their_own() -> None:
    """Header blocks without an end keep out no request of others; their senders are not known."""
    engine = Engine(limits=FrontLimits(max_message_size=4_000, max_metadata_size=16 * KIB)).greet()
    block = SIZE_0 + encode_fields(request_fields(ECHO, [(b"x", b"a" * 6_000)]))
    engine.receive(frames.frame(FrameType.HEADERS, 0, 1, block[:3_000]))
    assert (engine.board.incoming.size, engine.board.incoming.blocks_size) == (0, 3_000)
    engine.receive(frames.frame(FrameType.CONTINUATION, 0, 1, block[3_000:5_000]))
    assert ended_by(engine.frames()) == ErrorCode.ENHANCE_YOUR_CALM
    assert engine.retained() == NOTHING


def test_a_header_block_that_ends_is_not_counted_twice() -> None:
    engine = Engine(limits=LIMITS).greet()
    block = SIZE_0 + encode_fields(request_fields(KEEP))
    engine.receive(
        frames.frame(FrameType.HEADERS, 0, 1, block[:20]),
        frames.frame(FrameType.CONTINUATION, Flag.END_HEADERS, 1, block[20:]) + data(1, with_prefix(b""), last=True),
    )
    assert len(engine.kept.calls) == 1
    assert engine.board.incoming.size == 0
    engine.receive(frames.frame(FrameType.HEADERS, 0, 3, block[:20]))
    engine.connection.lost()
    assert engine.retained() == NOTHING


MAKERS = [None, *([] if NATIVE is None else [NATIVE.CallScanner])]


@pytest.mark.parametrize("make_scanner", MAKERS, ids=["python", "native"][: len(MAKERS)])
def test_headers_that_nobody_asks_for_are_not_kept(make_scanner: ScannerMaker | None) -> None:
    engine = Engine(make_scanner=make_scanner, headers=frozenset({"x-wanted"})).greet()
    for number in range(6):
        extra = ((b"x-other", b"o%d" % number), (b"x-wanted", b"w%d" % number), (b"x-more", b"m" * 500))
        engine.receive(call(stream_of(number), path=KEEP, extra=extra))
    assert [each.header("x-wanted") for each in engine.kept.calls] == [f"w{number}" for number in range(6)]
    for each in engine.kept.calls:
        assert set(each.metadata()) == {"content-type", "x-wanted"}


# -- calls that no handler holds


GET = frames.frame(FrameType.HEADERS, Flag.END_HEADERS, 1, b"\x82\x86\x84")
"""No gRPC, of twelve bytes, and without an end."""


@pytest.mark.parametrize("window", [0, 65_535])
def test_requests_that_are_no_grpc_and_do_not_end_are_so_many_and_no_more(window: int) -> None:
    engine = Engine(limits=FrontLimits(max_open_calls=REFUSALS_MAX + 1)).greet()
    engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: window}))
    for number in range(1_000):
        engine.receive(GET[:5] + stream_of(number).to_bytes(4, "big") + GET[9:])
    assert len(engine.board._refused) == REFUSALS_MAX
    engine.receive(call(stream_of(1_000), path=KEEP))
    assert len(engine.kept.calls) == 1, "the only call that a handler holds"
    engine.receive(*[data(stream_of(number), b"", last=True) for number in range(1_000)])
    assert not engine.board._refused
    engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 65_535}))
    assert len([each for each in engine.all_frames() if each.kind == FrameType.DATA]) == 1_000, "each is told once"
    engine.kept.calls[0].reply(b"")
    assert engine.retained() == NOTHING


@pytest.mark.parametrize("make_scanner", MAKERS, ids=["python", "native"][: len(MAKERS)])
def test_answers_that_nobody_reads_keep_no_calls_out(make_scanner: ScannerMaker | None) -> None:
    engine = Engine(limits=FrontLimits(max_open_calls=3), make_scanner=make_scanner).greet()
    engine.receive(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
    for number in range(100):
        engine.receive(call(stream_of(number), b"answered"))
    assert engine.stats.calls_open == engine.board.unread.answered_calls == 100
    assert engine.connection.sender.waiting_size > 100 * WAITING_CALL_SIZE, "they count for what they keep"
    for number in range(100, 104):
        engine.receive(call(stream_of(number), path=KEEP))
    assert len(engine.kept.calls) == 3
    assert engine.stats.limits_met["open_calls"] == 1
    engine.receive(*[frames.reset(stream_of(number), ErrorCode.CANCEL) for number in range(50)])
    assert engine.board.unread.answered_calls == 50
    engine.connection.lost()
    assert engine.retained() == NOTHING


# -- who calls is asked first


class Door:
    """A method that lets in who says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.bodies: list[bytes] = []

    def admit(self, call: Call) -> None:
        self.asked += 1
        if call.header("x-key") != "good":
            call.reply(b"who?")

    def handler(self, call: Call, body: bytes) -> None:
        self.bodies.append(body)
        call.reply(b"done")


GOOD = ((b"x-key", b"good"),)


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def engine(door: Door) -> Iterator[Engine]:
    engine = Engine({ECHO: Method(door.handler, admit=door.admit, size_max=20_000)}, limits=LIMITS).greet()
    yield engine
    assert engine.retained() == NOTHING


def test_a_stranger_that_sends_headers_only_is_answered(engine: Engine, door: Door) -> None:
    engine.receive(headers(1))
    found = engine.frames()
    assert body_of(found, 1) == with_prefix(b"who?")
    assert statuses(found) == {1: 0}
    assert [each.code for each in found if each.kind == FrameType.RST_STREAM] == [ErrorCode.NO_ERROR]
    engine.receive(data(1, with_prefix(b"late"), last=True))
    assert engine.frames() == []
    assert door.bodies == []


def test_who_is_known_is_asked_once_and_its_request_awaited(engine: Engine, door: Door) -> None:
    engine.receive(headers(1, extra=GOOD))
    assert engine.frames() == []
    message = with_prefix(bytes(9_000))
    engine.receive(data(1, message[:5_000]), data(1, message[5_000:], last=True))
    assert body_of(engine.frames(), 1) == with_prefix(b"done")
    assert door.asked == 1
    assert door.bodies == [bytes(9_000)]


def test_nothing_is_unpacked_for_a_stranger(engine: Engine, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarry_mq.protocol.h2.grpc_messages.plain_body", lambda *_: pytest.fail("unpacked"))
    packed = gzip.compress(bytes(10_000))
    engine.receive(
        headers(1, extra=((b"grpc-encoding", b"gzip"),))
        + data(1, MESSAGE_PREFIX.pack(1, len(packed)) + packed, last=True)
    )
    assert body_of(engine.frames(), 1) == with_prefix(b"who?")
    assert door.bodies == []


def test_a_request_that_came_whole_is_the_handlers_to_ask_about(engine: Engine, door: Door) -> None:
    engine.receive(call(1, b"whole"))
    assert (door.asked, door.bodies) == (0, [b"whole"])


# -- how much a request may be


def test_a_method_may_take_less_than_the_front(engine: Engine, door: Door) -> None:
    engine.receive(headers(1, extra=GOOD) + data(1, MESSAGE_PREFIX.pack(0, 20_001)))
    assert statuses(engine.frames()) == {1: RESOURCE_EXHAUSTED}
    packed = gzip.compress(bytes(20_001))
    engine.receive(
        headers(3, extra=(*GOOD, (b"grpc-encoding", b"gzip")))
        + data(3, MESSAGE_PREFIX.pack(1, len(packed)) + packed, last=True)
    )
    assert statuses(engine.frames()) == {3: RESOURCE_EXHAUSTED}
    assert door.bodies == []
    assert engine.stats.limits_met["request_size"] == 2


@pytest.mark.parametrize("make_scanner", MAKERS, ids=["python", "native"][: len(MAKERS)])
def test_a_method_may_take_less_than_a_frame(make_scanner: ScannerMaker | None) -> None:
    seen: list[int] = []

    def handler(call: Call, body: bytes) -> None:
        seen.append(len(body))
        call.reply(b"")

    engine = Engine({ECHO: Method(handler, size_max=100)}, make_scanner=make_scanner).greet()
    for number in range(6):
        engine.receive(call(stream_of(number), bytes(100 + number % 2)))
    assert seen == [100] * 3
    assert sorted(statuses(engine.frames()).values()) == [0] * 3 + [RESOURCE_EXHAUSTED] * 3


def test_messages_of_a_stream_may_be_as_large_as_its_method_says() -> None:
    engine = Engine({BIDI: Method(lambda call, body: None, streaming_in=True, streaming_out=True, size_max=50)}).greet()
    engine.receive(headers(1, BIDI) + data(1, with_prefix(bytes(50))) + data(1, with_prefix(bytes(51))))
    assert statuses(engine.frames()) == {1: RESOURCE_EXHAUSTED}


def gzipped(number: int, plain_size: int) -> bytes:
    packed = gzip.compress(bytes(plain_size))
    block = headers(stream_of(number), extra=((b"grpc-encoding", b"gzip"),))
    return block + data(stream_of(number), MESSAGE_PREFIX.pack(1, len(packed)) + packed, last=True)


def test_a_packed_message_becomes_no_more_than_its_size_allows() -> None:
    engine = Engine({ECHO: Method(lambda call, body: call.reply(b""))}).greet()
    engine.receive(gzipped(0, UNPACKED_FREE), gzipped(1, UNPACKED_FREE + 1))
    assert statuses(engine.frames()) == {stream_of(0): 0, stream_of(1): RESOURCE_EXHAUSTED}
    assert UNPACKED_RATIO_MAX * len(gzip.compress(bytes(UNPACKED_FREE))) < UNPACKED_FREE


@pytest.mark.parametrize("plain_size", [UNPACKED_FREE, 1 << 20])
def test_a_turn_is_charged_with_what_is_unpacked(plain_size: int) -> None:
    engine = Engine().greet()
    before = engine.connection.frames_received
    engine.receive(gzipped(0, plain_size))
    assert engine.connection.frames_received - before >= 256, "a whole turn"
