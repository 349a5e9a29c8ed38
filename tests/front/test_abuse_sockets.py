"""Abuse on real sockets: what the transport adds. A good client is served during and after each."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import process_time
from typing import Final

import pytest

from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import ErrorCode, Setting
from quarry_mq.protocol.h2.grpc_messages import with_prefix
from quarry_mq.server.front import Front, FrontLimits, Method, door, make_front
from quarry_mq.server.front.h2 import front, limits, switchboard, timeouts
from quarry_mq.server.front.h2.greeting import HTTP_1_ANSWER
from tests.certificates import Tls, make_tls
from tests.contracts.front_client import run, soon
from tests.front.engine import (
    BIDI,
    GREETING,
    KEEP,
    STREAM,
    Kept,
    body_of,
    call,
    data,
    ended_by,
    frames_of,
    headers,
    methods,
)
from tests.front.test_abuse import FLOODS, stream_of

LARGE: Final = "/test.Service/Large"
LARGE_SIZE: Final = 1_000_000


class LongPolls:
    """A front on a port, and the good client of it."""

    def __init__(self, front: Front, host: str, port: int, kept: Kept, tls: Tls | None = None) -> None:
        self.front = front
        self.host = host
        self.port = port
        self.kept = kept
        self.tls: ssl.SSLContext | None = None
        if tls is not None:
            self.tls = ssl.create_default_context(cadata=tls.authority.decode())
            self.tls.set_alpn_protocols(["h2"])

    async def connect(self, first: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self.tls)
        writer.write(first)
        return reader, writer

    async def is_served(self, body: bytes) -> bool:
        """Return whether a good client soon gets its answer on a new connection."""
        reader, writer = await self.connect(GREETING + call(1, body))
        answer = b""
        while with_prefix(body) not in answer:
            piece = await soon(reader.read(65_536))
            if not piece:
                return False
            answer += piece
        writer.close()
        return True

    @property
    def connections(self) -> int:
        stats = self.front.stats
        assert stats is not None
        return stats.connections_open


def large(call: object, body: bytes) -> None:
    from quarry_mq.server.front.h2.call import H2Call

    assert isinstance(call, H2Call)
    for _ in range(body[0] if body else 1):
        call.send(bytes(LARGE_SIZE))
    call.finish()


@asynccontextmanager
async def serving(limits: FrontLimits | None = None, tls: Tls | None = None) -> AsyncIterator[LongPolls]:
    kept = Kept()
    served = {**methods(kept), LARGE: Method(large, streaming_out=True)}
    made = make_front("h2", served, limits=limits)
    address = await made.start("127.0.0.1:0", None if tls is None else tls.live())
    host, _, port = address.rpartition(":")
    try:
        yield LongPolls(made, host, int(port), kept, tls)
    finally:
        await made.stop(0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the front waits for takes a fraction of a second."""
    monkeypatch.setattr(timeouts, "GREETING_S", 0.3)
    monkeypatch.setattr(door, "GREETING_S", 0.3)
    monkeypatch.setattr(timeouts, "PROBE_AFTER_S", 0.3)
    monkeypatch.setattr(timeouts, "PROBE_ANSWER_S", 0.2)
    monkeypatch.setattr(timeouts, "STALL_S", 0.3)
    monkeypatch.setattr(front, "LINGER_S", 0.1)
    monkeypatch.setattr(front, "LOOK_AFTER_S", 0.05)
    monkeypatch.setattr(switchboard, "WHOLE_REQUEST_S", 0.3)


@pytest.fixture
def earning_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time brings a peer no frames: on a busy machine a flood would last long enough to be within its rights."""
    monkeypatch.setattr(limits, "PER_SECOND", 0)


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await soon(wait())


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Return all bytes until the server closes, whichever way."""
    answer = b""
    try:
        while piece := await soon(reader.read(1 << 20)):
            answer += piece
    except ConnectionError:
        pass
    return answer


