"""TLS and plain text on one port, told apart by the first byte."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop
from structlog.testing import capture_logs

from quarry_mq.server.front import Call, Front, LiveTls, Method, TlsFiles, door, grpcio, make_front
from quarry_mq.server.front.fairness import FRAMES_PER_HANDSHAKE, Source
from quarry_mq.server.front.h2 import H2Front
from tests.certificates import Tls, make_tls
from tests.contracts.front_client import UNARY, open_channel, soon, status_of
from tests.front.test_hello import real_hello

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(test, 40))

    return run


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "GREETING_S", 0.3)


def describe(call: Call, body: bytes) -> None:
    call.reply(b"TLS" if call.is_secure else b"plain")


@asynccontextmanager
async def serving(
    tls: Tls, handler: Callable[[Call, bytes], None] = describe, *, plain_too: bool = True
) -> AsyncIterator[tuple[Front, str]]:
    front = make_front("h2", {UNARY: Method(handler)})
    address = await front.start("127.0.0.1:0", tls.live(), plain_too=plain_too)
    try:
        yield front, address
    finally:
        await front.stop(0)


async def ask(address: str, tls: Tls | None = None) -> bytes:
    async with open_channel(address, tls) as channel:
        answer: bytes = await soon(channel.unary_unary(UNARY)(b""))
        return answer


async def connect(address: str, from_host: str | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), local_addr=None if from_host is None else (from_host, 0))


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await soon(wait())


def ended(front: Front, why: str) -> int:
    assert front.stats is not None
    return front.stats.connections_ended[why]


async def is_ended(reader: asyncio.StreamReader) -> bool:
    """Return whether the server hangs up soon, whatever it says before."""
    try:
        while await soon(reader.read(4096)):
            pass
    except ConnectionError:
        pass
    return True


def test_clients_with_tls_and_without_use_one_port(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        tls = make_tls(tmp_path)
        async with serving(tls) as (_, address):
            for _ in range(10):
                secure, plain = await asyncio.gather(ask(address, tls), ask(address))
                assert (secure, plain) == (b"TLS", b"plain")

    run(test())


def test_the_certificate_is_made_for_the_first_client_with_tls(run: Run, tmp_path: Path) -> None:
    """Plain clients do not cause it, and all that come while it is made share one."""
    made = 0

    async def test() -> None:
        tls = make_tls(tmp_path)

        def make() -> None:
            nonlocal made
            made += 1
            time.sleep(0.1)  # so that the others come meanwhile

        lazy = replace(tls, files=replace(tls.files, make=make))
        async with serving(lazy) as (front, address):
            assert await ask(address) == b"plain"
            assert made == 0
            answers = await asyncio.gather(*(ask(address, tls) for _ in range(8)), ask(address))
            assert answers == [b"TLS"] * 8 + [b"plain"]
            assert await ask(address, tls) == b"TLS"
            assert ended(front, "NO_TLS") == 0

    run(test())
    assert made == 1


def test_where_no_certificate_can_be_made_the_hello_fails_and_all_else_is_served(run: Run, tmp_path: Path) -> None:
    """The next client has it tried again."""

    async def test() -> None:
        tls = make_tls(tmp_path)
        is_full = True

        def make() -> None:
            if is_full:
                raise ValueError("TLS: key.pem cannot be made or read: No space left on device")

        lazy = replace(tls, files=replace(tls.files, make=make))
        async with serving(lazy) as (front, address):
            with capture_logs() as logs:
                async with open_channel(address, tls) as channel:
                    assert (await status_of(channel.unary_unary(UNARY)(b"")))[0] is grpc.StatusCode.UNAVAILABLE
            told = [line for line in logs if line["event"] == "no client can use TLS"]
            assert {line["log_level"] for line in told} == {"error"}
            assert {line["reason"] for line in told} == {"TLS: key.pem cannot be made or read: No space left on device"}
            assert len(told) == ended(front, "NO_TLS") > 0
            assert await ask(address) == b"plain"
            is_full = False
            assert await ask(address, tls) == b"TLS"

    run(test())


def test_a_disk_that_hangs_keeps_one_thread_and_no_connection(run: Run, impatient: None, tmp_path: Path) -> None:
    tries, resumed = 0, threading.Event()

    async def test() -> None:
        tls = make_tls(tmp_path)

        def make() -> None:
            nonlocal tries
            tries += 1
            resumed.wait(30)

        lazy = replace(tls, files=replace(tls.files, make=make))
        async with serving(lazy) as (front, address):
            try:
                for _ in range(3):
                    reader, writer = await connect(address)
                    writer.write(real_hello())
                    assert await is_ended(reader)
                    writer.close()
                # on a busy machine a ClientHello may be looked at too late
                assert (tries, ended(front, "NO_TLS") + ended(front, "SILENT")) == (1, 3)
                assert await ask(address) == b"plain"
            finally:
                resumed.set()
            assert await ask(address, tls) == b"TLS"

    run(test())
    assert tries == 1


def test_without_plain_text_only_tls_is_served(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        tls = make_tls(tmp_path)
        async with serving(tls, plain_too=False) as (front, address):
            async with open_channel(address) as stranger:
                assert (await status_of(stranger.unary_unary(UNARY)(b"")))[0] is grpc.StatusCode.UNAVAILABLE
            assert ended(front, "NO_TLS") > 0
            assert await ask(address, tls) == b"TLS"

    run(test())


@pytest.mark.parametrize("demand", ["required", "optional"])
def test_certificates_of_clients_are_seen_on_the_shared_port(run: Run, tmp_path: Path, demand: Any) -> None:
    def certificate_of(call: Call, body: bytes) -> None:
        call.reply(call.peer_certificate or b"none")

    async def test() -> None:
        made = make_tls(tmp_path, clients_too=True)
        assert made.client is not None
        tls = replace(made, files=replace(made.files, client_certificate=demand))
        async with serving(tls, certificate_of) as (_, address):
            assert await ask(address, tls) == ssl.PEM_cert_to_DER_cert(made.client[0].decode())
            assert await ask(address) == b"none"
            if demand == "optional":
                assert await ask(address, replace(tls, client=None)) == b"none"
            (tmp_path / "other").mkdir()
            impostor = replace(tls, client=make_tls(tmp_path / "other", clients_too=True).client)
            for refused in (impostor, *([replace(tls, client=None)] if demand == "required" else [])):
                async with open_channel(address, refused) as channel:
                    assert (await status_of(channel.unary_unary(UNARY)(b"")))[0] is grpc.StatusCode.UNAVAILABLE

    run(test())


def test_who_says_nothing_is_sent_away(run: Run, impatient: None, tmp_path: Path) -> None:
    async def test() -> None:
        tls = make_tls(tmp_path)
        async with serving(tls) as (front, address):
            reader, writer = await connect(address)
            assert await is_ended(reader)
            assert ended(front, "SILENT") == 1
            writer.close()
            _, gone = await connect(address)
            gone.close()
            await until(lambda: ended(front, "SILENT") == 2)
            assert await ask(address, tls) == b"TLS"

    run(test())


@pytest.mark.parametrize(
    "said",
    [b"\x16", b"\x16garbage that is no handshake", b"\x16\x03\x01\x02\x00\x01"],
    ids=["one byte", "garbage", "the beginning of a handshake"],
)
def test_who_only_begins_to_speak_tls_is_sent_away(run: Run, impatient: None, tmp_path: Path, said: bytes) -> None:
    async def test() -> None:
        tls = make_tls(tmp_path)
        async with serving(tls) as (front, address):
            reader, writer = await connect(address)
            writer.write(said)
            assert await is_ended(reader)
            await until(lambda: ended(front, "NO_TLS") == 1)
            writer.close()
            assert await ask(address, tls) == b"TLS"

    run(test())


@pytest.mark.parametrize("said", [b"\x00\xff", b"GET / HTTP/1.1\r\n\r\n", b"\x15\x03\x01"])
def test_garbage_without_tls_is_the_engines_to_refuse(run: Run, tmp_path: Path, said: bytes) -> None:
    async def test() -> None:
        async with serving(make_tls(tmp_path)) as (front, address):
            reader, writer = await connect(address)
            writer.write(said)
            assert await is_ended(reader)
            assert ended(front, "HTTP_1") + ended(front, "PROTOCOL_ERROR") == 1
            writer.close()
            assert await ask(address) == b"plain"

    run(test())


def test_many_who_say_nothing_keep_nobody_out(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that has waited longest has to go when too many wait."""
    monkeypatch.setattr(door, "WAITING_MAX", 150)

    async def test() -> None:
        tls = make_tls(tmp_path)
        async with serving(tls) as (front, address):
            silent = [await connect(address) for _ in range(200)]
            await until(lambda: ended(front, "SILENT") >= 50)
            assert await is_ended(silent[0][0])
            assert await ask(address, tls) == b"TLS"
            assert await ask(address) == b"plain"
            assert ended(front, "SILENT") <= 52, "the others may still wait"
            for _, writer in silent:
                writer.close()

    run(test())


