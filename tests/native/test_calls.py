"""The engine of the front with a scanner of whole calls, and without: the same bytes in, the same bytes out."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from quarry_mq.protocol.h2.frames import FRAME_HEAD, FRAME_HEAD_SIZE, PREFACE
from quarry_mq.server.front import FrontLimits
from quarry_mq.server.front.h2.request_head import Found, Scanner
from quarry_mq.store.native import NATIVE
from tests.front.engine import BIDI, ECHO, GREETING, KEEP, NOTHING, RAISE, STREAM, Engine, call, data, headers
from tests.front.fuzz import sequence, split

pytestmark = pytest.mark.skipif(NATIVE is None, reason="no native part")

TRAINING_STREAMS = 16
SEQUENCES = 1_000
FIELDS = ((b"x-mq-client-id", b"client@1"), (b"grpc-timeout", b"2999m"))


class Counting:
    """A scanner that counts what is found."""

    found = 0

    def __init__(self, block_size_max: int, huffman_coded: type[bytes]) -> None:
        assert NATIVE is not None
        self._scanner: Scanner = NATIVE.CallScanner(block_size_max, huffman_coded)
        self.learn_run, self.evict_run = self._scanner.learn_run, self._scanner.evict_run
        self.learn_name, self.learn_field = self._scanner.learn_name, self._scanner.learn_field

    def scan(
        self, data: bytes, position: int, last_stream_id: int, bounds: tuple[int, int], message_size_max: int, /
    ) -> list[Found]:
        found = self._scanner.scan(data, position, last_stream_id, bounds, message_size_max)
        type(self).found += len(found)
        return found


@pytest.fixture(autouse=True)
def _nothing_found_yet() -> None:
    Counting.found = 0


def training() -> bytes:
    """Calls after which the runs of two methods are known, and that ids of clients differ."""
    streams = range(1, TRAINING_STREAMS, 2)
    paths = [ECHO] * (len(streams) // 2) + [KEEP] * (len(streams) // 2)
    return b"".join(
        call(stream_id, b"train", path, ((b"x-mq-client-id", b"client@%d" % stream_id), *FIELDS[1:]))
        for stream_id, path in zip(streams, paths, strict=True)
    )


def later(piece: bytes) -> bytes:
    """The frame on a stream behind those of the training."""
    if len(piece) < FRAME_HEAD_SIZE or piece == PREFACE:
        return piece
    high, low, kind, flags, stream_id = FRAME_HEAD.unpack_from(piece)
    moved = stream_id + TRAINING_STREAMS if 0 < stream_id < 1 << 30 else stream_id
    return FRAME_HEAD.pack(high, low, kind, flags, moved) + piece[FRAME_HEAD_SIZE:]


class Pair:
    """Two engines, one with a scanner, that are to be alike after each step."""

    def __init__(self, limits: FrontLimits | None = None) -> None:
        self.engines = Engine(limits=limits, make_scanner=Counting), Engine(limits=limits)

    def receive(self, piece: bytes, frames_max: int = 1 << 60) -> None:
        for engine in self.engines:
            engine.connection.receive(piece, frames_max)
            while engine.connection.backlog_size:
                engine.connection.receive(b"", frames_max)
        self.compare()

    def compare(self) -> None:
        with_scanner, without = map(self._facts, self.engines)
        assert with_scanner == without

    def _facts(self, engine: Engine) -> dict[str, object]:
        connection = engine.connection
        return {
            "written": engine.written(),
            "state": connection.state,
            "ended": str(connection.ended_with),
            "frames": connection.frames_received,
            "messages": connection.calls.messages,
            "kept": [(each.path, each.metadata(), each.remaining_s(), each.closed) for each in engine.kept.calls],
            "lost": len(engine.kept.lost),
            "retained": engine.retained(),
            "figures": {name: getattr(engine.stats, name) for name in ("calls", "calls_open", "calls_failed")},
            "limits": engine.stats.limits_met,
        }

    def act(self) -> None:
        for engine in self.engines:
            for each in engine.kept.calls:
                each.reply(b"kept")
        self.compare()

    def lose(self) -> None:
        for engine in self.engines:
            engine.connection.lost()
            assert engine.retained() == NOTHING
        self.compare()


def damaged(number: int) -> Iterator[tuple[bytes, int]]:
    """A damaged conversation behind a sound one, cut anew, and how many frames are handled at once."""
    random = Random(number)
    written = b"".join(sequence(31, number).cuts)
    if written.startswith(GREETING):
        pieces = split(written)
        written = GREETING + training() + b"".join(map(later, pieces[3:]))
    places = sorted(random.randint(0, len(written)) for _ in range(random.randint(0, 3)))
    for start, end in zip([0, *places], [*places, len(written)], strict=True):
        yield written[start:end], random.choice([1, 2, 3, 5, 1 << 60])


def test_damaged_conversations() -> None:
    for number in range(SEQUENCES):
        pair = Pair()
        try:
            for step, (piece, frames_max) in enumerate(damaged(number)):
                pair.receive(piece, frames_max)
                if step & 1:
                    pair.act()
            pair.lose()
        except AssertionError as cause:
            raise AssertionError(f"sequence {number}") from cause
    assert Counting.found > SEQUENCES


@pytest.mark.parametrize("path", [ECHO, KEEP, STREAM, BIDI, RAISE, "/no/such"])
@pytest.mark.parametrize("frames_max", [1, 2, 3, 7, 1 << 60])
def test_calls_of_every_kind_are_served_alike(path: str, frames_max: int) -> None:
    pair = Pair()
    pair.receive(GREETING + training())
    many = b"".join(call(stream_id, b"%d" % stream_id, path, FIELDS) for stream_id in range(23, 103, 2))
    pair.receive(many[:1000], frames_max)
    pair.receive(many[1000:], frames_max)
    pair.act()
    pair.lose()


def test_whole_calls_are_found() -> None:
    pair = Pair()
    pair.receive(GREETING + training())
    before = Counting.found
    pair.receive(b"".join(call(stream_id, bytes(1000), ECHO, FIELDS) for stream_id in range(23, 223, 2)))
    assert Counting.found - before == 100


def test_calls_that_several_threads_write_are_found_too() -> None:
    pair = Pair()
    pair.receive(GREETING + training())
    before = Counting.found
    streams = range(23, 63, 2)
    blocks = b"".join(headers(stream_id, KEEP, FIELDS) for stream_id in streams)
    messages = b"".join(data(stream_id, b"\0\0\0\0\1a", last=True) for stream_id in reversed(streams))
    pair.receive(blocks + messages)
    assert Counting.found - before == 2 * len(streams) - 1
    pair.receive(blocks[:100])
    pair.act()
    pair.lose()


@pytest.mark.parametrize("depends_on", [0, 3, 23, 0x8000_0017], ids=hex)
def test_blocks_may_say_a_priority(depends_on: int) -> None:
    """Java's library says one with each request."""
    pair = Pair()
    pair.receive(GREETING + training())
    before = Counting.found
    block = depends_on.to_bytes(4, "big") + b"\x0f" + headers(23, ECHO, FIELDS)[FRAME_HEAD_SIZE:]
    pair.receive(FRAME_HEAD.pack(0, len(block), 1, 0x24, 23) + block + data(23, b"\0\0\0\0\1a", last=True))
    assert Counting.found - before == (depends_on in (0, 3))
    pair.lose()


