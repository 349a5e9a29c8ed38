"""Load balancers say in a PROXY header whose connection they forward."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv4Address, IPv6Address, ip_network
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.server.addresses import Ends
from quarry_mq.server.front import Call, FrontLimits, Method, make_front
from quarry_mq.server.front.h2 import H2Front
from quarry_mq.server.front.proxy_header import (
    HEAD_SIZE,
    LINE_SIZE_MAX,
    LOCAL,
    PROXY,
    SIGNATURE,
    SIZE_MAX,
    ProxyHeaderMalformed,
    ends_of_binary,
    ends_of_line,
    take_proxy_header,
)
from quarry_mq.server.front.remoting import RemotingFront
from tests.certificates import Tls, make_tls
from tests.contracts.front_client import UNARY, open_channel, soon
from tests.front.test_door import Run, impatient, is_ended, run, until

__all__ = ["impatient", "run"]

CLIENT: Final = Ends("192.0.2.7", "192.0.2.7:56324", "198.51.100.1:443")
LINE: Final = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n"


def binary(
    client: IPv4Address | IPv6Address, here: IPv4Address | IPv6Address, ports: tuple[int, int], more: bytes = b""
) -> bytes:
    rest = client.packed + here.packed + ports[0].to_bytes(2) + ports[1].to_bytes(2) + more
    family = 0x11 if client.version == 4 else 0x21
    return SIGNATURE + bytes([PROXY, family]) + len(rest).to_bytes(2) + rest


HEADERS: Final = (LINE, binary(IPv4Address("192.0.2.7"), IPv4Address("198.51.100.1"), (56324, 443), b"\x04\x00\x01x"))
PORTS: Final = st.tuples(st.integers(0, 65_535), st.integers(0, 65_535))
PAIRS: Final = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.ip_addresses(v=4)), st.tuples(st.ip_addresses(v=6), st.ip_addresses(v=6))
)


@given(PAIRS, PORTS, st.binary(max_size=40))
def test_both_versions_name_the_same_ends(
    pair: tuple[IPv4Address | IPv6Address, IPv4Address | IPv6Address], ports: tuple[int, int], more: bytes
) -> None:
    client, here = pair
    line = f"PROXY TCP{client.version} {client} {here} {ports[0]} {ports[1]}".encode()
    bracketed = (f"[{each}]" if each.version == 6 else str(each) for each in pair)
    ends = Ends(str(client), *(f"{host}:{port}" for host, port in zip(bracketed, ports, strict=True)))
    assert ends_of_line(line) == ends_of_binary(binary(client, here, ports, more)) == ends


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_any_bytes_are_ends_or_nothing_or_malformed(line: bytes, rest: bytes) -> None:
    with suppress(ProxyHeaderMalformed):
        ends_of_line(b"PROXY " + line)
    with suppress(ProxyHeaderMalformed):
        ends_of_binary((SIGNATURE + rest).ljust(HEAD_SIZE, b"\x00"))


@pytest.mark.parametrize(
    "line",
    [
        b"PROXY TCP4 192.0.2.7 198.51.100.1 56324",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443 1",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 65536",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 -1 443",
        b"PROXY TCP4 2001:db8::1 2001:db8::2 56324 443",
        b"PROXY TCP6 192.0.2.7 198.51.100.1 56324 443",
        b"PROXY TCP4 names 198.51.100.1 56324 443",
        b"PROXY UDP4 192.0.2.7 198.51.100.1 56324 443",
        b"PROXY  TCP4 192.0.2.7 198.51.100.1 56324 443",
        b"PROXY TCP4 192.0.2.\xff 198.51.100.1 56324 443",
    ],
)
def test_malformed_lines(line: bytes) -> None:
    with pytest.raises(ProxyHeaderMalformed):
        ends_of_line(line)


def taken(*pieces: bytes, hangs_up: bool = False) -> tuple[Ends | None, bytes]:
    """Return what a connection's header names, and the bytes that are left in the socket."""

    async def whole() -> tuple[Ends | None, bytes]:
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            taking = asyncio.ensure_future(take_proxy_header(here))
            for piece in pieces:
                there.sendall(piece)
                await asyncio.sleep(0.005)
            if hangs_up:
                there.close()
            ends = await soon(taking)
            try:
                return ends, here.recv(4096)
            except BlockingIOError:
                return ends, b""

    return asyncio.run(whole())


@pytest.mark.parametrize("header", HEADERS)
def test_exactly_the_header_is_consumed_however_it_is_cut(header: bytes) -> None:
    assert taken(header + b"PRI * HTTP/2.0") == (CLIENT, b"PRI * HTTP/2.0")
    assert taken(*(header[at : at + 1] for at in range(len(header))), b"\x16\x03") == (CLIENT, b"\x16\x03")
    with pytest.raises(EOFError):
        taken(header[:-1], hangs_up=True)


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n",
        SIGNATURE + bytes([LOCAL, 0, 0, 0]),
        SIGNATURE + bytes([LOCAL, 0x11, 0, 3]) + b"abc",
        SIGNATURE + bytes([PROXY, 0x00, 0, 0]),
        SIGNATURE + bytes([PROXY, 0x31, 0, 216]) + bytes(216),
    ],
)
def test_a_header_without_addresses_is_consumed_and_names_nobody(header: bytes) -> None:
    assert taken(header + b"next") == (None, b"next")


