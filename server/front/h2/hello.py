"""The first bytes of a connection: a ClientHello, HTTP/2's preface, or what clients of other protocols send.

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
from enum import Enum
from typing import Final

from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import PREFACE, WINDOW_DEFAULT, Setting
from quarry_mq.server.front.h2.calls import CONNECTION_WINDOW, STREAM_WINDOW, STREAMS_MAX

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
    return await _peeked(connection, 1)


async def client_hello(connection: socket.socket) -> None:
    """Wait until the ClientHello has come completely.

    Raises EOFError or OSError if it does not, ValueError for bytes that are not a ClientHello.
    """
    size, wanted = 0, RECORD_HEAD_SIZE
    while wanted > size:
        size = wanted
        wanted = hello_size(await _peeked(connection, size))
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


async def _peeked(connection: socket.socket, size: int) -> bytes:
    """Return the first `size` bytes as soon as they have come, without consuming them."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    while True:
        await _readable(connection)
        with suppress(BlockingIOError, InterruptedError):
            said = connection.recv(size, socket.MSG_PEEK)
            if len(said) == size:
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


_HTTP_1: Final = (b"GET ", b"POST ", b"HEAD ", b"PUT ", b"OPTIONS ", b"DELETE ", b"PATCH ", b"CONNECT ", b"TRACE ")
HTTP_1_ANSWER: Final = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Type: text/plain\r\nContent-Length: 43\r\n"
    b"Connection: close\r\n\r\nThis port speaks gRPC, which needs HTTP/2.\r\n"
)


class Greeting(Enum):
    """The kind of a connection's first bytes."""

    PREFACE = "the preface"
    BEGINNING = "the beginning of something that is understood"
    HTTP_1 = "a request of HTTP/1"
    ELSE = "anything else"


def greeting_in(data: bytes) -> Greeting:
    known = min(len(data), len(PREFACE))
    if data[:known] == PREFACE[:known]:
        return Greeting.PREFACE if known == len(PREFACE) else Greeting.BEGINNING
    if data.startswith(_HTTP_1):
        return Greeting.HTTP_1
    return Greeting.BEGINNING if any(each.startswith(data) for each in _HTTP_1) else Greeting.ELSE


def answer_to_preface(metadata_size_max: int) -> bytes:
    """Return the broker's settings, and the window of the connection."""
    return frames.settings(
        {
            Setting.HEADER_TABLE_SIZE: 0,
            Setting.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            Setting.MAX_HEADER_LIST_SIZE: metadata_size_max,
        }
    ) + frames.window_update(0, CONNECTION_WINDOW - WINDOW_DEFAULT)
