"""Makes calls on many connections from one thread, and runs timed work: for load of which every call matters.

Answers are handed on as they come, so times that are taken on them include this process's own delays.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from random import Random
from struct import Struct
from typing import Final

from bench.raw_client import CallMaker, RawConnection

PATIENCE_S: Final = 120.0
_PREFIX: Final = Struct(">BI")
_LOOK_S: Final = 0.05

Answered = Callable[[bytes], bool]
"""Takes a message of an answer; returns whether it was the last one."""


class Loop:
    """Makes calls on its own connections, and runs work at its time."""

    def __init__(self, random: Random) -> None:
        self._poll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._random = random
        self._makers: dict[str, CallMaker] = {}

    def connect(self, endpoint: str) -> Connection:
        connection = Connection(endpoint)
        self._connections[connection.descriptor] = connection
        self._poll.register(connection.descriptor, select.EPOLLIN)
        return connection

    def close(self, connections: Sequence[Connection]) -> None:
        for connection in connections:
            del self._connections[connection.descriptor]
            connection.close()

    def call(
        self, connection: Connection, method: str, body: bytes, client_id: bytes, answered: Answered | None
    ) -> None:
        """Start a call. `answered` None: a stream on which the client may send more, and whose answers are ignored."""
        maker = self._makers.get(method)
        if maker is None:
            maker = self._makers[method] = CallMaker(self._random, f"/apache.rocketmq.v2.MessagingService/{method}")
        connection.call(maker, body, client_id, answered)

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        self.at(time.monotonic() + seconds, work)

    def at(self, due_s: float, work: Callable[[], None]) -> None:
        """Run the work at this time of the monotonic clock."""
        heappush(self._due, (due_s, next(self._numbers), work))

    def run_until(self, done: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        """Run the loop until the condition holds.

        Raises RuntimeError if that takes longer; the text says `what` is missing.
        """
        end_s = time.monotonic() + patience_s
        while not done():
            now_s = time.monotonic()
            if now_s > end_s:
                raise RuntimeError(f"still not after {patience_s:.0f} s: {what}")
            while self._due and self._due[0][0] <= now_s:
                heappop(self._due)[2]()
            for connection in self._connections.values():
                connection.flush()
            wait_s = min(_LOOK_S, max(0.0, self._due[0][0] - now_s)) if self._due else _LOOK_S
            for descriptor, _ in self._poll.poll(wait_s):
                self._connections[descriptor].read()


class Connection:
    """A connection and the calls that are open on it."""

    def __init__(self, endpoint: str) -> None:
        self._raw = RawConnection(endpoint)
        self._raw.on_data = self._take
        self.is_closed = False
        self._count = 0
        self._unsent: list[bytes] = []
        self._answers: dict[int, tuple[bytearray, Answered]] = {}

    @property
    def descriptor(self) -> int:
        return self._raw.socket.fileno()

    def close(self) -> None:
        self.is_closed = True
        self._raw.socket.close()

    def read(self) -> None:
        self._raw.read()

    def call(self, maker: CallMaker, body: bytes, client_id: bytes, answered: Answered | None) -> None:
        number = self._count
        self._count += 1
        if answered is not None:
            self._answers[2 * number + 1] = (bytearray(), answered)
        self._unsent.append(maker.call(number, body, client_id=client_id, goes_on=answered is None))

    def flush(self) -> None:
        """Send waiting calls, as many as the server's window allows."""
        unsent = self._unsent
        while unsent and self._raw.is_greeted and self._raw.window > len(unsent[0]):
            size = number = 0
            for request in unsent:
                if number and size + len(request) > self._raw.window:
                    break
                size += len(request)
                number += 1
            self._raw.send(b"".join(unsent[:number]))
            del unsent[:number]

    def _take(self, stream_id: int, payload: memoryview) -> None:
        """Take the messages of one answer, whatever frames they come in."""
        if stream_id not in self._answers:
            return
        answer, answered = self._answers[stream_id]
        answer += payload
        at = 0
        while len(answer) - at >= _PREFIX.size:
            end = at + _PREFIX.size + _PREFIX.unpack_from(answer, at)[1]
            if len(answer) < end:
                break
            if answered(bytes(answer[at + _PREFIX.size : end])):
                del self._answers[stream_id]
                return
            at = end
        del answer[:at]