ODD = {
    "no space for the priority": FRAME_HEAD.pack(0, 4, 1, 0x24, 23) + bytes(4),
    "stream id that is not new": call(23, b"1", ECHO, FIELDS) + call(23, b"2", ECHO, FIELDS),
    "lower stream id": call(25, b"1", ECHO, FIELDS) + call(23, b"2", ECHO, FIELDS),
    "even stream id": call(24, b"1", ECHO, FIELDS),
    "padded": headers(23, ECHO, FIELDS) + b"\x00\x00\x07\x00\x09\x00\x00\x00\x17\x01\x00\x00\x00\x00\x00\x00",
    "data in two frames": headers(23, ECHO, FIELDS) + data(23, b"\0\0\0") + data(23, b"\0\2ab", last=True),
    "another stream between": headers(23, ECHO, FIELDS) + headers(25, ECHO, FIELDS) + data(23, b"\0" * 5, last=True),
    "not the end": headers(23, ECHO, FIELDS) + data(23, b"\0\0\0\0\1a"),
    "two messages": headers(23, ECHO, FIELDS) + data(23, b"\0\0\0\0\1a\0\0\0\0\1b", last=True),
    "no message": headers(23, ECHO, FIELDS) + data(23, b"", last=True),
    "half a prefix": headers(23, ECHO, FIELDS) + data(23, b"\0\0\0", last=True),
    "size that is not right": headers(23, ECHO, FIELDS) + data(23, b"\0\0\0\0\2a", last=True),
    "compressed": headers(23, ECHO, FIELDS) + data(23, b"\1\0\0\0\1a", last=True),
    "content length": call(23, b"a", ECHO, (*FIELDS, (b"content-length", b"6"))) * 2,
    "wrong content length": call(23, b"a", ECHO, (*FIELDS, (b"content-length", b"7"))),
    "timeout that is none": call(23, b"a", ECHO, ((b"grpc-timeout", b"soon"),)),
    "unknown field": call(23, b"a", ECHO, (*FIELDS, (b"x-new", b"1"))),
    "field of the connection": call(23, b"a", ECHO, (*FIELDS, (b"connection", b"close"))),
    "other content type": call(23, b"a", ECHO, (*FIELDS, (b"content-type", b"text/html"))),
    "long value": call(23, b"a", ECHO, ((b"x-mq-client-id", b"c" * 300),)),
    "very long value": call(23, b"a", ECHO, ((b"x-mq-client-id", b"c" * 3000),)),
    "half of it": call(23, b"abc", ECHO, FIELDS)[:-1],
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_odd_calls_are_served_alike(odd: bytes) -> None:
    pair = Pair()
    pair.receive(GREETING + training())
    pair.receive(odd)
    pair.receive(call(111, b"behind", ECHO, FIELDS))
    pair.act()
    pair.lose()


def test_limits_hold() -> None:
    limits = FrontLimits(max_message_size=50, max_open_calls=8)
    pair = Pair(limits)
    pair.receive(GREETING + training())
    pair.receive(call(23, bytes(51), ECHO, FIELDS) + call(25, bytes(50), ECHO, FIELDS))
    pair.receive(b"".join(call(stream_id, b"", KEEP, FIELDS) for stream_id in range(27, 71, 2)))
    assert pair.engines[0].stats.limits_met["open_calls"] > 0
    pair.act()
    pair.lose()


def test_a_connection_that_drains_takes_what_was_sent_before_and_no_more() -> None:
    pair = Pair()
    pair.receive(GREETING + training())
    for engine in pair.engines:
        engine.connection.drain()
    pair.receive(call(23, b"a", ECHO, FIELDS) + call(25, b"b", ECHO, FIELDS))
    pair.lose()


def test_values_may_be_huffman_coded() -> None:
    """Go's library codes each value that becomes shorter by it."""
    value = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(b"client@2")
    coded = b"\x00\x0ex-mq-client-id" + bytes([0x80 | len(value)]) + value
    pair = Pair()
    pair.receive(GREETING + training())
    before = Counting.found
    block = headers(23, KEEP)[FRAME_HEAD_SIZE:] + coded
    frame = FRAME_HEAD.pack(0, len(block), 1, 4, 23) + block
    pair.receive(frame + data(23, b"\0\0\0\0\0", last=True))
    assert Counting.found == before + 1
    assert pair.engines[0].kept.calls[-1].header("x-mq-client-id") == "client@2"
    pair.act()
