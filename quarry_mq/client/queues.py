"""A client of the messaging port that reads queues by their offsets: no consumer group keeps state of it.

It retries for a while when a broker is unreachable or overloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from threading import Event
from typing import Any, Final, NamedTuple, Self, TypeVar, cast

import grpc

from quarry_mq.client.channel import open_channel
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.errors import BrokerUnreachable, CallRefused, require_ok
from quarry_mq.client.requests import Requests
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub

CALL_TIMEOUT_S: Final = 10.0
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 3.0

_CHANNEL_OPTIONS: Final = (
    # a broker that restarts is away for seconds; by default gRPC waits up to two minutes before it reconnects
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("SingleThreadedUnaryStream", 1),
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
TIMEOUT_MS: Final = 60_000


class Start(Enum):
    """The begin or the end of a queue."""

    EARLIEST = "earliest"
    LATEST = "latest"


_POLICIES: Final = {Start.EARLIEST: definition.BEGINNING, Start.LATEST: definition.END}
_Answer = TypeVar("_Answer")

Unsent = Callable[[Sequence[definition.Message]], Sequence[definition.Message]]
"""Returns those of the messages that no broker has stored. May raise as a call does."""


class Pulled(NamedTuple):
    """The result of a pull. `is_outside`: the queue does not have the offset; reading can go on at `following`."""

    messages: list[definition.Message]
    following: int
    is_outside: bool


class RoutedQueue(NamedTuple):
    """A queue of a topic, with the broker that has it and the broker's address."""

    broker: str
    number: int
    address: str


class Retries:
    """Waits longer and longer between the attempts of a call, until its time is over."""

    def __init__(self, timeout_ms: int, clock: Clock | None = None, closed: Event | None = None) -> None:
        """`closed` ends all waiting when it is set."""
        self._timeout_ms = timeout_ms
        self._clock = clock or SystemClock()
        self._closed = closed or Event()
        self.renew()

    def renew(self) -> None:
        """Begin again, after an attempt that succeeded."""
        self._until_s = self._clock.monotonic_s() + self._timeout_ms / 1000
        self._pause_s = BACKOFF_FIRST_S

    def wait(self, reason: str, error: Exception | None = None) -> None:
        """Wait before the next attempt. Raises BrokerUnreachable, with the reason, when the time is over."""
        left_s = self._until_s - self._clock.monotonic_s()
        if left_s <= 0 or self._closed.wait(min(self._pause_s, left_s)):
            raise BrokerUnreachable(f"{reason} (after {self._timeout_ms} ms)") from error
        self._pause_s = min(self._pause_s * 2, BACKOFF_MAX_S)