@pytest.mark.parametrize(
    "first", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\x00\x00\x00\x10", b"GET / HTTP/1.1"]
)
def test_a_connection_without_a_header_stays_untouched(first: bytes) -> None:
    assert taken(first) == (None, first)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"PROXY TCP4 ".ljust(LINE_SIZE_MAX, b"1"), "the line does not end"),
        (SIGNATURE + bytes([0x11, 0x11, 0, 12]) + bytes(12), "version 1, command 1"),
        (SIGNATURE + bytes([0x22, 0x11, 0, 12]) + bytes(12), "version 2, command 2"),
        (SIGNATURE + bytes([PROXY, 0x21, 0, 12]) + bytes(12), "too short for its addresses"),
        (SIGNATURE + bytes([PROXY, 0x11]) + (SIZE_MAX + 1).to_bytes(2), f"it has {SIZE_MAX + 1} bytes"),
    ],
)
def test_malformed_headers(header: bytes, reason: str) -> None:
    with pytest.raises(ProxyHeaderMalformed, match=re.escape(reason)):
        taken(header)


def describe(call: Call, body: bytes) -> None:
    call.reply(f"{call.peer} {'TLS' if call.is_secure else 'plain'}".encode())


@asynccontextmanager
async def serving(believed: str = "127.0.0.0/8", tls: Tls | None = None) -> AsyncIterator[tuple[H2Front, str]]:
    front = make_front("h2", {UNARY: Method(describe)}, limits=FrontLimits(proxies=(ip_network(believed),)))
    assert isinstance(front, H2Front)
    address = await front.start("127.0.0.1:0", None if tls is None else tls.live(), plain_too=True)
    try:
        yield front, address
    finally:
        await front.stop(0)


@asynccontextmanager
async def balanced(address: str, header: bytes) -> AsyncIterator[str]:
    """A load balancer in front of an address, which begins each connection with the header."""
    host, _, port = address.rpartition(":")
    connections: list[asyncio.Future[tuple[None, None]]] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
        await ended(writer)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection(host, int(port))
        back_writer.write(header)
        connections.append(asyncio.gather(pump(reader, back_writer), pump(back_reader, writer)))

    async with await asyncio.start_server(forward, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*connections)  # else what is open when the loop ends is collected in another test


async def ended(writer: asyncio.StreamWriter) -> None:
    """Close a connection, and wait for its end: a loop that is closed before has warnings."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def ask(address: str, tls: Tls | None = None) -> str:
    async with open_channel(address, tls) as channel:
        answer: bytes = await soon(channel.unary_unary(UNARY)(b""))
        return answer.decode()


@pytest.mark.parametrize("header", HEADERS)
def test_the_client_of_a_load_balancer_is_known_with_tls_and_without(run: Run, tmp_path: Path, header: bytes) -> None:
    async def test() -> None:
        tls = make_tls(tmp_path)
        async with serving(tls=tls) as (front, address), balanced(address, header) as forwarded:
            assert await ask(forwarded) == f"{CLIENT.peer} plain"
            assert await ask(forwarded, tls) == f"{CLIENT.peer} TLS"
            assert front.resources.scheduler.source(CLIENT.peer_host).address == CLIENT.peer_host
            assert re.fullmatch(r"127\.0\.0\.1:\d+ plain", await ask(address)), "a direct client needs no header"
        async with serving() as (_, address), balanced(address, header) as forwarded:
            assert await ask(forwarded) == f"{CLIENT.peer} plain", "no TLS at all"

    run(test())


def test_connections_count_for_the_client_and_not_for_the_load_balancer(run: Run) -> None:
    async def test() -> None:
        async with serving() as (front, address):
            host, _, port = address.rpartition(":")
            writers = []
            for number in (7, 7, 8):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(LINE.replace(b"192.0.2.7", b"192.0.2.%d" % number) + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                writers.append(writer)
            source = front.resources.scheduler.source
            await until(lambda: len(source("192.0.2.7").connections) == 2 and len(source("192.0.2.8").connections) == 1)
            assert not source("127.0.0.1").connections
            for writer in writers:
                await ended(writer)
            await until(lambda: front.resources.stats.connections_open == 0)

    run(test())


def test_who_is_not_a_known_load_balancer_is_not_believed(run: Run) -> None:
    async def test() -> None:
        async with serving("192.0.2.0/24") as (front, address):
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(LINE + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert await is_ended(reader)
            await ended(writer)
            assert not front.resources.scheduler.source(CLIENT.peer_host).connections

    run(test())


@pytest.mark.parametrize(
    ("said", "why"), [(b"PROXY TCP4 x y 1 2\r\n", "PROXY_MALFORMED"), (LINE[:20], "SILENT"), (LINE, "SILENT")]
)
def test_a_load_balancer_that_does_not_finish_is_sent_away(run: Run, impatient: None, said: bytes, why: str) -> None:
    async def test() -> None:
        async with serving() as (front, address):
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(said)
            assert await is_ended(reader)
            await until(lambda: front.resources.stats.connections_ended[why] == 1)
            await ended(writer)

    run(test())


def test_remoting_connections_have_the_ends_that_the_load_balancer_names(run: Run) -> None:
    async def test() -> None:
        async with serving() as (front, address):
            remoting = RemotingFront({}, lambda call: call.answer(), front.resources)
            front.other_protocol = remoting.protocol
            own = await remoting.start("127.0.0.1:0")
            for each in (address, own):
                host, _, port = each.rpartition(":")
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(LINE + b"\x00\x00\x00\x40")
                await until(lambda: len(remoting.connections) == 1)  # type: ignore[arg-type]
                [connection] = remoting.connections
                assert (connection.peer, connection.local) == (CLIENT.peer, CLIENT.local)
                await ended(writer)
                await until(lambda: not remoting.connections)
            await remoting.stop(0)

    run(test())
