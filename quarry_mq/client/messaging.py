"""A client of the messaging port: sends, receives and acknowledges messages."""

from __future__ import annotations

from collections.abc import Iterable
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, Self

import grpc
from google.protobuf.message import Message

from quarry_mq.client.channel import open_channel
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.errors import require_ok
from quarry_mq.client.requests import (
    HEARTBEAT_INTERVAL_S,
    OutgoingMessage,
    Requests,
    Sent,
    Subscription,
    received_of,
    sent_of,
)
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub

CALL_TIMEOUT_S: Final = 10.0
POLLING_SLACK_S: Final = 3.0
"""Seconds that a receive may take beyond the wait it asks for: the answer has to arrive."""


class MessagingClient:
    """A producer, or with a `subscription` a simple consumer. Use it as a context manager, in one thread.

    Calls raise CallRefused when the broker refuses, and grpc.RpcError when the connection fails. Nothing is retried.
    """

    def __init__(
        self, endpoint: Endpoint, *, subscription: Subscription | None = None, clock: Clock | None = None
    ) -> None:
        self._subscription = subscription
        self._clock = clock or SystemClock()
        self._requests = Requests(endpoint.address, self._clock)
        self._channel = open_channel(endpoint, clock=self._clock)
        self._stub: Any = MessagingServiceStub(self._channel)
        self._commands: SimpleQueue[service.TelemetryCommand | None] = SimpleQueue()
        self._telemetry: Any = None
        self._last_heartbeat_s = self._clock.monotonic_s()

    def __enter__(self) -> Self:
        self._telemetry = self._stub.Telemetry(iter(self._commands.get, None), metadata=self._requests.metadata())
        self._commands.put(service.TelemetryCommand(settings=self._requests.settings(self._subscription)))
        # A broker serves a consumer only once it has its settings; the answer says that it has.
        for command in self._telemetry:
            require_ok(command.status)
            if command.HasField("settings"):
                break
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error_type is None or not issubclass(error_type, grpc.RpcError):
                self._say_goodbye()
        finally:
            self._commands.put(None)
            self._channel.close()
            # A call takes its lock when it is deleted. At the end of the interpreter a thread of gRPC may have died
            # with that lock, and the program would never end (seen in 9 of 720 programs that ended right after this).
            self._telemetry = None

    def _say_goodbye(self) -> None:
        """Make the broker drop this client now, not only when heartbeats are missing."""
        request = self._requests.goodbye(self._subscription)
        self._call("NotifyClientTermination", request)

    def send(self, *messages: OutgoingMessage) -> list[Sent]:
        """Send messages of one topic and type in one request: one queue gets all of them in their order, or none."""
        request = service.SendMessageRequest(messages=map(self._requests.message, messages))
        return sent_of(self._call("SendMessage", request))

    def require_topic(self, topic: str) -> None:
        """Raise CallRefused if the broker has no such topic and does not create it."""
        request = service.QueryRouteRequest(
            topic=definition.Resource(name=topic), endpoints=self._requests.access_point()
        )
        require_ok(self._call("QueryRoute", request).status)

    def receive(self, *, limit: int, invisible_s: int, wait_s: float) -> list[definition.Message]:
        """Receive at most `limit` messages, hidden from others for `invisible_s`; none if `wait_s` pass without any."""
        subscription = self._require_subscription()
        self._keep_alive()
        request = self._requests.receive(subscription, limit=limit, invisible_s=invisible_s, wait_s=wait_s)
        return received_of(self._call("ReceiveMessage", request, timeout_s=wait_s + POLLING_SLACK_S))

    def acknowledge(self, message: definition.Message) -> None:
        """Acknowledge a received message: no consumer of the group gets it again."""
        request = self._requests.acknowledgement(self._require_subscription(), message)
        require_ok(self._call("AckMessage", request).status)

    def give_back(self, messages: Iterable[definition.Message]) -> None:
        """Return messages to the group, so that other consumers get them at once and not after their invisible time."""
        subscription = self._require_subscription()
        for message in messages:
            request = self._requests.return_of(subscription, message)
            require_ok(self._call("ChangeInvisibleDuration", request).status)

    def _keep_alive(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._last_heartbeat_s < HEARTBEAT_INTERVAL_S:
            return
        self._last_heartbeat_s = now_s
        request = self._requests.heartbeat(self._require_subscription())
        require_ok(self._call("Heartbeat", request).status)

    def _call(self, method: str, request: Message, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Begin a call, and return its answer or the iterator of its answers."""
        return getattr(self._stub, method)(request, metadata=self._requests.metadata(), timeout=timeout_s)

    def _require_subscription(self) -> Subscription:
        if self._subscription is None:
            raise TypeError("a client without a subscription cannot receive")
        return self._subscription
