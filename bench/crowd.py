"""Simulates many clients of brokers in one process: each waits in a receive, acknowledges messages, and stays known.

They do what client libraries do, on few connections: an open telemetry stream each, a heartbeat every 10 s, long polls
of 15 to 25 s, and clients of lite topics repeat their subscriptions every 30 s. One loop serves all of them, so
measured times include its own. When it is late, the clients' calls stay spread over time, as those of independent
clients do: else each pause of the loop would come back as a burst of calls, again and again.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from struct import Struct
from typing import Final, NamedTuple

from bench.call_loop import PATIENCE_S, Connection, Loop
from bench.harness import Sample, Server, cpu_s_of
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service

HEARTBEAT_S: Final = 10.0
REPEAT_S: Final = 30.0
POLLING_S: Final = [15 + 10 * number / 64 for number in range(64)]
"""Seconds of the long polls; each client uses one after another."""

POLLING_MIN_S: Final = 5
"""Seconds of the shortest long poll that Quarry allows."""
INVISIBLE_S: Final = 60
SETTLING_S: Final = 1.0
BODY: Final = bytes(range(200))
STAMP: Final = Struct(">q")
"""The first bytes of a body: the time of its send in ns of the monotonic clock."""

AT_ONCE: Final = 64
"""Calls of all clients together that are under way while they connect."""

Wants = Callable[[int], Sequence[str]]
"""Gives the lite topics that a client subscribes to, by its number; none: it reads an ordinary topic."""


class Reading(NamedTuple):
    """The result of a stretch of load at a fixed rate."""

    sample: Sample
    """Messages that were sent, received and acknowledged, and the broker's CPU time."""
    wakes_ms: list[float]
    """Milliseconds from the call of a send until the waiting receive has its message."""
    sends_ms: list[float]
    """Milliseconds from the call of a send to its answer."""


@dataclass(slots=True)
class _Client:
    client_id: bytes
    connection: Connection
    wants: Sequence[str]
    """Names of lite topics."""


@dataclass(slots=True)
class _Going:
    """The counts and times of a stretch of load so far."""

    sent: int = 0
    acknowledged: int = 0
    wakes_ms: list[float] = field(default_factory=list)
    sends_ms: list[float] = field(default_factory=list)