def resident_size() -> int:
    with open("/proc/self/statm") as statistics:
        return int(statistics.read().split()[1]) * resource.getpagesize()


FLOODED: Final = (
    "rapid reset",
    "made you reset: window by nothing",
    "PING",
    "SETTINGS",
    "PRIORITY",
    "empty DATA",
    "unknown frames",
)


@pytest.mark.usefixtures("earning_nothing")
@pytest.mark.parametrize("name", FLOODED)
def test_a_flood_is_sent_away_while_others_are_served(name: str) -> None:
    async def test() -> None:
        async with serving() as served:
            flood = FLOODS[name]
            reader, writer = await served.connect(GREETING + flood.first)
            began_s, sent = process_time(), 0
            answer = asyncio.create_task(read_to_end(reader))
            while not answer.done() and sent < 30_000:
                writer.write(b"".join(map(flood.piece, range(sent, sent + 500))))
                sent += 500
                await asyncio.sleep(0)
                if sent % 5_000 == 0 and sent < 10_000:
                    assert await served.is_served(b"during")
            assert ended_by(list(frames_of(await answer))) == ErrorCode.ENHANCE_YOUR_CALM
            print(f"{name}: {(process_time() - began_s) / sent * 1e6:.1f} µs per frame, client and transport included")
            assert await served.is_served(b"after")
            writer.close()

    run(test())


@pytest.mark.usefixtures("earning_nothing")
def test_many_flooders_at_once() -> None:
    async def test() -> None:
        async with serving() as served:
            flood = FLOODS["rapid reset"]
            whole = GREETING + b"".join(map(flood.piece, range(12_000)))
            bad = [await served.connect(whole) for _ in range(5)]
            served_during = await served.is_served(b"during")
            endings = [ended_by(list(frames_of(await read_to_end(reader)))) for reader, _ in bad]
            assert served_during
            assert endings == [ErrorCode.ENHANCE_YOUR_CALM] * 5
            assert await served.is_served(b"after")
            for _, writer in bad:
                writer.close()

    run(test())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "drip", [b"P", GREETING[:24], GREETING[:30], b""], ids=["one byte", "preface", "half of SETTINGS", "nothing"]
)
def test_a_slow_preface(drip: bytes) -> None:
    async def test() -> None:
        async with serving() as served:
            reader, writer = await served.connect(drip)
            assert await served.is_served(b"during")
            assert ended_by(list(frames_of(await read_to_end(reader)))) == ErrorCode.PROTOCOL_ERROR
            await until(lambda: served.connections == 0)
            writer.close()

    run(test())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "begun", [headers(1)[:20], headers(1) + data(1, bytes(100))[:50]], ids=["headers", "frame of a body"]
)
def test_a_frame_that_drips_is_no_sign_of_life(begun: bytes) -> None:
    async def test() -> None:
        async with serving() as served:
            reader, writer = await served.connect(GREETING + begun)
            ending = asyncio.create_task(read_to_end(reader))
            for _ in range(40):
                if ending.done():
                    break
                writer.write(b"\0")
                await asyncio.sleep(0.05)
            assert ended_by(list(frames_of(await ending))) == ErrorCode.NO_ERROR
            await until(lambda: served.connections == 0)
            assert await served.is_served(b"after")
            writer.close()

    run(test())


@pytest.mark.usefixtures("impatient")
def test_a_slow_body_ends_by_itself() -> None:
    async def test() -> None:
        async with serving() as served:
            reader, writer = await served.connect(GREETING + headers(1) + data(1, b"\0"))
            answer = b""
            while b"grpc-status\x014" not in answer:
                writer.write(frames.ping(bytes(8), ack=False))
                answer += await soon(reader.read(65_536))
            assert served.front.stats is not None
            assert served.front.stats.calls_open == 0
            writer.close()

    run(test())


