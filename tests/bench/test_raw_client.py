"""The client of the benchmarks keeps to its peer's window, and does not run out of it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from random import Random

import pytest

from bench.raw_client import GREETING, RawClient, make_requests
from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import FrameType

CALLS = 400
BODY = bytes(1_000)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as each:
        each.settimeout(20)
        yield each


def _serve(listener: socket.socket) -> int:
    """Read all calls, and give back the window of their data once half of it is used; how many bytes that was in all.

    Windows of streams are given back too, as grpcio does.
    """
    connection, _ = listener.accept()
    given, kept, calls = 0, 0, 0
    with connection, connection.makefile("rb") as stream:
        stream.read(len(GREETING))
        connection.sendall(frames.settings({}))
        while calls < CALLS:
            high, low, kind, _, stream_id = frames.FRAME_HEAD.unpack(stream.read(frames.FRAME_HEAD_SIZE))
            size = high << 16 | low
            stream.read(size)
            if kind != FrameType.DATA:
                continue
            calls, kept = calls + 1, kept + size
            if kept > frames.WINDOW_DEFAULT // 2 or calls == CALLS:
                connection.sendall(frames.window_update(stream_id, size) + frames.window_update(0, kept))
                given, kept = given + kept, 0
        stream.read()
    return given


def test_as_much_may_be_sent_after_many_calls_as_before(listener: socket.socket) -> None:
    host, port = listener.getsockname()
    with ThreadPoolExecutor(max_workers=1) as threads:
        serving = threads.submit(_serve, listener)
        with closing(RawClient(f"{host}:{port}", 1)) as client:
            [connection] = client.connections
            for request in make_requests(Random(7), "/bench.Front/Any", BODY, 0, CALLS):
                client.send(connection, request)
            client.read_until(lambda: connection.window >= frames.WINDOW_DEFAULT)
            assert connection.window == frames.WINDOW_DEFAULT
        assert serving.result() == CALLS * (len(BODY) + 5)
