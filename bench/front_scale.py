"""Measures the front at scale: many connections, many waiting calls, and clients that stop reading.

A client that costs little (`bench.raw_client`) calls brokers with nothing behind their fronts:

- sends over a thousand connections, compared with sends over one. Calls that come together on a connection share a read
  and a write of the socket; one call at a time on each connection is the worst case, as it shares nothing;
- ten thousand ReceiveMessage calls that are kept open, then woken one by one while the others wait. The wake latency is
  from the handler's answer to the client's read. The peer is grpcio, as in the next measurement;
- streams that are read at full speed, then not read at all, then read again. The growth of the server's memory while
  the client does not read is the cost of one client that stops reading.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Final

from bench.harness import Case, Options, Sample, Scale, alternate, cpu_s_of, resident_bytes_of
from bench.peers.bare_broker import (
    CHUNK_SIZE,
    RECEIVE_PATH,
    SEND_PATH,
    STAMP,
    STREAM_PATH,
    WAKE,
    WAKE_PATH,
    BareBroker,
)
from bench.raw_client import RawClient, RawClientFailed, make_requests
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.front import FrontKind

QUESTION: Final = (
    "What do a thousand connections, ten thousand waiting calls and clients that stop reading cost the front?"
)
BODY_SIZE: Final = 256
PEER_DEPTH: Final = 256
WARM_CALLS: Final = 4
"""Calls after which the server has learned what a connection's requests look like."""

MESSAGE_PREFIX_SIZE: Final = 5
WAITING_CALL_TARGET: Final = 10_000
WAKE_TARGET_MS: Final = 5.0
"""Targets of the front: bytes per waiting call, and the 99th percentile of its wake latency."""

READ_ON_SIZE: Final = 32 * 1024 * 1024
"""Bytes of an answer that exceed the socket buffers of both sides and all that a front holds of one stream."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale.

    `calls` is the number of all sends, `depths` are the numbers of calls at a time on each connection.
    """

    connections: int
    calls: int
    depths: tuple[int, ...]
    rounds: int
    parked: int
    parked_connections: int
    woken: int
    wake_interval_us: int
    scale_rounds: int
    readers: int
    read_s: float
    stopped_s: float


SIZES: Final = {
    Scale.FULL: Sizes(
        connections=1_000, calls=60_000, depths=(1, 4, 16), rounds=5,
        parked=10_000, parked_connections=20, woken=2_000, wake_interval_us=2_000, scale_rounds=3,
        readers=10, read_s=2.0, stopped_s=3.0,
    ),
    Scale.QUICK: Sizes(
        connections=200, calls=12_000, depths=(1, 16), rounds=3,
        parked=2_000, parked_connections=4, woken=500, wake_interval_us=1_000, scale_rounds=1,
        readers=10, read_s=0.5, stopped_s=1.0,
    ),
    Scale.TINY: Sizes(
        connections=5, calls=200, depths=(2,), rounds=1,
        parked=50, parked_connections=2, woken=20, wake_interval_us=1_000, scale_rounds=1,
        readers=2, read_s=0.2, stopped_s=0.2,
    ),
}  # fmt: skip


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    with closing(BareBroker("h2")) as server:
        cases = [_connections(server, Random(options.seed), sizes, depth) for depth in sizes.depths]
    return [*cases, _parked(Random(options.seed), sizes), _unread(Random(options.seed), sizes)]


# -- many connections


def _connections(server: BareBroker, random: Random, sizes: Sizes, depth: int) -> Case:
    """Compare sends over many connections; the peer is one connection with enough calls in flight for its best rate."""
    body = _send_body(random)
    generator_us: list[float] = []

    def sample(connections: int, depth: int) -> Sample:
        calls = sizes.calls // connections
        warm = make_requests(random, SEND_PATH, body, 0, WARM_CALLS)
        requests = make_requests(random, SEND_PATH, body, WARM_CALLS, calls)
        with closing(RawClient(server.endpoint, connections)) as client:
            client.call_all(warm, 1)
            before = cpu_s_of(server.pid), time.process_time(), time.perf_counter()
            client.call_all(requests, depth)
            wall_s = time.perf_counter() - before[2]
            generator_us.append((time.process_time() - before[1]) / sizes.calls * 1e6)
            cpu_s = cpu_s_of(server.pid) - before[0]
            _check_answers(client)
        return Sample(calls * connections, wall_s, cpu_s)

    ours, theirs = alternate(sizes.rounds, lambda: sample(sizes.connections, depth), lambda: sample(1, PEER_DEPTH))
    return Case(
        name=f"{sizes.connections:,} connections, {depth} in flight on each",
        unit="calls",
        peer=f"one connection, {PEER_DEPTH} in flight",
        ours=ours,
        theirs=theirs,
        details={
            "connections": sizes.connections,
            "depth": depth,
            "server_cpu_ratio": round(median(a.cpu_us / b.cpu_us for a, b in zip(ours, theirs, strict=True)), 4),
            "client_cpu_us": round(median(generator_us[::2]), 2),
            "peer_client_cpu_us": round(median(generator_us[1::2]), 2),
        },
    )


