"""Floods a broker from a process of its own: `python -m tests.attack.flooder KIND ENDPOINT SOURCE CONNECTIONS SECONDS`.

It makes what it sends beforehand and does not look at answers, so that a little of one core is enough to keep the
broker's busy. When a connection ends, or all that was made is sent, it opens another one. Prints how much it did.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Final

from quarry_mq.protocol.h2.frames import ErrorCode, ping, reset, settings
from tests.attack.mutation import Mutator
from tests.attack.wire import WIDE_GREETING, block, call, signed
from tests.hostile.caller import METHODS
from tests.hostile.test_requests import good_request

CALLS: Final = 20_000
"""Calls of one connection before it is closed and another one is opened."""

QUIET_S: Final = 0.03
"""All answers are there when everything is sent and nothing has come for so long."""

FRAMES: Final = 40_000
READ_SIZE: Final = 256 * 1024
NICE: Final = 10


def _repeated(method: str, body: bytes) -> bytes:
    head = block(method)
    return b"".join(call(number, head, body) for number in range(CALLS))


def _request(method: str) -> bytes:
    body: bytes = good_request(method).SerializeToString()
    return body


def _sql(number: int) -> bytes:
    """A receive with an expression that nobody has sent before and that takes long to read."""
    request = good_request("ReceiveMessage")
    request.filter_expression.type = 2
    request.filter_expression.expression = "(" * 90 + f"a{number}" + ")" * 90 + " OR b = 'x'" * 350
    body: bytes = request.SerializeToString()
    return body


def _malformed() -> bytes:
    random = Random(5)
    mutator = Mutator(random, [_request("SendMessage"), *map(_request, METHODS)])
    head = block("SendMessage")
    return b"".join(call(number, head, mutator.next()) for number in range(CALLS))


def _resets() -> bytes:
    head, body = block("QueryRoute"), _request("QueryRoute")
    return b"".join(
        call(number, head, body, end=False) + reset(2 * number + 1, ErrorCode.CANCEL) for number in range(CALLS)
    )


def _wrong_secrets() -> bytes:
    """Sends of a user that there is, signed now with what is not its secret."""
    head, body = block("SendMessage", *signed("shop", "not-the-secret-0001")), _request("SendMessage")
    return b"".join(call(number, head, body) for number in range(CALLS))


WRONG_SECRETS: Final = "wrong secrets"

KINDS: Final[dict[str, Callable[[], bytes]]] = {
    "routes": lambda: _repeated("QueryRoute", _request("QueryRoute")),
    "empty receives": lambda: _repeated("ReceiveMessage", _request("ReceiveMessage")),
    "sends": lambda: _repeated("SendMessage", _request("SendMessage")),
    "costly filters": lambda: b"".join(call(number, block("ReceiveMessage"), _sql(number)) for number in range(50)),
    "malformed": _malformed,
    "resets": _resets,
    "pings": lambda: ping(bytes(8), ack=False) * FRAMES,
    "settings": lambda: settings({}) * FRAMES,
    "noise": lambda: Random(6).randbytes(1 << 20),
    WRONG_SECRETS: _wrong_secrets,
    "unknown frames": lambda: (bytes(3) + b"\xfa" + bytes(5)) * FRAMES,
}
"""What is sent on each connection, again and again."""


class Flood:
    """One connection of the flood."""

    def __init__(self, host: str, port: int, source: str, whole: bytes) -> None:
        self.socket = socket.socket()
        self.socket.bind((source, 0))
        self.socket.connect((host, port))
        self.socket.setblocking(False)
        self._whole = memoryview(WIDE_GREETING + whole)
        self._sent = 0
        self._moved_at_s = time.monotonic()
        self._is_ended = False

    @property
    def wants_to_send(self) -> bool:
        return self._sent < len(self._whole) and not self._is_ended

    def is_over(self, now_s: float) -> bool:
        return self._is_ended or (self._sent == len(self._whole) and now_s - self._moved_at_s > QUIET_S)

    def go_on(self) -> None:
        """Send as much as is taken, throw away what comes."""
        try:
            if self.wants_to_send:
                self._sent += self.socket.send(self._whole[self._sent : self._sent + READ_SIZE])
                self._moved_at_s = time.monotonic()
        except BlockingIOError:
            pass
        except OSError:
            self._is_ended = True
        try:
            self._is_ended = not self.socket.recv(READ_SIZE)
            self._moved_at_s = time.monotonic()
        except BlockingIOError:
            pass
        except OSError:
            self._is_ended = True


def flood(kind: str, endpoint: str, source: str, connections: int, seconds: float) -> int:
    """Returns how many connections that took."""
    host, _, port = endpoint.rpartition(":")
    whole = KINDS[kind]()
    print("ready", flush=True)
    made = 0
    open_now: list[Flood] = []
    end_s = time.monotonic() + seconds
    while (now_s := time.monotonic()) < end_s:
        for one in [each for each in open_now if each.is_over(now_s)]:
            one.socket.close()
            open_now.remove(one)
        try:
            while len(open_now) < connections:
                open_now.append(Flood(host, int(port), source, whole))
                made += 1
        except OSError:
            time.sleep(0.01)  # refused for now
        sending = [each.socket for each in open_now if each.wants_to_send]
        readable, writable, _ = select.select([each.socket for each in open_now], sending, [], QUIET_S)
        ready = {*readable, *writable}
        for one in open_now:
            if one.socket in ready:
                one.go_on()
    for one in open_now:
        one.socket.close()
    return made


def main() -> None:
    kind, endpoint, source, connections, seconds = sys.argv[1:]
    os.nice(NICE)
    print(flood(kind, endpoint, source, int(connections), float(seconds)))


if __name__ == "__main__":
    main()
