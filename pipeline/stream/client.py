"""A client of a live broker for the pipeline: it lists queues and their bounds, pulls and sends messages.

It uses the calls of the messaging protocol. It retries for a while when a broker is unreachable or overloaded.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from threading import Event
from typing import Any, Final, NamedTuple, TypeVar, cast

import grpc

from quarry_mq.pipeline.stream.errors import BrokerUnreachable, CallRefused
from quarry_mq.pipeline.stream.options import Connection, Start
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub
from quarry_mq.protocol.signature import signed_messaging_headers

CALL_TIMEOUT_S: Final = 10.0
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 3.0
VERSION: Final = "5.0.0"
"""Version of the protocol that the client states: brokers compare it as text with those of the official clients."""

_CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    # a broker that restarts is away for seconds; by default gRPC waits up to two minutes before it reconnects
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
_RETRIED: Final = frozenset(
    {
        definition.REQUEST_TIMEOUT,
        definition.TOO_MANY_REQUESTS,
        definition.INTERNAL_ERROR,
        definition.INTERNAL_SERVER_ERROR,
        definition.HA_NOT_AVAILABLE,
        definition.PROXY_TIMEOUT,
        definition.MASTER_PERSISTENCE_TIMEOUT,
        definition.SLAVE_PERSISTENCE_TIMEOUT,
    }
)
_RETRIED_BY_GRPC: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
    }
)
_POLICIES: Final = {Start.EARLIEST: definition.BEGINNING, Start.LATEST: definition.END}
_Answer = TypeVar("_Answer")


class Pulled(NamedTuple):
    """The result of a pull. `is_outside`: the queue does not have the offset; reading can go on at `following`."""

    messages: list[definition.Message]
    following: int
    is_outside: bool


class BrokerClient:
    """Connect to a broker, for one thread or several. It must be closed.

    Calls raise CallRefused when the broker refuses for good, BrokerUnreachable when `Connection.timeout_ms` is over.
    """

    def __init__(self, connection: Connection, *, clock: Clock | None = None) -> None:
        """Prepare the connection. Raises OSError for a certificate, key or secret that cannot be read."""
        self._connection = connection
        self._secret = "" if connection.secret_file is None else connection.secret_file.read_text().strip()
        self._clock = clock or SystemClock()
        self._channel = _channel(connection)
        self._stub: Any = MessagingServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._client_id = f"quarry-spark@{uuid.uuid4().hex}"
        self._closed = Event()

    def close(self) -> None:
        self._closed.set()
        self._channel.close()

    def queues(self, topic: str) -> list[int]:
        """Return the numbers of the topic's queues."""
        # asking for a route may create the topic, asking for an offset does not
        self.offsets(topic, [0], Start.LATEST)
        request = service.QueryRouteRequest(topic=definition.Resource(name=topic))
        answer = self._answered(f"topic {topic}", self._stub.QueryRoute, request)
        return sorted({queue.id for queue in answer.message_queues})

    def offsets(self, topic: str, queues: Iterable[int], where: Start | int) -> dict[int, int]:
        """Return the first offset of each queue, its end, or its offset at a time in ms."""
        requests = {}
        for number in queues:
            requests[number] = request = service.QueryOffsetRequest(message_queue=_queue(topic, number))
            if isinstance(where, Start):
                request.query_offset_policy = _POLICIES[where]
            else:
                request.query_offset_policy = definition.TIMESTAMP
                request.timestamp.FromMilliseconds(where)
        # all queues at once: a topic may have thousands
        futures = {number: self._begun(self._stub.QueryOffset, request) for number, request in requests.items()}
        return {
            number: self._answered(
                f"topic {topic}, queue {number}", self._stub.QueryOffset, requests[number], begun=future
            ).offset
            for number, future in futures.items()
        }

    def pull(self, group: str, topic: str, queue: int, offset: int, count: int) -> Pulled:
        """Pull at most `count` messages from an offset on. The broker keeps no state of it."""
        request = service.PullMessageRequest(
            group=definition.Resource(name=group),
            message_queue=_queue(topic, queue),
            offset=offset,
            batch_size=count,
            filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
        )
        what = f"topic {topic}, queue {queue}"

        def call() -> Pulled:
            messages, following, status = [], offset, definition.Status()
            for item in self._stub.PullMessage(request, metadata=self._metadata(), timeout=CALL_TIMEOUT_S):
                match item.WhichOneof("content"):
                    case "status":
                        status = item.status
                    case "message":
                        messages.append(item.message)
                    case "next_offset":
                        following = item.next_offset
            if status.code not in (definition.MESSAGE_NOT_FOUND, definition.ILLEGAL_OFFSET):
                _require_ok(what, status)
            return Pulled(messages, following, status.code == definition.ILLEGAL_OFFSET)

        return self._again(what, call)

    def send(self, messages: Sequence[definition.Message]) -> None:
        """Send messages of one topic, and of one message group if any; they are stored in this order.

        A request without an answer is sent again, and its messages may then be stored twice, with the same ids.
        """
        request = service.SendMessageRequest(messages=messages)
        self._answered(f"topic {messages[0].topic.name}", self._stub.SendMessage, request)

    # -- calls

    def _begun(self, method: Any, request: Any) -> Any:
        return method.future(request, metadata=self._metadata(), timeout=CALL_TIMEOUT_S)

    def _answered(self, what: str, method: Any, request: Any, *, begun: Any = None) -> Any:
        """Return the answer of a unary call, whose first attempt may have begun already."""
        attempts = iter(() if begun is None else (begun,))

        def call() -> Any:
            answer = next(attempts, None) or self._begun(method, request)
            found = answer.result()
            _require_ok(what, found.status)
            return found

        return self._again(what, call)

    def _again(self, what: str, call: Callable[[], _Answer]) -> _Answer:
        """Retry the call until it succeeds or time is over, and return its result."""
        until_s = self._clock.monotonic_s() + self._connection.timeout_ms / 1000
        pause_s = BACKOFF_FIRST_S
        while True:
            try:
                return call()
            except CallRefused as refused:
                if refused.code not in _RETRIED:
                    raise
                error: Exception = refused
                reason = str(refused)
            except grpc.RpcError as failed:
                # every error of a call is also that call; the type does not say so
                status = cast("grpc.Call", failed)
                if status.code() not in _RETRIED_BY_GRPC:
                    raise BrokerUnreachable(f"{self._connection.endpoint}: {what}: {_told(status)}") from failed
                error, reason = failed, f"{what}: {_told(status)}"
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0 or self._closed.wait(min(pause_s, left_s)):
                waited = f"after {self._connection.timeout_ms} ms"
                raise BrokerUnreachable(f"{self._connection.endpoint}: {reason} ({waited})") from error
            pause_s = min(pause_s * 2, BACKOFF_MAX_S)

    def _metadata(self) -> Iterable[tuple[str, str]]:
        return (
            ("x-mq-client-id", self._client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", VERSION),
            ("x-mq-protocol", "v2"),
            ("x-mq-request-id", str(uuid.uuid4())),
            *self._signature(),
        )

    def _signature(self) -> Iterable[tuple[str, str]]:
        user = self._connection.user
        return () if user is None else signed_messaging_headers(user, self._secret, now_ms=self._clock.wall_ms())


def _channel(connection: Connection) -> grpc.Channel:
    if not connection.tls:
        return grpc.insecure_channel(connection.endpoint, options=_CHANNEL_OPTIONS)
    ca, certificate, key = (
        None if path is None else path.read_bytes() for path in (connection.ca, connection.certificate, connection.key)
    )
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    return grpc.secure_channel(connection.endpoint, credentials, options=_CHANNEL_OPTIONS)


def _queue(topic: str, number: int) -> definition.MessageQueue:
    return definition.MessageQueue(topic=definition.Resource(name=topic), id=number)


def _require_ok(what: str, status: definition.Status) -> None:
    if status.code != definition.OK:
        raise CallRefused(what, status.code, f"{definition.Code.Name(status.code)}: {status.message}")


def _told(status: grpc.Call) -> str:
    return f"{status.code().name.lower().replace('_', ' ')}: {status.details()}"
