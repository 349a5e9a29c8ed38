"""What a connection says first, looked at where it lies in the socket: nothing of it is taken.

A handshake that begins before the whole ClientHello is there would do its costly part whenever the rest comes, and a
thousand of them at one moment if their peers like. So the ClientHello is waited for, by means of the socket's low-water
mark: a peer that sends it byte by byte wakes nobody.
"""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import suppress
from typing import Final

TLS_HANDSHAKE: Final = b"\x16"
"""The first byte of every TLS connection, and of no HTTP/2 preface."""

RECORD_HEAD_SIZE: Final = 5
RECORD_SIZE_MAX: Final = 1 << 14
MESSAGE_HEAD_SIZE: Final = 4
CLIENT_HELLO: Final = 1

HELLO_SIZE_MAX: Final = 32 * 1024
"""With a ticket that repeats a client's certificates it has some kilobytes."""

HELLO_RECORDS_MAX: Final = 8
"""Clients send one; each further one is looked for from the beginning."""

LOOK_AGAIN_S: Final = 0.05


async def first_byte(connection: socket.socket) -> bytes:
    """Raises EOFError or OSError when there will be none."""
    return await _peeked(connection, 1)


async def client_hello(connection: socket.socket) -> None:
    """Wait until the ClientHello is there whole.

    Raises EOFError or OSError when it will not be, ValueError when what comes is none.
    """
    size, wanted = 0, RECORD_HEAD_SIZE
    while wanted > size:
        size = wanted
        wanted = hello_size(await _peeked(connection, size))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def hello_size(said: bytes) -> int:
    """How many bytes have to be there before more can be told, or before it is all (RFC 8446, 4 and 5.1).

    Raises ValueError when this is not how a ClientHello begins.
    """
    message, at = b"", 0
    for _ in range(HELLO_RECORDS_MAX):
        head = said[at : at + RECORD_HEAD_SIZE]
        if len(head) < RECORD_HEAD_SIZE:
            return at + RECORD_HEAD_SIZE
        size = int.from_bytes(head[3:])
        if head[:1] != TLS_HANDSHAKE or head[1] != 3 or not 0 < size <= RECORD_SIZE_MAX:
            raise ValueError("no record of a TLS handshake")
        message += said[at + RECORD_HEAD_SIZE : at + RECORD_HEAD_SIZE + size]
        at += RECORD_HEAD_SIZE + size
        if message and message[0] != CLIENT_HELLO:
            raise ValueError("a TLS handshake without a ClientHello")
        if at > HELLO_SIZE_MAX:
            break
        whole = MESSAGE_HEAD_SIZE + int.from_bytes(message[1:MESSAGE_HEAD_SIZE])
        if len(said) < at or len(message) >= max(MESSAGE_HEAD_SIZE, whole):
            return at
    raise ValueError("too large a ClientHello")


def has_hung_up(connection: socket.socket) -> bool:
    """Whether the peer has closed the connection, or it is closed here."""
    if connection.fileno() < 0:
        return True
    look = select.poll()
    look.register(connection.fileno(), select.POLLRDHUP)
    return bool(look.poll(0))  # errors and hang-ups are told without being asked for


async def _peeked(connection: socket.socket, size: int) -> bytes:
    """So many bytes, as soon as they are there."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    while True:
        await _readable(connection)
        with suppress(BlockingIOError, InterruptedError):
            said = connection.recv(size, socket.MSG_PEEK)
            if len(said) == size:
                return said
            if not said or has_hung_up(connection):
                raise EOFError("the peer has hung up")
            await asyncio.sleep(LOOK_AGAIN_S)  # a kernel short of memory tells of less than it was asked to wait for


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