class Crowd:
    """The clients of one group on one broker, and one that sends. A refusal ends the run with RuntimeError."""

    def __init__(self, loop: Loop, *, topic: str, group: str, clients: int, connections: int, wants: Wants) -> None:
        self._loop = loop
        self._topic = topic
        self._group = group
        self._count = clients
        self._connection_count = connections
        self._wants = wants
        self._is_lite = bool(wants(0))
        self._clients: list[_Client] = []
        self._connections: list[Connection] = []
        self._going = _Going()
        self._receives = cycle([_receive_body(group, topic, polling_s) for polling_s in POLLING_S])

    # -- connecting and closing

    def come(self, broker: Server) -> None:
        """Connect all clients and introduce them. They are known to the broker then, but do not receive yet."""
        self._connections = [self._loop.connect(broker.endpoint) for _ in range(self._connection_count + 1)]
        own = cycle(self._connections[1:])
        self._clients = [
            _Client(f"{self._group}@{number}@1@bench".encode(), next(own), self._wants(number))
            for number in range(self._count)
        ]
        settings = service.TelemetryCommand(settings=_settings(self._group, self._topic, is_lite=self._is_lite))
        body = settings.SerializeToString()
        for client in self._clients:
            self._loop.call(client.connection, "Telemetry", body, client.client_id, None)
        self._all(self._beat)

    def go(self) -> None:
        """Close all connections without telling the broker."""
        self._loop.close(self._connections)
        self._connections, self._clients = [], []

    def subscribe(self, *, fresh: bool) -> Sample:
        """Let each client subscribe: with `anew` from the newest message on, else as a repetition.

        Lite topics are counted.
        """
        action = definition.PARTIAL_ADD if fresh else definition.COMPLETE_ADD
        begin_s = time.perf_counter()
        self._all(lambda client, done: self._want(client, action, done))
        return Sample(sum(len(each.wants) for each in self._clients), time.perf_counter() - begin_s, 0.0)

    def wait(self) -> None:
        """Let each client receive from now on and stay known. Returns when all of them wait in a receive.

        As real clients do not start at the same time, their first receives end at different times, and so do the later
        ones. The answer to a call after the receives of a connection shows that the broker has taken them in.
        """
        for number, client in enumerate(self._clients):
            share = number / len(self._clients)
            first_s = POLLING_MIN_S + share * (POLLING_S[-1] - POLLING_MIN_S)
            self._receive_on(client, _receive_body(self._group, self._topic, first_s))
            _Repeating(self._loop, HEARTBEAT_S, self._beat, client).begin(share)
            if self._is_lite:
                _Repeating(self._loop, REPEAT_S, self._repeat, client).begin(share)
        self._all(self._beat, self._clients[-self._connection_count :])

    def _all(
        self, call: Callable[[_Client, Callable[[], None]], None], clients: Sequence[_Client] | None = None
    ) -> None:
        """Make one call for each client, some at a time. Returns when all are answered."""
        rest, left = iter(self._clients if clients is None else clients), [0]

        def start() -> None:
            client = next(rest, None)
            if client is not None:
                left[0] += 1
                call(client, done)

        def done() -> None:
            left[0] -= 1
            start()

        for _ in range(AT_ONCE):
            start()
        self._loop.run_until(lambda: not left[0], f"answers to all clients of {self._group}", 10 * PATIENCE_S)

    def _beat(self, client: _Client, done: Callable[[], None]) -> None:
        request = service.HeartbeatRequest()
        request.group.name = self._group
        request.client_type = definition.LITE_PUSH_CONSUMER if self._is_lite else definition.PUSH_CONSUMER

        def answered(message: bytes) -> bool:
            _require_ok(service.HeartbeatResponse.FromString(message).status)
            done()
            return True

        self._loop.call(client.connection, "Heartbeat", request.SerializeToString(), client.client_id, answered)

    def _repeat(self, client: _Client, done: Callable[[], None]) -> None:
        self._want(client, definition.COMPLETE_ADD, done)

    def _want(self, client: _Client, action: definition.LiteSubscriptionAction, done: Callable[[], None]) -> None:
        request = service.SyncLiteSubscriptionRequest(action=action, lite_topic_set=client.wants)
        request.topic.name, request.group.name = self._topic, self._group
        if action == definition.PARTIAL_ADD:
            request.offset_option.policy = definition.OffsetOption.MAX

        def answered(message: bytes) -> bool:
            _require_ok(service.SyncLiteSubscriptionResponse.FromString(message).status)
            done()
            return True

        body = request.SerializeToString()
        self._loop.call(client.connection, "SyncLiteSubscription", body, client.client_id, answered)

    # -- receiving

    def _receive_on(self, client: _Client, body: bytes | None = None) -> None:
        found: list[definition.Message] = []

        def answered(message: bytes) -> bool:
            item = service.ReceiveMessageResponse.FromString(message)
            match item.WhichOneof("content"):
                case "status":
                    _require_ok(item.status, definition.MESSAGE_NOT_FOUND)
                case "message":
                    found.append(item.message)
                    self._got(item.message)
                case _:
                    if found:
                        self._acknowledge(client, found)
                    self._receive_on(client)
                    return True
            return False

        self._loop.call(client.connection, "ReceiveMessage", body or next(self._receives), client.client_id, answered)

    def _got(self, message: definition.Message) -> None:
        [sent_ns] = STAMP.unpack_from(message.body)
        self._going.wakes_ms.append((time.monotonic_ns() - sent_ns) / 1e6)

    def _acknowledge(self, client: _Client, messages: Sequence[definition.Message]) -> None:
        """Acknowledge each message by its own call, as client libraries do."""
        for message in messages:
            request = service.AckMessageRequest()
            request.group.name, request.topic.name = self._group, self._topic
            system = message.system_properties
            entry = request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
            if self._is_lite:
                entry.lite_topic = system.lite_topic
            body = request.SerializeToString()
            self._loop.call(client.connection, "AckMessage", body, client.client_id, self._acknowledged)

    def _acknowledged(self, message: bytes) -> bool:
        _require_ok(service.AckMessageResponse.FromString(message).status)
        self._going.acknowledged += 1
        return True

    # -- sending

    def load(
        self, broker: Server, lite_topics: Iterator[str], *, per_second: float, is_over: Callable[[float], bool]
    ) -> Reading:
        """Send at a fixed rate, independent of answers, until `is_over` holds for the elapsed seconds.

        Raises RuntimeError when not all messages are received and acknowledged.
        """
        self._going = going = _Going()
        gc.collect()
        gc.disable()
        # all clients had to wait for the collection, and what they do afterwards is not to be measured
        settled_s = time.monotonic() + SETTLING_S
        self._loop.run_until(lambda: time.monotonic() > settled_s, "a moment")
        cpu_s, begin_s = cpu_s_of(broker.pid), time.monotonic()

        def send() -> None:
            if self._going is not going or is_over(time.monotonic() - begin_s):
                return
            going.sent += 1
            self._loop.later(begin_s + going.sent / per_second - time.monotonic(), send)
            self._send(next(lite_topics))

        send()
        self._loop.run_until(
            lambda: is_over(time.monotonic() - begin_s) and going.acknowledged == going.sent == len(going.sends_ms),
            f"acknowledgements in {self._group}",
            10 * PATIENCE_S,
        )
        gc.enable()
        sample = Sample(going.sent, time.monotonic() - begin_s, cpu_s_of(broker.pid) - cpu_s)
        if len(going.wakes_ms) != going.sent:
            raise RuntimeError(f"{len(going.wakes_ms)} messages came of {going.sent}")
        return Reading(sample, going.wakes_ms, going.sends_ms)

    def _send(self, lite_topic: str) -> None:
        sent_ns = time.monotonic_ns()

        def answered(message: bytes) -> bool:
            _require_ok(service.SendMessageResponse.FromString(message).status)
            self._going.sends_ms.append((time.monotonic_ns() - sent_ns) / 1e6)
            return True

        body = send_body(self._topic, [lite_topic], sent_ns)
        self._loop.call(self._connections[0], "SendMessage", body, b"bench-sender@1@1@bench", answered)


