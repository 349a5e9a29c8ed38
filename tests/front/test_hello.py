"""The front finds out from the bytes in the socket whether a TLS ClientHello is complete."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator

import pytest

from quarry_mq.server.front.hello import HELLO_SIZE_MAX, client_hello, hello_size
from tests.contracts.front_client import soon


def real_hello() -> bytes:
    """Return the first bytes that OpenSSL sends."""
    context = ssl.create_default_context()
    said = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost").do_handshake()
    return said.read()


def in_records(hello: bytes, size: int) -> bytes:
    """Return the bytes split into records of at most this many bytes."""
    message = hello[5:]
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


def size_of(said: bytes) -> tuple[int, int]:
    """Return the size of the whole ClientHello, and the number of steps that determined it."""
    size, steps = 5, 0
    while (wanted := hello_size(said[:size])) > size:
        assert size < wanted <= HELLO_SIZE_MAX + (1 << 14) + 5
        size, steps = wanted, steps + 1
    return size, steps


@pytest.mark.parametrize("records", [1, 2, 3, 7])
def test_each_step_asks_for_more_until_all_is_there(records: int) -> None:
    whole = real_hello()
    said = in_records(whole, -(-(len(whole) - 5) // records))
    assert size_of(said) == (len(said), 2 * records - 1)
    assert hello_size(said + b"what comes behind it") == len(said)
    for at in range(len(said)):
        assert at < hello_size(said[:at]) <= len(said)


@pytest.mark.parametrize(
    "said",
    [
        b"garbage",
        b"\x16garbage that is no handshake",
        b"\x15\x03\x01\x00\x02\x02\x00",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x40\x01",
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x80\x2e\x01\x03\x01" + bytes(44),
        b"\x16\x03\x01\x00\x01\x01" * 9,
        (b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes((1 << 14) - 4)) * 3,
    ],
    ids=["text", "text behind", "alert", "empty", "long record", "no hello", "SSL 2", "crumbs", "huge"],
)
def test_what_is_no_client_hello_is_not_waited_for(said: bytes) -> None:
    with pytest.raises(ValueError, match=r"TLS|ClientHello"):
        size_of(said)


class Counting(socket.socket):
    looks = 0

    def recv(self, *arguments: int) -> bytes:
        self.looks += 1
        return super().recv(*arguments)


@pytest.fixture
def pair() -> Iterator[tuple[Counting, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        peer = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
    with peer, Counting(fileno=accepted.detach()) as counting:
        counting.settimeout(0)
        yield counting, peer


def test_nothing_is_taken_and_nobody_wakes_for_a_part(pair: tuple[Counting, socket.socket]) -> None:
    accepted, peer = pair
    said = in_records(real_hello(), 200)

    async def test() -> None:
        waiting = asyncio.create_task(client_hello(accepted))
        for at in range(len(said)):
            assert not waiting.done()
            peer.sendall(said[at : at + 1])
            await asyncio.sleep(0)
        await soon(waiting)
        assert accepted.looks <= 2 * 8
        assert accepted.recv(1 << 16) == said
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1

    asyncio.run(test())


def test_a_peer_that_hangs_up_half_way_is_not_waited_for(pair: tuple[Counting, socket.socket]) -> None:
    accepted, peer = pair

    async def test() -> None:
        peer.sendall(real_hello()[:-1])
        waiting = asyncio.create_task(client_hello(accepted))
        await asyncio.sleep(0)
        peer.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            await soon(waiting)

    asyncio.run(test())
