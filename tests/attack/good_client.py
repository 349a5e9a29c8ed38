"""An honest client that sends at a steady pace and minds how long each answer takes."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Final, NamedTuple

from bench.raw_client import RawClient
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from tests.attack.wire import PREFIX, Headers, block, call
from tests.hostile.test_requests import good_request

PER_SECOND: Final = 200
LATE_S: Final = 1.0
"""An answer that takes longer does not count: its client's patience is 3 s."""


class Pace(NamedTuple):
    """What came of some seconds of sending: answers in time per second, and how long they took."""

    per_second: float
    median_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return f"{self.per_second:.0f}/s, median {self.median_ms:.1f} ms, p99 {self.p99_ms:.1f} ms"


class GoodClient:
    """One connection that sends messages of 200 bytes, 200 each second whatever becomes of those before."""

    def __init__(self, endpoint: str, topic: str, who: Headers = ()) -> None:
        request = good_request("SendMessage")
        request.messages[0].topic.name = topic
        request.messages[0].body = Random(1).randbytes(200)
        self._body: bytes = request.SerializeToString()
        self._head = block("SendMessage", *who, client_id=b"good")
        self._client = RawClient(endpoint, 1)
        (self._connection,) = self._client.connections
        self._sent = 0
        self._waiting: deque[float] = deque()
        """When those were due that are not answered."""
        self.refused: list[str] = []
        """What answers say that are no acknowledgements."""
        self._connection.on_data = self._look_at

    def close(self) -> None:
        self._client.close()

    def _look_at(self, _stream_id: int, payload: memoryview) -> None:
        status = service.SendMessageResponse.FromString(bytes(payload[PREFIX.size :])).status
        if status.code != definition.OK:
            self.refused.append(status.message)

    def send(self, seconds: float) -> Pace:
        """Answers come in the order of the requests, all of which cost the same."""
        connection, waiting = self._connection, self._waiting
        latencies: list[float] = []
        due_s = began_s = time.monotonic()
        end_s = began_s + seconds
        while (now_s := time.monotonic()) < end_s or (waiting and now_s < end_s + LATE_S):
            while due_s <= now_s and due_s < end_s:
                connection.send(call(self._sent, self._head, self._body))
                self._sent += 1
                waiting.append(due_s)  # when it was to be sent: a client that is held up does not get away with it
                due_s += 1 / PER_SECOND
            readable, _, _ = select.select([connection.socket], [], [], max(0.0, min(due_s - time.monotonic(), 0.01)))
            if readable:
                connection.read()
            while self._sent - len(waiting) < connection.ended:
                latencies.append(time.monotonic() - waiting.popleft())
        return pace_of(latencies, seconds)


def pace_of(latencies: Iterable[float], seconds: float) -> Pace:
    """Return the pace of calls with these latencies, sent within a number of seconds."""
    in_time = sorted(each for each in latencies if each < LATE_S)
    if not in_time:
        return Pace(0.0, float("nan"), float("nan"))
    return Pace(
        len(in_time) / seconds,
        in_time[len(in_time) // 2] * 1e3,
        in_time[len(in_time) * 99 // 100] * 1e3,
    )
