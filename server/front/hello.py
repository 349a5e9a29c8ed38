"""The first bytes of a connection: whether they are a ClientHello, and whether it has come completely.

The ClientHello is inspected in the socket and not consumed. A handshake that begins before the whole ClientHello is
there would do its costly part whenever the rest comes, and a thousand of them could do so at the same moment if their
peers choose to. So the front waits for the ClientHello by means of the socket's low-water mark: a peer that sends it
byte by byte causes no wake-ups.
"""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import suppress
from typing import Final

GREETING_S: Final = 10.0
"""Seconds for the first bytes of a peer, and for its TLS handshake. A header block of HTTP/2 may take as long."""

TLS_HANDSHAKE: Final = b"\x16"
"""The first byte of every TLS connection, and of no HTTP/2 preface."""

RECORD_HEAD_SIZE: Final = 5
RECORD_SIZE_MAX: Final = 1 << 14
MESSAGE_HEAD_SIZE: Final = 4
CLIENT_HELLO: Final = 1

HELLO_SIZE_MAX: Final = 32 * 1024
"""Bytes that a ClientHello may have. With a ticket that repeats a client's certificates it has some kilobytes."""

HELLO_RECORDS_MAX: Final = 8
"""Records that a ClientHello may span. Clients send one; for each further one all are read again."""

LOOK_AGAIN_S: Final = 0.05


async def first_byte(connection: socket.socket) -> bytes:
    """Return the first byte of a connection. Raises EOFError or OSError if there is none."""
    return await peeked(connection, 1)


async def client_hello(connection: socket.socket) -> None:
    """Wait until the ClientHello has come completely.

    Raises EOFError or OSError if it does not, ValueError for bytes that are not a ClientHello.
    """
    size, wanted = 0, RECORD_HEAD_SIZE
    while wanted > size:
        size = wanted
        wanted = hello_size(await peeked(connection, size))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def hello_size(said: bytes) -> int:
    """Return how many bytes must have come to determine more, or for all of it (RFC 8446, 4 and 5.1).

    Raises ValueError if these are not the first bytes of a ClientHello.
    """
    message, at = b"", 0
    for _ in range(HELLO_RECORDS_MAX):
        head = said[at : at + RECORD_HEAD_SIZE]
        if len(head) < RECORD_HEAD_SIZE:
            return at + RECORD_HEAD_SIZE
        size = int.from_bytes(head[3:])
        if head[:1] != TLS_HANDSHAKE or head[1] != 3 or not 0 < size <= RECORD_SIZE_MAX:
            raise ValueError("not a TLS handshake")
        message += said[at + RECORD_HEAD_SIZE : at + RECORD_HEAD_SIZE + size]
        at += RECORD_HEAD_SIZE + size
        if message and message[0] != CLIENT_HELLO:
            raise ValueError("a TLS handshake without a ClientHello")
        if at > HELLO_SIZE_MAX:
            break
        whole = MESSAGE_HEAD_SIZE + int.from_bytes(message[1:MESSAGE_HEAD_SIZE])
        if len(said) < at or len(message) >= max(MESSAGE_HEAD_SIZE, whole):
            return at
    raise ValueError("the ClientHello is too large")


def has_hung_up(connection: socket.socket) -> bool:
    """Return whether the connection is closed, by the peer or here."""
    if connection.fileno() < 0:
        return True
    look = select.poll()
    look.register(connection.fileno(), select.POLLRDHUP)
    return bool(look.poll(0))  # errors and hang-ups are reported without being requested


async def peeked(connection: socket.socket, size: int) -> bytes:
    """Return the first `size` bytes as soon as they have come, without consuming them. Raises EOFError or OSError."""
    return await peeked_more(connection, size, size)


async def peeked_more(connection: socket.socket, least: int, most: int) -> bytes:
    """Return up to `most` first bytes as soon as `least` have come, as `peeked`."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
    while True:
        await _readable(connection)
        with suppress(BlockingIOError, InterruptedError):
            said = connection.recv(most, socket.MSG_PEEK)
            if len(said) >= least:
                return said
            if not said or has_hung_up(connection):
                raise EOFError("the peer has closed the connection")
            await asyncio.sleep(LOOK_AGAIN_S)  # a kernel short of memory reports fewer bytes than the mark


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