def test_handshakes_that_never_end_keep_nobody_out(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "WAITING_MAX", 20)

    async def test() -> None:
        tls = make_tls(tmp_path)
        async with serving(tls) as (front, address):
            endless = [await connect(address) for _ in range(40)]
            for _, writer in endless:
                writer.write(b"\x16\x03\x01")
            assert await ask(address, tls) == b"TLS"
            await until(lambda: ended(front, "NO_TLS") + ended(front, "SILENT") >= 20)
            for _, writer in endless:
                writer.close()

    run(test())


def test_at_the_limit_one_of_the_address_with_most_has_to_go(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "WAITING_MAX", 20)

    async def test() -> None:
        tls = make_tls(tmp_path)
        async with serving(tls) as (front, address):
            slow = [await connect(address, f"127.0.0.{host}") for host in (2, 3, 3)]
            slow[0][1].write(real_hello()[:100])
            flood = [await connect(address) for _ in range(60)]
            for _, writer in flood[::2]:
                writer.write(real_hello())
            assert await ask(address, tls) == b"TLS"
            await until(lambda: ended(front, "NO_TLS") + ended(front, "SILENT") >= 40)
            for reader, _ in slow:
                assert not reader.at_eof(), "who came first and has few stays"
            assert await is_ended(flood[0][0])
            for _, writer in (*slow, *flood):
                writer.close()

    run(test())


