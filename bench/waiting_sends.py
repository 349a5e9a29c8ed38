"""Clients with one send in flight each, which only count answers, for any server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from random import Random
from typing import Final

from bench.harness import Sample, Server, cpu_s_of
from bench.raw_client import RawClient, RawConnection, make_requests
from quarry_mq.protocol.h2.grpc_messages import MESSAGE_PREFIX_SIZE
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service

PATH: Final = "/apache.rocketmq.v2.MessagingService/SendMessage"
REQUESTS_AT_ONCE: Final = 256


class WaitingSends:
    """Sends continuously, one call at a time on each connection."""

    def __init__(self, client: RawClient, request: Callable[[int], bytes]) -> None:
        """Start one send on each connection.

        `request` gives the frames of a connection's call by its number, from 0.
        """
        self._client = client
        self._request = request
        self._sent = dict.fromkeys(client.connections, 0)
        self._sent_at_s: dict[RawConnection, float] = {}
        for connection in client.connections:
            self._send(connection)

    def until(self, is_over: Callable[[], bool]) -> list[float]:
        """Send until it is over; return the duration of each answered send, in seconds."""
        latencies_s: list[float] = []
        while not is_over():
            for connection in self._client.ready():
                if connection.read():
                    latencies_s.append(time.perf_counter() - self._sent_at_s[connection])
                    self._send(connection)
        return latencies_s

    def _send(self, connection: RawConnection) -> None:
        number = self._sent[connection]
        self._sent[connection] = number + 1
        self._sent_at_s[connection] = time.perf_counter()
        self._client.send(connection, self._request(number))


class SendSampler:
    """Takes samples of one send that several clients repeat, each on its own connection."""

    def __init__(self, random: Random, clients: int, body: bytes, *, messages: int = 1) -> None:
        """Prepare the samples. `messages` is the number of messages of each send."""
        self._clients = clients
        self._messages = messages
        self._random = random
        self._body = body
        self._requests: list[bytes] = []

    def sample(self, server: Server, seconds: float, latencies_s: list[float]) -> Sample:
        """Take a sample, and add the durations of its sends to `latencies_s`.

        Raises RuntimeError when the server refuses them.
        """
        with closing(RawClient(server.endpoint, self._clients)) as client:
            client.on_data(_first_is_served())
            sends = WaitingSends(client, self._request)
            began_s, cpu_s = time.perf_counter(), cpu_s_of(server.pid)
            took_s = sends.until(after(seconds))
            wall_s, cpu_s = time.perf_counter() - began_s, cpu_s_of(server.pid) - cpu_s
        latencies_s += took_s
        return Sample(len(took_s) * self._messages, wall_s, cpu_s)

    def _request(self, number: int) -> bytes:
        if number == len(self._requests):
            self._requests += make_requests(self._random, PATH, self._body, number, REQUESTS_AT_ONCE)
        return self._requests[number]


def _first_is_served() -> Callable[[int, memoryview], None]:
    """Return a check that the first send succeeded: a server that refuses sends is fast, and all sends are alike."""
    is_served = False

    def look(_: int, answer: memoryview) -> None:
        nonlocal is_served
        if not is_served:
            status = service.SendMessageResponse.FromString(bytes(answer[MESSAGE_PREFIX_SIZE:])).status
            if status.code != definition.OK:
                raise RuntimeError(f"sends are refused: {status.message}")
            is_served = True

    return look


def percentile_ms(latencies_s: Sequence[float], share: float) -> float:
    """Return the percentile in ms; for a share of 1, the longest."""
    return sorted(latencies_s)[min(int(len(latencies_s) * share), len(latencies_s) - 1)] * 1000


def after(seconds: float) -> Callable[[], bool]:
    """Return a function that tells whether this time has passed since the call."""
    end_s = time.perf_counter() + seconds
    return lambda: time.perf_counter() >= end_s