# -- waiting calls


def _parked(random: Random, sizes: Sizes) -> Case:
    seen: dict[FrontKind, list[_Parked]] = {"h2": [], "grpcio": []}

    def sample(front: FrontKind) -> Sample:
        with (
            closing(BareBroker(front)) as server,
            closing(RawClient(server.endpoint, 1)) as waker,
            closing(RawClient(server.endpoint, sizes.parked_connections)) as client,
        ):
            parked = _Parked(server, client, waker)
            seen[front].append(parked)
            parked.open(random, sizes)
            woken = parked.wake_one_by_one(sizes.woken, sizes.wake_interval_us)
            parked.wake_at_once(sizes.parked - sizes.woken)
            return woken

    ours, theirs = alternate(sizes.scale_rounds, lambda: sample("h2"), lambda: sample("grpcio"))
    return Case(
        name=f"{sizes.parked:,} calls wait, {sizes.woken:,} woken one by one",
        unit="wakes",
        peer="front grpcio",
        ours=ours,
        theirs=theirs,
        details={
            "waiting_calls": sizes.parked,
            "connections": sizes.parked_connections,
            **_parked_facts("", seen["h2"]),
            **_parked_facts("peer_", seen["grpcio"]),
            "target_bytes_per_waiting_call": WAITING_CALL_TARGET,
            "target_wake_p99_ms": WAKE_TARGET_MS,
        },
    )