@pytest.mark.parametrize("plain_too", [True, False])
def test_each_handshake_is_charged_to_its_address(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_too: bool
) -> None:
    """Send the same ClientHello again and again: it costs the sender nothing and the broker a private-key operation."""
    spent: dict[str, int] = {}
    spend = Source.spend

    def counted(source: Source, frames: int, seconds: float) -> None:
        if frames == FRAMES_PER_HANDSHAKE:
            spent[source.address] = spent.get(source.address, 0) + 1
        spend(source, frames, seconds)

    monkeypatch.setattr(Source, "spend", counted)
    monkeypatch.setattr(door, "HANDSHAKE_YIELDS_S", 0.01)

    async def test() -> None:
        tls, hello = make_tls(tmp_path), real_hello()
        async with serving(tls, plain_too=plain_too) as (front, address):
            replayed = [await connect(address, "127.0.0.2") for _ in range(100)]
            for _, writer in replayed:
                writer.write(hello)
            for reader, _ in replayed:
                # the server's first flight, or the end of one that had its time
                await soon(reader.read(1))
            assert await ask(address, tls) == b"TLS"
            assert spent == {"127.0.0.2": 100, "127.0.0.1": 1}
            for _, writer in replayed:
                writer.close()
            await until(lambda: ended(front, "NO_TLS") == 100)

    run(test())