@pytest.mark.usefixtures("impatient")
def test_windows_that_are_never_opened_end_the_connection() -> None:
    async def test() -> None:
        async with serving() as served:
            closed = frames.settings({Setting.INITIAL_WINDOW_SIZE: 0})
            reader, writer = await served.connect(GREETING + closed + call(1, b"\5", LARGE))
            ending = asyncio.create_task(read_to_end(reader))
            while not ending.done():  # it lives, and reads, but takes nothing
                writer.write(frames.ping(bytes(8), ack=False))
                await asyncio.sleep(0.02)
            found = list(frames_of(ending.result()))
            assert ended_by(found) == ErrorCode.ENHANCE_YOUR_CALM
            assert body_of(found, 1) == b""
            await until(lambda: served.connections == 0)
            assert await served.is_served(b"after")
            writer.close()

    run(test())


def deaf(served: LongPolls, first: bytes) -> socket.socket:
    """A client that never reads, with little room in its socket."""
    connected = socket.socket()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connected.connect((served.host, served.port))
    connected.setblocking(False)
    connected.send(first)
    return connected


async def write_on(connected: socket.socket, piece: Callable[[int], bytes], size_max: int) -> int:
    """Write as much as is taken, at most so much; gives up when nothing is taken for half a second."""
    sent, number, rest = 0, 0, b""
    loop = asyncio.get_running_loop()
    while sent < size_max:
        if not rest:
            rest = b"".join(map(piece, range(number, number + 100)))
            number += 100
        try:
            await asyncio.wait_for(loop.sock_sendall(connected, rest), 0.5)
        except (TimeoutError, ConnectionError):
            break
        sent, rest = sent + len(rest), b""
    return sent


WIDE: Final = GREETING + frames.settings({Setting.INITIAL_WINDOW_SIZE: 2**30}) + frames.window_update(0, 2**30)
DEAF: Final[dict[str, Callable[[int], bytes]]] = {
    "large answers": lambda n: call(stream_of(n), b"\1", LARGE),
    "small answers": lambda n: call(stream_of(n), bytes(1_000)),
    "streamed answers": lambda n: call(stream_of(n), bytes(1_000), STREAM),
    "refusals": lambda n: call(stream_of(n), path="/no/such"),
    "no gRPC": lambda n: headers(stream_of(n), extra=[(b"content-type", b"text/html")], flags=5),
    "messages both ways": lambda n: (headers(1, BIDI) if not n else b"") + data(1, with_prefix(bytes(100))),
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("piece", DEAF.values(), ids=DEAF.keys())
def test_a_reader_that_stops_reading(
    piece: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """It is not read from either beyond a bound, ends, and its socket and memory are given back."""

    async def test() -> None:
        async with serving() as served:
            assert await served.is_served(b"before")
            before = resident_size()
            monkeypatch.setattr(timeouts, "STALL_S", 3.0)
            monkeypatch.setattr(timeouts, "PROBE_AFTER_S", 3.0)
            connected = deaf(served, WIDE)
            sent = await write_on(connected, piece, 40_000_000)
            kept = resident_size() - before
            print(f"{request.node.callspec.id}: {sent:,} bytes taken, {kept:,} bytes kept for them")
            assert await served.is_served(b"during")
            assert kept < 110_000_000
            assert sent < 40_000_000
            monkeypatch.setattr(timeouts, "STALL_S", 0.3)
            monkeypatch.setattr(timeouts, "PROBE_AFTER_S", 0.3)
            await until(lambda: served.connections == 0)
            assert await served.is_served(b"after")
            assert served.front.stats is not None
            assert served.front.stats.calls_open == 0
            connected.close()

    run(test())


@pytest.mark.usefixtures("impatient")
def test_a_reader_that_stops_reading_and_says_goodbye() -> None:
    async def test() -> None:
        async with serving() as served:
            connected = deaf(served, WIDE + call(1, b"\x14", LARGE))
            await until(lambda: served.front.stats is not None and served.front.stats.calls_open == 1)
            connected.shutdown(socket.SHUT_WR)
            await until(lambda: served.connections == 0)
            connected.close()

    run(test())


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"OPTIONS * HTTP/1.1\r\n\r\n"])
def test_http_1(said: bytes) -> None:
    async def test() -> None:
        async with serving() as served:
            reader, writer = await served.connect(said)
            assert await read_to_end(reader) == HTTP_1_ANSWER
            assert await served.is_served(b"after")
            writer.close()

    run(test())


