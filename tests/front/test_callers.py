"""Each TLS handshake costs its address a turn, which decides when it may begin."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from quarry_mq.server.front import door as door_module
from quarry_mq.server.front.door import Callers
from quarry_mq.server.front.fairness import FRAMES_PER_TURN, FairScheduler
from tests.contracts.front_client import soon
from tests.front.test_fair_scheduler import Passes, Talker


class AtDoor:
    """Connections of an address that have said their ClientHello."""

    def __init__(self, all_turns: FairScheduler, host: str) -> None:
        self.callers = Callers(all_turns, all_turns.source(host))
        self.begun: list[int] = []
        self.peers: list[socket.socket] = []
        self.connections: list[socket.socket] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def come(self, count: int) -> None:
        for _ in range(count):
            connection, peer = socket.socketpair()
            self.connections.append(connection)
            self.peers.append(peer)
            self.callers.add(connection)
            self.tasks.append(asyncio.create_task(self._wait(len(self.tasks), connection)))
        await asyncio.sleep(0)

    async def _wait(self, number: int, connection: socket.socket) -> None:
        await self.callers.turn(connection)
        self.begun.append(number)

    def close(self) -> None:
        for each in (*self.connections, *self.peers):
            each.close()


class Street:
    """Hold all turns, and an event loop whose iterations are stepped one by one."""

    def __init__(self) -> None:
        self.passes = Passes()
        self.scheduler = FairScheduler(self.passes.later)
        self.doors: list[AtDoor] = []

    def door(self, host: str) -> AtDoor:
        self.doors.append(AtDoor(self.scheduler, host))
        return self.doors[-1]

    async def next(self) -> None:
        self.passes.next()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@pytest.fixture
def street() -> Iterator[Street]:
    made = Street()
    yield made
    for door in made.doors:
        door.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_one_handshake_of_an_address_begins_in_a_pass(street: Street) -> None:
    async def test() -> None:
        flood, honest = street.door("10.0.0.1"), street.door("10.0.0.2")
        await flood.come(20)
        await honest.come(1)
        for number in range(1, 21):
            await street.next()
            assert flood.begun == list(range(number))
            assert honest.begun == [0]
            assert flood.callers.source.frames_left <= 0, "the turn is over for all of the address"
        await street.next()
        assert not street.passes.soon, "nothing goes round when nobody waits"

    run(test)


def test_handshakes_take_turns_with_connections_of_their_address(street: Street) -> None:
    async def test() -> None:
        done: list[str] = []
        door = street.door("10.0.0.1")
        await door.come(50)
        client = Talker(street.scheduler, "10.0.0.1", "call", done)
        assert client.source is door.callers.source
        await street.next()
        for number in range(1, 6):
            client.say(2)
            await street.next()
            await street.next()
            assert len(done) == 2 * number, "however many handshakes wait"
        assert 5 <= len(door.begun) <= 11

    run(test)


def test_a_turn_that_is_used_up_by_calls_begins_no_handshake(street: Street) -> None:
    async def test() -> None:
        door = street.door("10.0.0.1")
        await door.come(1)
        door.callers.source.spend(3 * FRAMES_PER_TURN, 0.0)
        for _ in range(2):
            await street.next()
            assert door.begun == []
        await street.next()
        await street.next()
        assert door.begun == [0]

    run(test)


def test_so_many_handshakes_of_an_address_are_under_way(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "HANDSHAKES_MAX", 3)
    monkeypatch.setattr(door_module, "HANDSHAKE_YIELDS_S", 1_000.0)

    async def test() -> None:
        door, other = street.door("10.0.0.1"), street.door("10.0.0.2")
        await door.come(6)
        for _ in range(10):
            await street.next()
        assert door.begun == [0, 1, 2]
        await other.come(1)
        await street.next()
        assert other.begun == [0]
        door.callers.remove(door.connections[1])
        await street.next()
        assert door.begun == [0, 1, 2, 3]
        door.callers.send_away()
        with pytest.raises(EOFError):
            await door.tasks[5]
        assert len(door.callers) == 0
        await asyncio.gather(*door.tasks, return_exceptions=True)

    run(test)


def test_a_handshake_that_takes_long_gives_way_to_those_that_wait(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "HANDSHAKES_MAX", 2)
    monkeypatch.setattr(door_module, "HANDSHAKE_YIELDS_S", 0.01)

    async def test() -> None:
        door = street.door("10.0.0.1")
        await door.come(3)

        async def all_began() -> None:
            while door.begun != [0, 1, 2]:
                await asyncio.sleep(0.001)
                await street.next()

        await soon(all_began())
        assert door.peers[0].recv(1) == b"", "the longest was sent away"
        assert len(door.callers) == 2

    run(test)


def test_who_has_hung_up_meanwhile_costs_nothing(street: Street) -> None:
    async def test() -> None:
        door = street.door("10.0.0.1")
        await door.come(10)
        for peer in door.peers[:9]:
            peer.close()
        await street.next()
        assert door.begun == [9]
        assert (await asyncio.gather(*door.tasks, return_exceptions=True))[9] is None
        assert len(door.callers) == 1

    run(test)


def test_who_was_sent_away_before_its_hello_was_seen_waits_for_nothing(street: Street) -> None:
    """A closed connection that still waits would never wake, and a stop would wait for it forever."""

    async def test() -> None:
        door = street.door("10.0.0.1")
        await door.come(1)
        late, peer = socket.socketpair()
        with late, peer:
            door.callers.add(late)
            door.callers.send_away()
            with pytest.raises(EOFError):
                await soon(door.callers.turn(late))
        with pytest.raises(EOFError):
            await door.tasks[0]
        assert len(street.scheduler) == 0

    run(test)


def test_an_address_is_forgotten_with_the_last_of_it(street: Street) -> None:
    async def test() -> None:
        door, second_door = street.door("10.0.0.1"), street.door("10.0.0.1")
        await door.come(2)
        second_door.callers = Callers(street.scheduler, street.scheduler.source("10.0.0.1"))
        await second_door.come(1)
        assert len(street.scheduler) == 1
        assert second_door.callers.source is door.callers.source
        await street.next()
        door.callers.send_away()
        assert len(street.scheduler) == 1
        second_door.callers.remove(second_door.connections[0])
        assert len(street.scheduler) == 0
        for each in (*door.tasks, *second_door.tasks):
            each.cancel()
        await asyncio.gather(*door.tasks, *second_door.tasks, return_exceptions=True)

    run(test)
