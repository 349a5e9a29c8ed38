"""Clients with one send in flight each, which only count answers: against any server, until the time is over."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from random import Random
from typing import Final

from bench.harness import Sample, cpu_s_of
from bench.java_load import Server
from bench.raw_client import RawClient, RawConnection, make_requests
from bench.send_load import PATH
from server._generated.apache.rocketmq.v2 import definition_pb2 as definition
from server._generated.apache.rocketmq.v2 import service_pb2 as service
from server.front.h2.grpc_messages import MESSAGE_PREFIX_SIZE

REQUESTS_AT_ONCE: Final = 256


def percentile_ms(latencies_s: Sequence[float], share: float) -> float:
    return round(sorted(latencies_s)[int(share * (len(latencies_s) - 1))] * 1000, 2)


class WaitingSends:
    """Connections with one send in flight each."""

    def __init__(self, server: Server, random: Random, clients: int, body: bytes) -> None:
        self._server = server
        self._random = random
        self._clients = clients
        self._body = body
        self._is_served = False

    def run(self, seconds: float, messages: int, latencies_s: list[float]) -> Sample:
        """`messages` is how many each send has."""
        with closing(RawClient(self._server.endpoint, self._clients)) as client:
            client.on_data(self._check_first)
            calls = dict.fromkeys(client.connections, 0)
            sent_s: dict[RawConnection, float] = {}
            requests: list[bytes] = []

            def send(connection: RawConnection) -> None:
                number = calls[connection]
                if number == len(requests):
                    requests.extend(make_requests(self._random, PATH, self._body, number, REQUESTS_AT_ONCE))
                calls[connection] = number + 1
                sent_s[connection] = time.perf_counter()
                client.send(connection, requests[number])

            for connection in client.connections:
                send(connection)
            began_s, cpu_s = time.perf_counter(), cpu_s_of(self._server.pid)
            done = 0
            while (now_s := time.perf_counter()) < began_s + seconds:
                for connection in client.ready():
                    if connection.read():
                        latencies_s.append(time.perf_counter() - sent_s[connection])
                        done += messages
                        send(connection)
            return Sample(done, now_s - began_s, cpu_s_of(self._server.pid) - cpu_s)

    def _check_first(self, _: int, answer: memoryview) -> None:
        """A server that refuses sends is fast. One look is enough, since all of them are alike."""
        if not self._is_served:
            status = service.SendMessageResponse.FromString(bytes(answer[MESSAGE_PREFIX_SIZE:])).status
            if status.code != definition.OK:
                raise RuntimeError(f"{self._server.endpoint} refuses sends: {status.message}")
            self._is_served = True
