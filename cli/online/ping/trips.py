"""Round trips to a broker: a heartbeat, a small call of the admin port, or a message through a topic.

Tries are made one after the other, and their times are kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import Any, Final

import grpc

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.online.connection.administration import open_channel, refusal
from quarry_mq.cli.records import decoded, message_id_of
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.hints import Names
from quarry_mq.client.errors import CallRefused, require_ok
from quarry_mq.client.requests import OutgoingMessage, Requests, sent_of
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as admin
from quarry_mq.protocol.proto.quarry.admin.v1 import browsing_pb2 as browsing
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.browsing_pb2_grpc import BrowsingServiceStub

TAG: Final = "quarry-ping"
GROUP: Final = "quarry-ping"
"""The message group of test messages in a FIFO topic."""

BODY: Final = b"A test message of quarry ping. It means nothing."
TAKES_NORMAL: Final = (admin.TOPIC_TYPE_UNSPECIFIED, admin.TOPIC_TYPE_NORMAL, admin.TOPIC_TYPE_MIXED)
LOOK_INTERVAL_S: Final = 0.001
LOOKED_AT: Final = 50
OPTIONS: Final = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000))
"""Options of the channels: after a broker comes back, the next try finds it soon."""


class Unanswered(Exception):
    """A message was sent, and was not found again in time."""


class AdminTrip:
    """A round trip by GetBroker on the admin port."""

    def __init__(self, address: str, context: Context | None, timeout_s: float) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._channel = open_channel(address, context, options=OPTIONS)
        self._stub = AdminServiceStub(self._channel)

    def prepare(self) -> None:
        """Connect, so that no measured trip includes the connection. Raises grpc.RpcError."""
        self.go()

    def go(self) -> None:
        """Make one call. Raises grpc.RpcError."""
        self._stub.GetBroker(admin.GetBrokerRequest(), timeout=self._timeout_s)

    def close(self) -> None:
        self._channel.close()


class MessagingTrip:
    """A round trip by a heartbeat on the messaging port, from a client that never introduces itself to the broker."""

    def __init__(self, endpoint: str, context: Context | None, timeout_s: float, clock: Clock) -> None:
        self.address = endpoint
        self._timeout_s = timeout_s
        self._requests = Requests(endpoint, clock)
        self._channel = open_channel(endpoint, context, clock=clock, options=OPTIONS)
        self._stub: Any = MessagingServiceStub(self._channel)

    def prepare(self) -> None:
        """Connect, so that no measured trip includes the connection. Raises as `go`."""
        self.go()

    def go(self) -> None:
        """Send one heartbeat. Raises grpc.RpcError, and CallRefused if the user may not call."""
        answer = self._stub.Heartbeat(
            self._requests.heartbeat(None), metadata=self._requests.metadata(), timeout=self._timeout_s
        )
        if answer.status.code != definition.UNRECOGNIZED_CLIENT_TYPE:  # an answer, too: it does not know this client
            require_ok(answer.status)

    def send(self, message: OutgoingMessage) -> str:
        """Send a message and return its id. Raises as `go`."""
        request = service.SendMessageRequest(messages=[self._requests.message(message)])
        answer = self._stub.SendMessage(request, metadata=self._requests.metadata(), timeout=self._timeout_s)
        return sent_of(answer)[0].message_id

    def close(self) -> None:
        self._channel.close()


class MessageTrip:
    """A message sent by the messaging port and found by the admin port, so that no group has to read it."""

    def __init__(
        self, topic: str, messaging: MessagingTrip, address: str, context: Context | None, *, names: Names, clock: Clock
    ) -> None:
        self._topic = topic
        self._messaging = messaging
        self._names = names
        self._clock = clock
        self._message: OutgoingMessage | None = None
        self.address = address
        self._channel = open_channel(address, context, options=OPTIONS)
        self._topics = AdminServiceStub(self._channel)
        self._browsing = BrowsingServiceStub(self._channel)

    def prepare(self, timeout_s: float) -> None:
        """Connect both ports. Ends the command if the topic does not exist or does not take such messages."""
        self._messaging.prepare()
        try:
            topic = self._topics.GetTopic(admin.GetTopicRequest(name=self._topic), timeout=timeout_s)
        except grpc.RpcError as error:
            call: Any = error
            if call.code() is grpc.StatusCode.NOT_FOUND:
                end(Exit.COULD_NOT_RUN, call.details(), self._names)
            raise
        self._message = _message_for(topic)

    def go(self, timeout_s: float) -> tuple[float, float]:
        """Send a message; return the seconds until the broker had it, and until it was found again.

        Raises grpc.RpcError, CallRefused, and Unanswered when it was not found in time.
        """
        assert self._message is not None, "not prepared"
        began_s = self._clock.monotonic_s()
        message_id = self._messaging.send(self._message)
        sent_s = self._clock.monotonic_s() - began_s
        pause = threading.Event()
        while not self._has(message_id, timeout_s):
            if self._clock.monotonic_s() - began_s > timeout_s:
                raise Unanswered(f"message {message_id} was sent, but is not in topic {self._topic} yet")
            pause.wait(LOOK_INTERVAL_S)
        return sent_s, self._clock.monotonic_s() - began_s

    def _has(self, message_id: str, timeout_s: float) -> bool:
        """Return whether the message is among the newest test messages."""
        request = browsing.BrowseMessagesRequest(
            topic=self._topic, limit=LOOKED_AT, filter=browsing.MessageFilter(expression=TAG)
        )
        page = self._browsing.BrowseMessages(request, timeout=timeout_s)
        return any(message_id_of(decoded(each.message, self.address)) == message_id for each in page.messages)

    def close(self) -> None:
        self._channel.close()


def _message_for(topic: admin.Topic) -> OutgoingMessage:
    plain = OutgoingMessage(topic=topic.name, body=BODY, tag=TAG, properties={TAG: "test"})
    if topic.type == admin.TOPIC_TYPE_FIFO:
        return replace(plain, message_group=GROUP)
    if topic.type not in TAKES_NORMAL:
        kind = admin.TopicType.Name(topic.type).removeprefix("TOPIC_TYPE_").lower()
        end(Exit.COULD_NOT_RUN, f"topic {topic.name} is of type {kind} and takes no NORMAL messages")
    return plain


PERCENTILES: Final = (("p50Ms", 0.5), ("p99Ms", 0.99))

Times = Mapping[str, float]
"""Seconds by the name of what was measured."""


class Way:
    """A request that each try makes. `names` are the names of its measured times."""

    def __init__(
        self, address: str, names: tuple[str, ...], prepare: Callable[[], None], go: Callable[[], tuple[float, ...]]
    ) -> None:
        self.names = names
        self.reason: str | None = None
        """Reason why the last try failed; None if it succeeded."""
        self.times_s: dict[str, list[float]] = {name: [] for name in names}
        self._address = address
        self._prepare = prepare
        self._go = go
        self._is_prepared = False

    def try_once(self) -> Times:
        """Make a try and return its times; none if it failed."""
        self.reason = None
        try:
            if not self._is_prepared:
                self._prepare()
                self._is_prepared = True
            found = dict(zip(self.names, self._go(), strict=True))
        except grpc.RpcError as error:
            self._is_prepared = False
            self.reason = refusal(error, self._address)
        except (CallRefused, Unanswered) as error:
            self.reason = str(error)
        except ValueError as error:
            end(Exit.COULD_NOT_RUN, f"{self._address}: {error}")
        else:
            for name, time_s in found.items():
                self.times_s[name].append(time_s)
            return found
        return {}

    @property
    def has_answered(self) -> bool:
        return any(self.times_s.values())


def paced(count: int, interval_s: float, clock: Clock) -> Iterator[int]:
    """Yield the numbers of the tries, each when its time has come."""
    pause = threading.Event()
    began_s = clock.monotonic_s()
    for number in range(1, count + 1):
        yield number
        if number < count:
            pause.wait(max(0.0, began_s + number * interval_s - clock.monotonic_s()))


def stats_of(times_s: list[float]) -> dict[str, float | None]:
    ordered = sorted(times_s)
    stats: dict[str, float | None] = {
        "answered": len(ordered),
        "minMs": milliseconds(ordered[0]) if ordered else None,
    }
    for name, share in PERCENTILES:
        stats[name] = milliseconds(ordered[ceil(len(ordered) * share) - 1]) if ordered else None
    return {**stats, "maxMs": milliseconds(ordered[-1]) if ordered else None}


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
