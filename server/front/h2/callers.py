"""The waiting connections of one address, and when each may begin its TLS handshake.

Once its ClientHello is there, a connection waits for a turn of its address (`turns.py`), and its handshake takes that
whole turn: one handshake of an address begins in each loop iteration. `HANDSHAKES_MAX` of an address may be under way,
so that not many come to a costly part at the same moment. When others wait, one that has taken `HANDSHAKE_YIELDS_S` is
closed.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Final

from quarry_mq.server.front.h2.hello import has_hung_up
from quarry_mq.server.front.h2.limits.fair_scheduler import FRAMES_PER_HANDSHAKE, FairScheduler, Source

HANDSHAKES_MAX: Final = 64
HANDSHAKE_YIELDS_S: Final = 1.0


class Callers:
    """The waiting connections of one address; `turns` knows the address as long as there are any."""

    def __init__(self, scheduler: FairScheduler, source: Source) -> None:
        self._scheduler = scheduler
        self.source = source
        self._at_door: dict[socket.socket, None] = {}  # the longest waiting first
        self._with_hello: dict[socket.socket, asyncio.Future[None]] = {}
        self._in_handshake: dict[socket.socket, float] = {}  # since when, the longest first
        self._yields: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._at_door)

    def add(self, connection: socket.socket) -> None:
        if not self._at_door:
            self._scheduler.await_callers(self.source, self)
        self._at_door[connection] = None

    def remove(self, connection: socket.socket) -> None:
        """Remove a connection that does not wait any more: it was let in, refused or lost."""
        self._at_door.pop(connection, None)
        self._in_handshake.pop(connection, None)
        if self._at_door:
            self._go_on()
            return
        self._scheduler.no_callers(self.source, self)
        if self._yields is not None:
            self._yields.cancel()
            self._yields = None

    async def turn(self, connection: socket.socket) -> None:
        """Wait until the connection may begin its handshake. Raises EOFError if it will not."""
        if connection not in self._at_door:
            raise EOFError("sent away")  # while its first bytes were being looked at
        turn = asyncio.get_running_loop().create_future()
        self._with_hello[connection] = turn
        self._go_on()
        try:
            await turn
        finally:
            self._with_hello.pop(connection, None)

    def catch_up(self) -> None:
        """Let the first waiting connection begin its handshake. See `turns.Waiting`."""
        while self._with_hello and len(self._in_handshake) < HANDSHAKES_MAX:
            connection = next(iter(self._with_hello))
            if has_hung_up(connection):
                self._send_away(connection)
                continue
            self.source.spend(FRAMES_PER_HANDSHAKE, 0.0)
            self._in_handshake[connection] = asyncio.get_running_loop().time()
            turn = self._with_hello.pop(connection)
            if not turn.done():
                turn.set_result(None)
            break
        self._go_on()

    def send_longest_away(self) -> None:
        self._send_away(next(iter(self._at_door)))

    def send_away(self) -> None:
        """Refuse all waiting connections."""
        for connection in list(self._at_door):
            self._send_away(connection)

    def _send_away(self, connection: socket.socket) -> None:
        """Shut the connection down. The task that waits for it wakes up and closes it."""
        turn = self._with_hello.pop(connection, None)
        if turn is not None and not turn.done():
            turn.set_exception(EOFError("sent away"))
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        self.remove(connection)

    def _go_on(self) -> None:
        if not self._with_hello:
            return
        if len(self._in_handshake) < HANDSHAKES_MAX:
            self._scheduler.put_off(self.source, self)
        elif self._yields is None:
            loop = asyncio.get_running_loop()
            longest_s = next(iter(self._in_handshake.values()))
            self._yields = loop.call_at(longest_s + HANDSHAKE_YIELDS_S, self._yield)

    def _yield(self) -> None:
        """End the longest handshake in favour of a waiting one."""
        self._yields = None
        if self._with_hello and len(self._in_handshake) >= HANDSHAKES_MAX:
            connection, since_s = next(iter(self._in_handshake.items()))
            if asyncio.get_running_loop().time() >= since_s + HANDSHAKE_YIELDS_S:
                self._send_away(connection)
        self._go_on()