@pytest.mark.parametrize("said", [bytes.fromhex("16030100c8010000c40303") + bytes(200), b"\xff" * 1_000, bytes(30)])
def test_what_is_no_http(said: bytes) -> None:
    async def test() -> None:
        async with serving() as served:
            reader, writer = await served.connect(said)
            assert ended_by(list(frames_of(await read_to_end(reader)))) == ErrorCode.PROTOCOL_ERROR
            assert await served.is_served(b"after")
            writer.close()

    run(test())


def test_more_connections_than_allowed() -> None:
    """Connections without calls give way, connections with calls stay."""

    async def test() -> None:
        async with serving(FrontLimits(max_connections=10)) as served:
            busy = [await served.connect(GREETING + call(1, path=KEEP)) for _ in range(3)]
            await until(lambda: len(served.kept.calls) == 3)
            idle = [await served.connect(GREETING) for _ in range(100)]
            assert await served.is_served(b"served")
            assert served.connections <= 10
            assert not any(each.closed for each in served.kept.calls)
            for _, writer in (*busy, *idle):
                writer.close()

    run(test())


def test_new_addresses_take_the_places_of_who_has_most() -> None:
    """An honest client whose connection was the oldest lost it between two calls."""

    async def test() -> None:
        async with serving(FrontLimits(max_connections=10)) as served:

            async def connect(source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                reader, writer = await asyncio.open_connection(served.host, served.port, local_addr=(source, 0))
                writer.write(GREETING)
                await soon(reader.read(1))
                return reader, writer

            honest, writer = await connect("127.0.0.1")
            greedy = [await connect("127.0.0.2") for _ in range(9)]
            others = [await connect(f"127.0.0.{number}") for number in range(3, 8)]
            writer.write(call(1, b"still there"))
            answer = b""
            while with_prefix(b"still there") not in answer:
                piece = await soon(honest.read(65_536))
                assert piece, "the connection was ended"
                answer += piece
            assert served.connections == 10
            for _, each in ((honest, writer), *greedy, *others):
                each.close()

    run(test())


# -- over TLS


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make_tls(tmp_path_factory.mktemp("tls"))


@pytest.mark.usefixtures("earning_nothing")
def test_a_flood_over_tls(tls: Tls) -> None:
    async def test() -> None:
        async with serving(tls=tls) as served:
            flood = FLOODS["rapid reset"]
            reader, writer = await served.connect(GREETING + b"".join(map(flood.piece, range(12_000))))
            assert await served.is_served(b"during")
            assert ended_by(list(frames_of(await read_to_end(reader)))) == ErrorCode.ENHANCE_YOUR_CALM
            assert await served.is_served(b"after")
            writer.close()

    run(test())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("said", [b"", bytes.fromhex("16030100c8010000c4")], ids=["nothing", "half a hello"])
def test_a_handshake_that_never_ends(tls: Tls, said: bytes) -> None:
    async def test() -> None:
        async with serving(tls=tls) as served:
            reader, writer = await asyncio.open_connection(served.host, served.port)
            writer.write(said)
            assert await served.is_served(b"during")
            await read_to_end(reader)
            writer.close()

    run(test())


@pytest.mark.usefixtures("impatient")
def test_a_reader_over_tls_that_stops_reading(tls: Tls) -> None:
    async def test() -> None:
        async with serving(tls=tls) as served:
            _, writer = await served.connect(WIDE + call(1, b"\x14", LARGE))
            await until(lambda: served.front.stats is not None and served.front.stats.calls_open == 1)
            await until(lambda: served.front.stats is not None and served.front.stats.calls_open == 0)
            await until(lambda: served.connections == 0)
            assert await served.is_served(b"after")
            writer.close()

    run(test())
