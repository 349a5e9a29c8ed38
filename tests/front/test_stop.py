"""A front that stops, seen by clients whose calls are on their way."""

from __future__ import annotations

import asyncio

import pytest

from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import (
    FRAME_HEAD_SIZE,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    ErrorCode,
    FrameType,
    Setting,
)
from quarry_mq.server.front import Method, make_front
from quarry_mq.server.front.h2 import H2Front
from quarry_mq.server.front.h2.front import WRITE_BUFFER_MAX
from tests.contracts.front_client import PATIENCE_S, echo, run, soon
from tests.front.engine import ECHO, GREETING, Frame, call, frames_of


class RawClient:
    """Frames on a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: str) -> RawClient:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=1024))

    def write(self, *parts: bytes) -> None:
        self._writer.write(b"".join(parts))

    async def next(self, kind: FrameType) -> Frame:
        """The next frame of that kind. What comes before it is dropped."""
        while True:
            head = await soon(self._reader.readexactly(FRAME_HEAD_SIZE))
            payload = await soon(self._reader.readexactly(int.from_bytes(head[:3])))
            (frame,) = frames_of(head + payload)
            if frame.kind == kind:
                return frame

    async def end(self) -> bytes:
        """Return all bytes until the connection is closed."""
        return await soon(self._reader.read())

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def test_a_call_that_was_on_its_way_when_the_front_stopped_is_served() -> None:
    """Also on a connection that had no call open: the peer cannot know before it has read the GOAWAY."""

    async def test() -> None:
        front = make_front("h2", {ECHO: Method(echo)})
        client = await RawClient.connect(await front.start("127.0.0.1:0"))
        client.write(GREETING, call(1, b"first"))
        await client.next(FrameType.DATA)
        stopping = asyncio.ensure_future(front.stop(PATIENCE_S))
        ping = await client.next(FrameType.PING)
        client.write(call(3, b"on its way"), frames.ping(ping.payload, ack=True))
        assert (await client.next(FrameType.DATA)).payload.endswith(b"on its way")
        await soon(stopping)
        assert {each.kind for each in frames_of(await client.end())} == {FrameType.HEADERS, FrameType.GOAWAY}
        await client.close()

    run(test())


@pytest.mark.parametrize("greeted", [GREETING, GREETING[:3], b""])
def test_who_has_just_connected_says_first_what_for(greeted: bytes) -> None:
    """Sent away before its first call, a client that does not repeat by itself shows its user an error."""

    async def test() -> None:
        front = make_front("h2", {ECHO: Method(echo)})
        client = await RawClient.connect(await front.start("127.0.0.1:0"))
        client.write(greeted)
        await asyncio.sleep(0.05)  # the broker has seen as much
        stopping = asyncio.ensure_future(front.stop(PATIENCE_S))
        await asyncio.sleep(0.05)
        client.write(GREETING[len(greeted) :], call(1, b"first"))
        assert (await client.next(FrameType.DATA)).payload.endswith(b"first")
        ping = await client.next(FrameType.PING)
        client.write(frames.ping(ping.payload, ack=True))
        await soon(stopping)
        await client.end()
        await client.close()

    run(test())


def test_a_connection_that_was_sent_away_is_closed_by_the_stop() -> None:
    """It lingers to let its client read why; nobody is there to close it once the front is gone."""

    async def test() -> None:
        front = make_front("h2", {ECHO: Method(echo)})
        client = await RawClient.connect(await front.start("127.0.0.1:0"))
        client.write(GREETING, frames.ping(b"short", ack=False))
        assert (await client.next(FrameType.GOAWAY)).code == ErrorCode.FRAME_SIZE_ERROR
        assert front.stats is not None
        assert front.stats.connections_open == 1
        await front.stop(0)
        assert front.stats.connections_open == 0
        await client.close()

    run(test())


@pytest.mark.parametrize("stops", [True, False])
def test_a_client_that_does_not_read_is_not_kept_for_ever(stops: bool) -> None:
    """Its socket is full, so that closing in good order would wait for it."""

    async def test() -> None:
        front = H2Front({ECHO: Method(lambda call, _: call.reply(bytes(WRITE_BUFFER_MAX * 16)))})
        client = await RawClient.connect(await front.start("127.0.0.1:0"))
        wide = frames.settings({Setting.INITIAL_WINDOW_SIZE: WINDOW_MAX})
        window = frames.window_update(0, WINDOW_MAX - WINDOW_DEFAULT)
        client.write(frames.PREFACE, wide, window, *(call(2 * number + 1) for number in range(8)))
        assert front.stats is not None
        seen = -1
        while front.stats.bytes_sent != seen:  # until not even the kernel takes more
            seen = front.stats.bytes_sent
            await asyncio.sleep(0.1)
        if stops:
            await soon(front.stop(0))
        else:
            (protocol,) = front._protocols
            protocol.end(ErrorCode.ENHANCE_YOUR_CALM, "it does not read")
            while front.stats.connections_open:
                await asyncio.sleep(0.01)
        assert front.stats.connections_open == 0
        client.abort()
        await front.stop(0)

    run(test())


def test_a_client_that_never_answers_does_not_hold_up_the_stop() -> None:
    async def test() -> None:
        front = make_front("h2", {ECHO: Method(echo)})
        clients = [await RawClient.connect(await front.start("127.0.0.1:0")) for _ in range(2)]
        clients[0].write(GREETING, call(1))
        await clients[0].next(FrameType.DATA)
        await soon(front.stop(3600))
        for client in clients:
            await client.end()
            await client.close()

    run(test())