class QueueClient:
    """Reads queues, and sends messages in their protobuf form, from one thread or several. It must be closed.

    Calls raise CallRefused when the broker refuses for good, BrokerUnreachable when `timeout_ms` is over.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_ms: int = TIMEOUT_MS,
        client_id: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Prepare the connection. Calls are retried for `timeout_ms`. Raises OSError for a file that cannot be read."""
        self._endpoint = endpoint
        self._timeout_ms = timeout_ms
        self._clock = clock or SystemClock()
        self._channel = open_channel(endpoint, clock=self._clock, options=_CHANNEL_OPTIONS)
        self._stub: Any = MessagingServiceStub(self._channel)
        self._requests = Requests(endpoint.address, self._clock, client_id)
        self._closed = Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed.set()
        self._channel.close()

    def queues(self, topic: str) -> list[int]:
        """Return the numbers of the topic's queues."""
        return sorted({queue.number for queue in self.routes([topic])[topic]})

    def routes(self, topics: Sequence[str]) -> dict[str, list[RoutedQueue]]:
        """Return the queues of each topic, in the order of brokers and numbers."""
        # asking for a route may create the topic, asking for an offset does not
        self.offsets_of([(topic, 0) for topic in topics], Start.LATEST)
        requests = {topic: service.QueryRouteRequest(topic=definition.Resource(name=topic)) for topic in topics}
        futures = {topic: self._begun(self._stub.QueryRoute, request) for topic, request in requests.items()}
        found = {}
        for topic, future in futures.items():
            answer = self._answered(f"topic {topic}", self._stub.QueryRoute, requests[topic], begun=future)
            found[topic] = sorted({_routed(queue) for queue in answer.message_queues})
        return found

    def offsets(self, topic: str, queues: Iterable[int], where: Start | int) -> dict[int, int]:
        """Return the first offset of each queue of a topic, its end, or its offset at a time in ms."""
        found = self.offsets_of([(topic, number) for number in queues], where)
        return {number: offset for (_, number), offset in found.items()}

    def offsets_of(self, queues: Iterable[tuple[str, int]], where: Start | int) -> dict[tuple[str, int], int]:
        """Return such offsets for queues of several topics. A queue is a topic and a number."""
        requests = {}
        for topic, number in queues:
            requests[topic, number] = request = service.QueryOffsetRequest(message_queue=_queue(topic, number))
            if isinstance(where, Start):
                request.query_offset_policy = _POLICIES[where]
            else:
                request.query_offset_policy = definition.TIMESTAMP
                request.timestamp.FromMilliseconds(where)
        # all queues at once: a topic may have thousands
        futures = {queue: self._begun(self._stub.QueryOffset, request) for queue, request in requests.items()}
        return {
            queue: self._answered(
                f"topic {queue[0]}, queue {queue[1]}", self._stub.QueryOffset, requests[queue], begun=future
            ).offset
            for queue, future in futures.items()
        }

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Store the next offset of the group in each queue. A queue is a topic and a number."""
        requests = {
            queue: service.UpdateOffsetRequest(
                group=definition.Resource(name=group), message_queue=_queue(*queue), offset=offset
            )
            for queue, offset in offsets.items()
        }
        futures = {queue: self._begun(self._stub.UpdateOffset, request) for queue, request in requests.items()}
        for queue, future in futures.items():
            what = f"topic {queue[0]}, queue {queue[1]}"
            self._answered(what, self._stub.UpdateOffset, requests[queue], begun=future)

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
            for item in self._stub.PullMessage(request, metadata=self._requests.metadata(), timeout=CALL_TIMEOUT_S):
                match item.WhichOneof("content"):
                    case "status":
                        status = item.status
                    case "message":
                        messages.append(item.message)
                    case "next_offset":
                        following = item.next_offset
            if status.code not in (definition.MESSAGE_NOT_FOUND, definition.ILLEGAL_OFFSET):
                require_ok(status, what)
            return Pulled(messages, following, status.code == definition.ILLEGAL_OFFSET)

        return self.again(what, call)

    def send(self, messages: Sequence[definition.Message], unsent: Unsent | None = None) -> None:
        """Send messages of one topic, and of one message group if any; they are stored in this order.

        A request without an answer is sent again, and its messages may then be stored twice, with the same ids. With
        `unsent`, which is called before each repetition, only the messages that it returns are sent again.
        """
        what = f"topic {messages[0].topic.name}"
        left, is_again = messages, False

        def call() -> None:
            nonlocal left, is_again
            if is_again and unsent is not None:
                # a broker takes the calls of a connection in order: once this one is answered, no send is on its way
                asked = service.QueryOffsetRequest(message_queue=_queue(messages[0].topic.name, 0))
                self._begun(self._stub.QueryOffset, asked).result()
                left = unsent(left)
            is_again = True
            if left:
                answer = self._begun(self._stub.SendMessage, service.SendMessageRequest(messages=left)).result()
                require_ok(answer.status, what)

        self.again(what, call)

    # -- calls

    def _begun(self, method: Any, request: Any) -> Any:
        return method.future(request, metadata=self._requests.metadata(), timeout=CALL_TIMEOUT_S)

    def _answered(self, what: str, method: Any, request: Any, *, begun: Any = None) -> Any:
        """Return the answer of a unary call, whose first attempt may have begun already."""
        attempts = iter(() if begun is None else (begun,))

        def call() -> Any:
            answer = next(attempts, None) or self._begun(method, request)
            found = answer.result()
            require_ok(found.status, what)
            return found

        return self.again(what, call)

    def again(self, what: str, call: Callable[[], _Answer]) -> _Answer:
        """Retry the call until it succeeds or time is over, and return its result.

        Retries after BrokerUnreachable, and after those of the errors of gRPC and of the protocol that may pass.
        """
        retries = Retries(self._timeout_ms, self._clock, self._closed)
        while True:
            try:
                return call()
            except CallRefused as refused:
                if refused.code not in _RETRIED:
                    raise
                error: Exception = refused
                reason = str(refused)
            except BrokerUnreachable as unreachable:
                error, reason = unreachable, str(unreachable)
            except grpc.RpcError as failed:
                # every error of a call is also that call; the type does not say so
                status = cast("grpc.Call", failed)
                if status.code() not in _RETRIED_BY_GRPC:
                    raise BrokerUnreachable(f"{self._endpoint.address}: {what}: {_told(status)}") from failed
                error, reason = failed, f"{what}: {_told(status)}"
            retries.wait(f"{self._endpoint.address}: {reason}", error)


def _routed(queue: definition.MessageQueue) -> RoutedQueue:
    [address, *_] = queue.broker.endpoints.addresses
    host = f"[{address.host}]" if ":" in address.host else address.host
    return RoutedQueue(queue.broker.name, queue.id, f"{host}:{address.port}")


def _queue(topic: str, number: int) -> definition.MessageQueue:
    return definition.MessageQueue(topic=definition.Resource(name=topic), id=number)


def _told(status: grpc.Call) -> str:
    return f"{status.code().name.lower().replace('_', ' ')}: {status.details()}"