def test_a_hello_that_comes_in_pieces_begins_no_handshake_before_it_is_whole(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        tls, hello = make_tls(tmp_path), real_hello()
        async with serving(tls) as (front, address):
            assert isinstance(front, H2Front)
            reader, writer = await connect(address)
            writer.write(hello[:-1])
            assert await ask(address, tls) == b"TLS"
            (source,) = front.resources.scheduler._sources.values()
            ((waiting, _),) = source.callers.items()
            assert isinstance(waiting, door.Callers)
            assert not waiting._in_handshake
            writer.write(hello[-1:])
            assert await soon(reader.read(1)) == b"\x16"
            assert len(waiting._in_handshake) == 1
            writer.close()
            await until(lambda: len(waiting) == 0)

    run(test())


def test_a_stop_does_not_wait_for_those_at_the_door(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        tls = make_tls(tmp_path)
        async with serving(tls) as (_, address):
            waiting = [await connect(address) for _ in range(3)]
            waiting[1][1].write(b"\x16")
            assert await ask(address) == b"plain"
        for reader, writer in waiting:
            assert await is_ended(reader)
            writer.close()

    run(test())


def test_few_connections_are_accepted_in_a_pass(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        tls = make_tls(tmp_path)
        async with serving(tls) as (front, address):
            assert isinstance(front, H2Front)
            (opened,) = front._servers
            assert isinstance(opened, door.Door)
            (listening,) = opened._listening
            asyncio.get_running_loop().remove_reader(listening)
            host, _, port = address.rpartition(":")
            came = [socket.create_connection((host, int(port))) for _ in range(3 * door.ACCEPTED_AT_ONCE_MAX)]
            for number in range(1, 4):
                opened._accept(listening)
                assert sum(map(len, opened._callers.values())) == number * door.ACCEPTED_AT_ONCE_MAX
            for each in came:
                each.close()
            await until(lambda: not opened._callers)

    run(test())


def test_a_taken_port_is_named(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        tls = make_tls(tmp_path)
        async with serving(tls) as (_, address):
            with pytest.raises(OSError, match=address):
                await make_front("h2", {}).start(address, tls.live())

    run(test())


def test_when_descriptors_run_out_the_door_opens_again_later(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "ACCEPT_PAUSE_S", 0.1)
    refusals: list[int] = []

    class Full(socket.socket):
        def accept(self) -> Any:
            if len(refusals) < 3:
                refusals.append(1)
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    def create_server(address: tuple[str, int], *, family: int, backlog: int) -> socket.socket:
        made = Full(family, socket.SOCK_STREAM)
        made.bind(address)
        made.listen(backlog)
        return made

    monkeypatch.setattr(socket, "create_server", create_server)

    async def test() -> None:
        tls = make_tls(tmp_path)
        async with serving(tls) as (_, address):
            assert await ask(address, tls) == b"TLS"
            assert len(refusals) == 3

    run(test())


def test_the_grpcio_front_says_what_it_cannot_do(tmp_path: Path) -> None:
    async def test() -> None:
        made = make_tls(tmp_path, clients_too=True)
        front = make_front("grpcio", {})
        with pytest.raises(ValueError, match="on one port"):
            await front.start("127.0.0.1:0", made.live(), plain_too=True)
        optional: TlsFiles = replace(made.files, client_certificate="optional")
        with pytest.raises(ValueError, match="always or never"):
            await front.start("127.0.0.1:0", LiveTls(optional))
        await front.stop(0)

    asyncio.run(test())


@pytest.mark.parametrize("secure", [True, False])
def test_the_grpcio_front_sends_away_who_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    """A silent connection is closed within the broker's limit; gRPC's default is two minutes."""
    assert (grpcio.HANDSHAKE_MS, grpcio.IDLE_MS) == (10_000, 30 * 60_000)
    monkeypatch.setattr(grpcio, "HANDSHAKE_MS", 300)

    async def test() -> None:
        front = make_front("grpcio", {})
        address = await front.start("127.0.0.1:0", make_tls(tmp_path).live() if secure else None)
        reader, writer = await connect(address)
        assert await is_ended(reader)
        writer.close()
        await front.stop(0)

    asyncio.run(test())