def _parked_facts(prefix: str, seen: Sequence[_Parked]) -> dict[str, object]:
    latencies_ms = sorted(each for parked in seen for each in parked.latencies_ms)
    return {
        f"{prefix}bytes_per_waiting_call": round(median(each.bytes_per_call for each in seen)),
        f"{prefix}wake_p50_ms": round(latencies_ms[len(latencies_ms) // 2], 3),
        f"{prefix}wake_p99_ms": round(latencies_ms[int(0.99 * (len(latencies_ms) - 1))], 3),
        f"{prefix}wake_max_ms": round(latencies_ms[-1], 3),
        f"{prefix}rest_at_once_ms": round(median(each.rest_at_once_ms for each in seen), 1),
    }


class _Parked:
    """Calls that are kept open on the connections of `client`, and their cost."""

    def __init__(self, server: BareBroker, client: RawClient, waker: RawClient) -> None:
        self.bytes_per_call = 0.0
        self.latencies_ms: list[float] = []
        self.rest_at_once_ms = 0.0
        self._server = server
        self._client = client
        self._waker = waker
        self._wakes = 0

    def open(self, random: Random, sizes: Sizes) -> None:
        per_connection = sizes.parked // sizes.parked_connections
        send = _send_body(random)
        # memory that calls need but do not own is allocated before: every connection has sent something
        self._client.call_all(make_requests(random, SEND_PATH, send, 0, WARM_CALLS), 1)
        before = resident_bytes_of(self._server.pid)
        requests = make_requests(random, RECEIVE_PATH, _receive_body(), WARM_CALLS, per_connection)
        for connection in self._client.connections:
            for request in requests:
                self._client.send(connection, request)
        # a send after them is answered when they have all been taken in
        self._client.call_all(make_requests(random, SEND_PATH, send, WARM_CALLS + per_connection, 1), 1)
        self.bytes_per_call = (resident_bytes_of(self._server.pid) - before) / sizes.parked
        self._client.on_data(self._take)

    def wake_one_by_one(self, count: int, interval_us: int) -> Sample:
        cpu_s, wall_s = cpu_s_of(self._server.pid), time.perf_counter()
        self._wake(count, interval_us)
        return Sample(count, time.perf_counter() - wall_s, cpu_s_of(self._server.pid) - cpu_s)

    def wake_at_once(self, count: int) -> None:
        latencies_ms, self.latencies_ms = self.latencies_ms, []
        begin_s = time.perf_counter()
        self._wake(count, 0)
        self.rest_at_once_ms = (time.perf_counter() - begin_s) * 1e3
        self.latencies_ms = latencies_ms

    def _wake(self, count: int, interval_us: int) -> None:
        ended = self._client.ended + count
        [request] = make_requests(Random(0), WAKE_PATH, WAKE.pack(count, interval_us), self._wakes, 1)
        self._wakes += 1
        self._waker.connections[0].send(request)
        self._client.read_until(lambda: len(self.latencies_ms) == count)
        self._client.read_until(lambda: self._client.ended == ended)

    def _take(self, _stream_id: int, payload: memoryview) -> None:
        [sent_ns] = STAMP.unpack_from(payload, MESSAGE_PREFIX_SIZE)
        self.latencies_ms.append((time.monotonic_ns() - sent_ns) / 1e6)


# -- clients that stop reading


def _unread(random: Random, sizes: Sizes) -> Case:
    grown: dict[FrontKind, list[int]] = {"h2": [], "grpcio": []}
    grown_late: dict[FrontKind, list[int]] = {"h2": [], "grpcio": []}

    def sample(front: FrontKind) -> Sample:
        with closing(BareBroker(front)) as server, closing(RawClient(server.endpoint, sizes.readers)) as client:
            client.call_all(make_requests(random, SEND_PATH, _send_body(random), 0, WARM_CALLS), 1)
            memory = resident_bytes_of(server.pid)
            [request] = make_requests(random, STREAM_PATH, b"", WARM_CALLS, 1)
            for connection in client.connections:
                connection.send(request)
            before = cpu_s_of(server.pid), time.perf_counter(), client.data_size
            client.read_for(sizes.read_s)
            read = (client.data_size - before[2]) // CHUNK_SIZE
            streamed = Sample(read, time.perf_counter() - before[1], cpu_s_of(server.pid) - before[0])
            time.sleep(sizes.stopped_s / 2)
            half_way = resident_bytes_of(server.pid)
            time.sleep(sizes.stopped_s / 2)
            stopped = resident_bytes_of(server.pid)
            grown[front].append((stopped - memory) // sizes.readers)
            grown_late[front].append((stopped - half_way) // sizes.readers)
            _read_on(client)
            return streamed

    ours, theirs = alternate(sizes.scale_rounds, lambda: sample("h2"), lambda: sample("grpcio"))
    return Case(
        name=f"{sizes.readers} streams, then unread for {sizes.stopped_s:g} s",
        unit=f"{CHUNK_SIZE:,} byte messages",
        peer="front grpcio",
        ours=ours,
        theirs=theirs,
        details={
            "readers": sizes.readers,
            "bytes_grown_per_reader": max(grown["h2"]),
            "bytes_grown_in_second_half": max(grown_late["h2"]),
            "peer_bytes_grown_per_reader": max(grown["grpcio"]),
            "peer_bytes_grown_in_second_half": max(grown_late["grpcio"]),
        },
    )


def _read_on(client: RawClient) -> None:
    """Read more than can have waited on the way, so that the streams go on."""
    enough = client.data_size + len(client.connections) * READ_ON_SIZE
    client.read_until(lambda: client.data_size >= enough)


# -- requests and answers


def _send_body(random: Random) -> bytes:
    message = definition.Message(
        topic=definition.Resource(name="bench-front"),
        system_properties=definition.SystemProperties(
            tag="created",
            message_id=f"01{random.getrandbits(128):032X}",
            message_type=definition.NORMAL,
            born_host="bench-host",
        ),
        body=random.randbytes(BODY_SIZE),
    )
    return service.SendMessageRequest(messages=[message]).SerializeToString()


def _check_answers(client: RawClient) -> None:
    """Check that calls had answers: a server that refuses everything is fast, and a refusal has no message."""
    for connection in client.connections:
        if connection.messages != connection.ended:
            raise RawClientFailed(f"{connection.ended} calls ended with {connection.messages} answers")


def _receive_body() -> bytes:
    request = service.ReceiveMessageRequest(
        group=definition.Resource(name="bench-billing"),
        message_queue=definition.MessageQueue(topic=definition.Resource(name="bench-front")),
        filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
        batch_size=32,
    )
    request.long_polling_timeout.seconds = 20
    request.invisible_duration.seconds = 60
    return request.SerializeToString()
