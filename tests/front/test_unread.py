"""Unread bytes are bounded for all connections together, and the slowest reader gives way."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import pytest

from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import FRAME_HEAD_SIZE
from quarry_mq.server.front import FrontLimits
from quarry_mq.server.front.h2 import H2Front
from quarry_mq.server.front.memory import ROOM, Unread
from tests.contracts.front_client import run, soon
from tests.front.engine import GREETING, Frame, body_of, call, frames_of, statuses
from tests.front.test_abuse_sockets import LARGE, LARGE_SIZE, WIDE, LongPolls, deaf, serving, until

MIB: Final = 1 << 20
LIMIT: Final = 16 * MIB


class Reader:
    """A connection for which so much waits, and that took something last in the pass of that number."""

    def __init__(
        self, unread: Unread, size: int, moved_in: int = 0, *, is_dragging: bool = False, buffered: int = 0
    ) -> None:
        self._unread = unread
        self.unread_size = 0
        self.moved_in = moved_in
        self.is_dragging = is_dragging
        self.buffered = buffered
        self.gave_up = 0
        self.grow(size)

    def grow(self, size: int) -> None:
        self.unread_size += size
        self._unread.grew(self, size)

    def look_at_pace(self) -> None:
        pass

    def refresh(self) -> None:
        if self.buffered:
            size, self.buffered = self.buffered, 0
            self.grow(-size)

    def give_up(self) -> None:
        self.gave_up += 1
        self.grow(-self.unread_size)


def test_the_slowest_gives_up_until_an_eighth_is_free() -> None:
    unread = Unread(80 * MIB)
    quick = [Reader(unread, 10 * MIB, 100) for _ in range(4)]
    stopped = [Reader(unread, MIB, number) for number in range(30)]
    dripping = Reader(unread, 5 * MIB, 100, is_dragging=True)
    unread.relieve()
    assert sum(each.gave_up for each in (*stopped, dripping, *quick)) == 0
    quick[0].grow(6 * MIB)
    assert unread.is_too_much
    unread.relieve()
    assert unread.size <= unread.size_max - unread.size_max // ROOM
    assert dripping.gave_up == 1
    assert [each.gave_up for each in stopped] == [1] * 6 + [0] * 24
    for each in quick:
        each.grow(5 * MIB)
    unread.relieve()
    assert [each.gave_up for each in stopped] == [1] * 26 + [0] * 4
    assert sum(each.gave_up for each in quick) == 0, "who reads goes on"


def test_what_the_socket_took_meanwhile_does_not_count() -> None:
    unread = Unread(8 * MIB)
    readers = [Reader(unread, 3 * MIB, buffered=MIB) for _ in range(3)]
    unread.relieve()
    assert unread.size == 6 * MIB
    assert sum(each.gave_up for each in readers) == 0


def test_nothing_is_kept_of_who_has_nothing_to_read() -> None:
    unread = Unread(MIB)
    reader = Reader(unread, 10)
    reader.grow(-10)
    assert (unread.size, len(unread._waiting)) == (0, 0)


def waiting_size(served: LongPolls) -> int:
    assert isinstance(served.front, H2Front)
    return served.front.board.unread.size


async def read_all(served: LongPolls, count: int) -> bytes:
    """Return the answer to a client that reads a megabyte at a time, with windows as narrow as they begin."""
    reader, writer = await served.connect(GREETING + call(1, bytes((count,)), LARGE))
    answer = b""
    while not statuses(whole_frames(answer)):
        piece = await soon(reader.read(MIB))
        assert piece, "it was sent away"
        answer += piece
        writer.write(frames.window_update(0, len(piece)) + frames.window_update(1, len(piece)))
    writer.close()
    return body_of(whole_frames(answer), 1)


def whole_frames(data: bytes) -> list[Frame]:
    """Those that are there to their end."""
    position = 0
    while position + FRAME_HEAD_SIZE <= len(data):
        end = position + FRAME_HEAD_SIZE + int.from_bytes(data[position : position + 3], "big")
        if end > len(data):
            break
        position = end
    return list(frames_of(data[:position]))


@pytest.mark.parametrize("first", [WIDE, GREETING], ids=["sockets that are full", "windows that are shut"])
def test_readers_that_stop_share_one_limit_and_who_reads_gets_all(first: bytes) -> None:
    """A hundred connections had a mebibyte each beyond the limit, and what their transports held."""

    async def test() -> None:
        async with serving(FrontLimits(max_unread_size=LIMIT)) as served:
            stopped: list[socket.socket] = []
            most = 0
            for number in range(60):
                stopped.append(deaf(served, first + call(1, b"\5", LARGE)))
                if number % 10 == 9:
                    body = await read_all(served, 5)
                    assert len(body) == 5 * (LARGE_SIZE + 5), "who reads gets all"
                await asyncio.sleep(0.005)
                most = max(most, waiting_size(served))
            assert LIMIT // 2 < most < LIMIT + 4 * LARGE_SIZE
            stats = served.front.stats
            assert stats is not None
            assert stats.limits_met["unread_size"] >= 40
            for each in stopped:
                each.close()
            await until(lambda: served.connections == 0)
            assert waiting_size(served) == 0

    run(test())
