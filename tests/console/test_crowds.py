"""Strangers before the console, and users who hold more connections than they need: others get in all the same."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from threading import Event
from typing import Any, Final

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.console import connections
from quarry_mq.server.console.calls import LOGINS_MAX, LOGINS_PER_ADDRESS_MAX, CallFailed, Rules, Threads
from quarry_mq.server.console.connections import CONNECTIONS_MAX, Connections
from tests.console.browser import JSON, Browser
from tests.console.endless import TAIL, console_before, endless_admin
from tests.console.test_hostile import ENTRY, GET_BROKER, PATIENCE_S

SLOW_LOGIN: Final = (
    b"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
)
ELSEWHERE: Final = "127.0.0.2"


@pytest.fixture
def browser() -> Iterator[Browser]:
    """Before a console that asks for a login, which its link is."""
    with endless_admin() as (_, admin), console_before(admin, Rules(is_always_own=True, entry=ENTRY)) as browser:
        yield browser


def crowd(browser: Browser, sent: bytes, count: int, source: str) -> ExitStack:
    """So many connections, each of which has sent this and then nothing."""
    host, _, port = browser.address.rpartition(":")
    open_ones = ExitStack()
    for _ in range(count):
        connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S, source_address=(source, 0))
        open_ones.enter_context(connection)
        with suppress(ConnectionError):  # another one of the crowd has taken its place
            connection.sendall(sent)
    return open_ones


@pytest.mark.parametrize("sent", [SLOW_LOGIN, SLOW_LOGIN[:60], b""], ids=["bodies", "headers", "nothing"])
@pytest.mark.parametrize("source", ["127.0.0.1", ELSEWHERE])
def test_strangers_keep_nobody_out_and_end_no_session(browser: Browser, sent: bytes, source: str) -> None:
    assert browser.get("/enter?key=the-key").status == 303
    stream = browser.connect()
    with browser.asking(stream, "POST", f"/api/stream/{TAIL}", json.dumps({"topic": "fast"}).encode(), JSON) as lines:
        assert lines.readline()
        with crowd(browser, sent, 3 * CONNECTIONS_MAX, source):
            for _ in range(5):
                assert browser.post(GET_BROKER, {}).status == 200
            newcomer = Browser(browser.address)
            assert newcomer.get("/enter?key=the-key").status == 303
            assert newcomer.post(GET_BROKER, {}).status == 200
            for _ in range(20):
                assert lines.readline(), "who is logged in has kept the connection"
    stream.close()


class _Protocol:
    """A connection of the library's, from an address; `transport` is itself."""

    def __init__(self, host: str) -> None:
        self.transport = self
        self.peer = (host, 1)
        self.is_aborted = False

    def get_extra_info(self, _name: str) -> Any:
        return self.peer

    def abort(self) -> None:
        self.is_aborted = True


class _Server:
    def __init__(self) -> None:
        self.connections: list[_Protocol] = []


class Bench:
    def __init__(self) -> None:
        self.server = _Server()
        server: Any = self.server
        self.clock = ManualClock()
        self.connections = Connections(server, None, self.clock)

    def connect(self, host: str, owner: str | None = None, *, is_busy: bool = False) -> _Protocol:
        self.clock.advance(0.001)
        protocol = _Protocol(host)
        self.server.connections.append(protocol)
        self.connections.begin(protocol)
        if owner is not None:
            self.connections.known(protocol, owner)
        if not is_busy:
            self.connections.end(protocol)
        return protocol

    def goes(self, address: str) -> _Protocol | None:
        """Which one gives way to a new connection of this address."""
        victim = self.connections._giving_way(address)
        if victim is None:
            return None
        victim.end()
        (protocol,) = (each for each in self.server.connections if each.is_aborted)
        self.server.connections.remove(protocol)
        return protocol


def test_who_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 8)
    bench = Bench()
    one = [bench.connect("192.0.2.1", "user a", is_busy=True) for _ in range(5)]
    waiting = [bench.connect("192.0.2.2", f"user {name}") for name in "bcc"]
    stranger = bench.connect("203.0.113.1")
    slow = [bench.connect("198.51.100.1", is_busy=True) for _ in range(2)]
    # strangers first, of the address that has most of them, the oldest first
    assert [bench.goes("192.0.2.9") for _ in range(3)] == [slow[0], stranger, slow[1]]
    # then who is logged in and waits, of the user that has most
    assert [bench.goes("192.0.2.9") for _ in range(3)] == [waiting[1], waiting[0], waiting[2]]
    # all are at work: who has more than half
    assert bench.goes("192.0.2.9") is one[0]
    assert bench.goes("192.0.2.9") is None


def test_what_has_gone_is_forgotten() -> None:
    bench = Bench()
    for _ in range(100):
        bench.connect("192.0.2.1", "user a")
    bench.server.connections.clear()
    assert bench.connections._there() == []
    assert bench.connections._open == {}


def refusal(running: asyncio.Task[Any]) -> str:
    error = running.exception()
    assert isinstance(error, CallFailed)
    return error.code


def test_logins_that_hang_hold_up_no_call() -> None:
    async def test() -> None:
        threads, hold = Threads(), Event()
        try:
            loop = asyncio.get_running_loop()
            wait: Callable[[], bool] = lambda: hold.wait(PATIENCE_S)  # noqa: E731
            of_one = [loop.create_task(threads.run_login(wait, "a")) for _ in range(LOGINS_PER_ADDRESS_MAX + 1)]
            addresses = map(str, range(LOGINS_MAX - LOGINS_PER_ADDRESS_MAX + 1))
            others = [loop.create_task(threads.run_login(wait, each)) for each in addresses]
            await asyncio.wait([of_one[-1], others[-1]])
            assert refusal(of_one[-1]) == refusal(others[-1]) == "UNAVAILABLE"
            assert await asyncio.gather(*(threads.run(lambda: 7) for _ in range(20))) == [7] * 20
            hold.set()
            assert await asyncio.gather(*of_one[:-1], *others[:-1]) == [True] * LOGINS_MAX
            assert await threads.run_login(lambda: 8, "a") == 8
            assert not threads._open_logins
        finally:
            hold.set()
            threads.close()

    asyncio.run(test())
