"""Loads one broker with calls that may each go to another topic: sends, and receives with their acknowledgements.

Each connection makes one call at a time, so the broker has as many open calls as connections; sends may be more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from random import Random
from struct import Struct
from typing import Final

from bench.harness import Sample, Server, cpu_s_of
from bench.raw_client import CallMaker, RawClient, RawConnection
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service

CONNECTIONS: Final = 32
GROUP: Final = "bench-readers"
INVISIBLE_S: Final = 300
BATCH: Final = 10
"""Messages of one receive, at most."""

_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_PREFIX: Final = Struct(">BI")

_Calls = Generator[tuple[CallMaker, bytes], list[bytes], int]
"""The calls of one connection: yields calls, is sent the messages of each answer, returns the count of messages."""


class QueueLoad:
    """Connections to one broker. An answer that is not OK ends the run with RuntimeError."""

    def __init__(self, broker: Server, random: Random, *, connections: int = CONNECTIONS) -> None:
        self._broker = broker
        self._client = RawClient(broker.endpoint, connections)
        self._numbers = dict.fromkeys(self._client.connections, 0)
        self._answers = {connection: bytearray() for connection in self._client.connections}
        for connection, answer in self._answers.items():
            connection.on_data = _appending(answer)
        self._send, self._receive, self._acknowledge, self._route = (
            CallMaker(random, _SERVICE + method)
            for method in ("SendMessage", "ReceiveMessage", "AckMessage", "QueryRoute")
        )

    def close(self) -> None:
        self._client.close()

    def sends(self, requests: Iterator[bytes]) -> Sample:
        """Send all requests, and count their messages."""
        return self._measured(lambda: self._run([self._send_each(requests) for _ in self._client.connections]))

    def sends_in_flight(self, requests: Iterator[bytes], depth: int) -> Sample:
        """Send all requests with `depth` calls open on each connection, and count their messages."""
        return self._measured(lambda: self._send_ahead(requests, depth))

    def receives(self, topics: Iterator[str]) -> Sample:
        """Make one receive from each topic, and one acknowledgement of all its messages; messages are counted."""
        return self._measured(lambda: self._run([self._receive_each(topics) for _ in self._client.connections]))

    def routes(self, topics: Iterator[str]) -> Sample:
        """Query the route of each topic; answers are counted, and not decoded."""
        return self._measured(lambda: self._run([self._route_each(topics) for _ in self._client.connections]))

    @property
    def read_bytes(self) -> int:
        """Bytes of answers so far."""
        return self._client.data_size

    def _route_each(self, topics: Iterator[str]) -> _Calls:
        answered = 0
        for topic in topics:
            request = service.QueryRouteRequest()
            request.topic.name = topic
            yield self._route, request.SerializeToString()
            answered += 1
        return answered

    def _send_each(self, requests: Iterator[bytes]) -> _Calls:
        stored = 0
        for request in requests:
            [answer] = yield self._send, request
            response = service.SendMessageResponse.FromString(answer)
            _require_ok(response.status)
            stored += len(response.entries)
        return stored

    def _receive_each(self, topics: Iterator[str]) -> _Calls:
        received = 0
        for topic in topics:
            answer = yield self._receive, _receive_body(topic)
            items = [service.ReceiveMessageResponse.FromString(item) for item in answer]
            _require_ok(items[0].status)
            messages = [item.message for item in items if item.WhichOneof("content") == "message"]
            received += len(messages)
            [answer_to_all] = yield self._acknowledge, _acknowledge_body(topic, messages)
            _require_ok(service.AckMessageResponse.FromString(answer_to_all).status)
        return received

    def _send_ahead(self, requests: Iterator[bytes], depth: int) -> int:
        """Send ahead. An answer is one frame, so those of a connection may be read one after the other."""
        stored = 0
        for connection in self._client.connections:
            self._send_some(connection, requests, depth)
        while any(connection.ended < sent for connection, sent in self._numbers.items()):
            for connection in self._client.ready():
                self._send_some(connection, requests, connection.read())
                answer = self._answers[connection]
                for message in _messages(answer):
                    response = service.SendMessageResponse.FromString(message)
                    _require_ok(response.status)
                    stored += len(response.entries)
                answer.clear()
        return stored

    def _send_some(self, connection: RawConnection, requests: Iterator[bytes], count: int) -> None:
        for body in islice(requests, count):
            self._call(connection, self._send, body)

    def _measured(self, work: Callable[[], int]) -> Sample:
        cpu_s, begin_s = cpu_s_of(self._broker.pid), time.perf_counter()
        done = work()
        return Sample(done, time.perf_counter() - begin_s, cpu_s_of(self._broker.pid) - cpu_s)

    def _run(self, work: Sequence[_Calls]) -> int:
        done = 0
        calls_of: dict[RawConnection, _Calls] = {}
        for connection, calls in zip(self._client.connections, work, strict=True):
            try:
                self._call(connection, *next(calls))
                calls_of[connection] = calls
            except StopIteration as over:
                done += over.value
        while calls_of:
            for connection in self._client.ready():
                if not connection.read():
                    continue
                answer = self._answers[connection]
                messages = _messages(answer)
                answer.clear()
                try:
                    self._call(connection, *calls_of[connection].send(messages))
                except StopIteration as over:
                    done += over.value
                    del calls_of[connection]
        return done

    def _call(self, connection: RawConnection, maker: CallMaker, body: bytes) -> None:
        number = self._numbers[connection]
        self._numbers[connection] = number + 1
        self._client.send(connection, maker.call(number, body))


def send_body(topic: str, body: bytes, *, messages: int = 1, properties: dict[str, str] | None = None) -> bytes:
    """Return a send of equal messages, which become neighbours in one queue."""
    request = service.SendMessageRequest()
    for _ in range(messages):
        message = request.messages.add(body=body)
        message.topic.name = topic
        message.system_properties.message_id = "01F5B2C7A94E0100230123456789ABCDEF"
        message.system_properties.tag = "created"
        for name, value in (properties or {}).items():
            message.user_properties[name] = value
    return request.SerializeToString()


def grouped_body(topic: str, body: bytes, message_group: str) -> bytes:
    """Return a send of one message of a message group."""
    request = service.SendMessageRequest.FromString(send_body(topic, body))
    request.messages[0].system_properties.message_group = message_group
    return request.SerializeToString()


def _receive_body(topic: str) -> bytes:
    request = service.ReceiveMessageRequest(batch_size=BATCH)
    request.group.name = GROUP
    request.message_queue.topic.name = topic
    request.invisible_duration.seconds = INVISIBLE_S
    return request.SerializeToString()


def _acknowledge_body(topic: str, messages: Sequence[definition.Message]) -> bytes:
    request = service.AckMessageRequest()
    request.group.name = GROUP
    request.topic.name = topic
    for message in messages:
        request.entries.add(
            message_id=message.system_properties.message_id, receipt_handle=message.system_properties.receipt_handle
        )
    return request.SerializeToString()


def _appending(answer: bytearray) -> Callable[[int, memoryview], None]:
    return lambda _, payload: answer.extend(payload)


def _messages(answer: bytes | bytearray) -> list[bytes]:
    """Return the messages of one gRPC answer, whatever frames they came in."""
    found, at = [], 0
    while at < len(answer):
        _, size = _PREFIX.unpack_from(answer, at)
        at += _PREFIX.size
        found.append(bytes(answer[at : at + size]))
        at += size
    return found


def _require_ok(status: definition.Status) -> None:
    if status.code not in (definition.OK, definition.MULTIPLE_RESULTS):
        raise RuntimeError(f"{definition.Code.Name(status.code)}: {status.message}")