class _Repeating:
    """A call that a client repeats as long as it is connected."""

    def __init__(
        self,
        loop: Loop,
        interval_s: float,
        call: Callable[[_Client, Callable[[], None]], None],
        client: _Client,
    ) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._call = call
        self._client = client
        self._due_s = 0.0

    def begin(self, share: float) -> None:
        """Schedule the first call after this share of the interval."""
        self._due_s = time.monotonic() + share * self._interval_s
        self._loop.at(self._due_s, self)

    def __call__(self) -> None:
        if not self._client.connection.is_closed:
            self._due_s += self._interval_s
            self._loop.at(self._due_s, self)
            self._call(self._client, _nothing)


def _nothing() -> None:
    pass


def send_body(topic: str, lite_topics: Sequence[str], stamp_ns: int = 0) -> bytes:
    """Return a send with a message for each lite topic; the name "" stands for none."""
    request = service.SendMessageRequest()
    for lite_topic in lite_topics:
        message = request.messages.add(body=STAMP.pack(stamp_ns) + BODY[STAMP.size :])
        message.topic.name = topic
        message.system_properties.message_id = "01F5B2C7A94E0100230123456789ABCDEF"
        if lite_topic:
            message.system_properties.lite_topic = lite_topic
            message.system_properties.message_type = definition.LITE
    return request.SerializeToString()


def _settings(group: str, topic: str, *, is_lite: bool) -> definition.Settings:
    settings = definition.Settings(client_type=definition.LITE_PUSH_CONSUMER if is_lite else definition.PUSH_CONSUMER)
    settings.subscription.group.name = group
    settings.subscription.subscriptions.add().topic.name = topic
    return settings


def _receive_body(group: str, topic: str, polling_s: float) -> bytes:
    request = service.ReceiveMessageRequest(batch_size=32)
    request.group.name, request.message_queue.topic.name = group, topic
    request.invisible_duration.seconds = INVISIBLE_S
    request.long_polling_timeout.FromMilliseconds(round(polling_s * 1000))
    return request.SerializeToString()


def _require_ok(status: definition.Status, *others: int) -> None:
    if status.code not in (definition.OK, *others):
        raise RuntimeError(f"{definition.Code.Name(status.code)}: {status.message}")
