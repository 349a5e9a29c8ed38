"""A small client of the messaging port: settings, sends, receives, acknowledgements (docs/formats/protocol.md).

It has only what the commands need, and is no general library: one thread, one endpoint, no retries.
"""

from __future__ import annotations

import os
import platform
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import grpc

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.contexts import chosen
from quarry_mq.cli.online.connection.administration import asked_names, refusal
from quarry_mq.cli.online.connection.channel import open_channel
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.hints import no_names
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub

CALL_TIMEOUT_S: Final = 10.0
REQUEST_TIMEOUT_S: Final = 3
POLLING_SLACK_S: Final = 3.0
"""Seconds that a receive may take beyond the wait it asks for: the answer has to arrive."""

HEARTBEAT_INTERVAL_S: Final = 10.0
_MESSAGE_NUMBERS: Final = count()
"""Message numbers of all clients of this process, so that no two messages have the same id."""

MESSAGE_ID_EPOCH_S: Final = 1_609_459_200  # 2021-01-01T00:00:00Z
VERSION: Final = "5.0.0"
"""Version of the protocol, not of Quarry: brokers compare it as text with the versions of the official clients."""


class CallRefused(Exception):
    """The broker answered with a status other than OK in the answer itself."""

    def __init__(self, status: definition.Status) -> None:
        super().__init__(f"{definition.Code.Name(status.code)}: {status.message}")
        self.code = status.code


@dataclass(frozen=True, kw_only=True, slots=True)
class Outgoing:
    """A message to send."""

    topic: str
    body: bytes
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    is_compressed: bool = False
    """Set when the body is compressed by gzip or zlib, and receivers uncompress it."""
    message_group: str | None = None
    deliver_at_ms: int | None = None
    priority: int | None = None
    lite_topic: str | None = None
    """One of the four fields that determine the type of the message. At most one of them is set."""

    @property
    def type(self) -> definition.MessageType:
        if self.message_group is not None:
            return definition.FIFO
        if self.deliver_at_ms is not None:
            return definition.DELAY
        if self.priority is not None:
            return definition.PRIORITY
        return definition.NORMAL if self.lite_topic is None else definition.LITE


class Sent(NamedTuple):
    """The id and the offset that a sent message got."""

    message_id: str
    queue_offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """The group that reads, and the topic that it reads. `expression` is a tag expression, `*` for everything."""

    group: str
    topic: str
    expression: str = "*"


class Requests:
    """Builds the requests of one client: its identity, settings, messages and calls."""

    def __init__(self, endpoint: str, clock: Clock) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self.client_id = f"{socket.gethostname()}@{os.getpid()}@{uuid.uuid4().hex[:8]}"

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of one call."""
        return (
            ("x-mq-client-id", self.client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", VERSION),
            ("x-mq-protocol", "v2"),
            ("x-mq-request-id", str(uuid.uuid4())),
            ("x-mq-namespace", ""),
        )

    def settings(self, reader: Reader | None) -> definition.Settings:
        """Return the settings of a simple consumer, or without a reader those of a producer."""
        settings = definition.Settings(
            access_point=self.access_point(),
            user_agent=definition.UA(
                language=definition.PYTHON, version=VERSION, platform=platform.platform(), hostname=socket.gethostname()
            ),
        )
        settings.request_timeout.FromSeconds(REQUEST_TIMEOUT_S)
        if reader is None:
            settings.client_type = definition.PRODUCER
            settings.publishing.SetInParent()
            return settings
        settings.client_type = definition.SIMPLE_CONSUMER
        settings.subscription.group.name = reader.group
        entry = settings.subscription.subscriptions.add()
        entry.topic.name = reader.topic
        entry.expression.type = definition.TAG
        entry.expression.expression = reader.expression
        return settings

    def access_point(self) -> definition.Endpoints:
        host, _, port = self._endpoint.rpartition(":")
        return definition.Endpoints(
            scheme=definition.DOMAIN_NAME, addresses=[definition.Address(host=host.strip("[]"), port=int(port))]
        )

    def message(self, message: Outgoing) -> definition.Message:
        """Return the message in the protocol's form, with a new id and the current time as its time of birth."""
        wire = definition.Message(
            topic=definition.Resource(name=message.topic),
            user_properties=message.properties,
            system_properties=definition.SystemProperties(
                tag=message.tag,
                keys=message.keys,
                message_id=self.new_message_id(),
                message_type=message.type,
                body_encoding=definition.GZIP if message.is_compressed else definition.IDENTITY,
                born_host=socket.gethostname(),
                message_group=message.message_group,
                priority=message.priority,
                lite_topic=message.lite_topic,
            ),
            body=message.body,
        )
        wire.system_properties.born_timestamp.FromMilliseconds(self._clock.wall_ms())
        if message.deliver_at_ms is not None:
            wire.system_properties.delivery_timestamp.FromMilliseconds(message.deliver_at_ms)
        return wire

    def receive(self, reader: Reader, *, limit: int, invisible_s: int, wait_s: float) -> service.ReceiveMessageRequest:
        request = service.ReceiveMessageRequest(
            group=definition.Resource(name=reader.group),
            message_queue=definition.MessageQueue(topic=definition.Resource(name=reader.topic), id=-1),
            filter_expression=definition.FilterExpression(type=definition.TAG, expression=reader.expression),
            batch_size=limit,
        )
        request.invisible_duration.FromSeconds(invisible_s)
        request.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))
        return request

    def acknowledgement(self, reader: Reader, message: definition.Message) -> service.AckMessageRequest:
        properties = message.system_properties
        return service.AckMessageRequest(
            group=definition.Resource(name=reader.group),
            topic=definition.Resource(name=reader.topic),
            entries=[
                service.AckMessageEntry(message_id=properties.message_id, receipt_handle=properties.receipt_handle)
            ],
        )

    def heartbeat(self, reader: Reader | None) -> service.HeartbeatRequest:
        if reader is None:
            return service.HeartbeatRequest(client_type=definition.PRODUCER)
        return service.HeartbeatRequest(
            group=definition.Resource(name=reader.group), client_type=definition.SIMPLE_CONSUMER
        )

    def goodbye(self, reader: Reader | None) -> service.NotifyClientTerminationRequest:
        request = service.NotifyClientTerminationRequest()
        if reader is not None:
            request.group.name = reader.group
        return request

    def new_message_id(self) -> str:
        """Make a message id as all clients do: version, network address, process, seconds since 2021 and a number."""
        parts = (
            (1, 1),
            (uuid.getnode(), 6),
            (os.getpid() & 0xFFFF, 2),
            (self._clock.wall_ms() // 1000 - MESSAGE_ID_EPOCH_S, 4),
            (next(_MESSAGE_NUMBERS), 4),
        )
        return b"".join(value.to_bytes(size, "big") for value, size in parts).hex().upper()


class MessagingClient:
    """A producer, or with a `reader` a simple consumer. Use it as a context manager.

    Raises CallRefused for in-band errors and grpc.RpcError when the connection fails.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        reader: Reader | None = None,
        context: Context | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._reader = reader
        self._clock = clock or SystemClock()
        self._requests = Requests(endpoint, self._clock)
        self._client_id = self._requests.client_id
        self._channel = open_channel(endpoint, context, clock=self._clock)
        self._stub: Any = MessagingServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._commands: SimpleQueue[service.TelemetryCommand | None] = SimpleQueue()
        self._telemetry: Any = None
        self._last_heartbeat_s = self._clock.monotonic_s()

    def __enter__(self) -> Self:
        self._telemetry = self._stub.Telemetry(iter(self._commands.get, None), metadata=self._requests.metadata())
        self._commands.put(service.TelemetryCommand(settings=self._requests.settings(self._reader)))
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

    def _say_goodbye(self) -> None:
        """Make the broker drop this client now, not only when heartbeats are missing."""
        request = self._requests.goodbye(self._reader)
        self._stub.NotifyClientTermination(request, metadata=self._requests.metadata(), timeout=CALL_TIMEOUT_S)

    def send(self, *messages: Outgoing) -> list[Sent]:
        """Send messages of one topic and type in one request: one queue gets all of them in their order, or none."""
        request = service.SendMessageRequest(messages=map(self._requests.message, messages))
        answer = self._stub.SendMessage(request, metadata=self._requests.metadata(), timeout=CALL_TIMEOUT_S)
        require_ok(answer.status)
        for entry in answer.entries:
            require_ok(entry.status)
        return [Sent(entry.message_id, entry.offset) for entry in answer.entries]

    def require_topic(self, topic: str) -> None:
        """Raise CallRefused if the broker has no such topic and does not create it."""
        request = service.QueryRouteRequest(
            topic=definition.Resource(name=topic), endpoints=self._requests.access_point()
        )
        require_ok(self._stub.QueryRoute(request, metadata=self._requests.metadata(), timeout=CALL_TIMEOUT_S).status)

    def receive(self, *, limit: int, invisible_s: int, wait_s: float) -> list[definition.Message]:
        """Receive at most `limit` messages, hidden from others for `invisible_s`; none if `wait_s` pass without any."""
        reader = self._require_reader()
        self._keep_alive()
        request = self._requests.receive(reader, limit=limit, invisible_s=invisible_s, wait_s=wait_s)
        answer = self._stub.ReceiveMessage(
            request, metadata=self._requests.metadata(), timeout=wait_s + POLLING_SLACK_S
        )
        messages = []
        for item in answer:
            match item.WhichOneof("content"):
                case "status" if item.status.code != definition.MESSAGE_NOT_FOUND:
                    require_ok(item.status)
                case "message":
                    messages.append(item.message)
        return messages

    def acknowledge(self, message: definition.Message) -> None:
        request = self._requests.acknowledgement(self._require_reader(), message)
        answer = self._stub.AckMessage(request, metadata=self._requests.metadata(), timeout=CALL_TIMEOUT_S)
        require_ok(answer.status)

    def give_back(self, messages: Iterable[definition.Message]) -> None:
        """Return messages to the group, so that other consumers get them at once and not after their invisible time."""
        reader = self._require_reader()
        for message in messages:
            request = service.ChangeInvisibleDurationRequest(
                group=definition.Resource(name=reader.group),
                topic=definition.Resource(name=reader.topic),
                receipt_handle=message.system_properties.receipt_handle,
                message_id=message.system_properties.message_id,
            )
            request.invisible_duration.FromSeconds(0)
            answer = self._stub.ChangeInvisibleDuration(
                request, metadata=self._requests.metadata(), timeout=CALL_TIMEOUT_S
            )
            require_ok(answer.status)

    def _keep_alive(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._last_heartbeat_s < HEARTBEAT_INTERVAL_S:
            return
        self._last_heartbeat_s = now_s
        request = self._requests.heartbeat(self._require_reader())
        require_ok(self._stub.Heartbeat(request, metadata=self._requests.metadata(), timeout=CALL_TIMEOUT_S).status)

    def _require_reader(self) -> Reader:
        if self._reader is None:
            raise TypeError("a client without a reader cannot receive")
        return self._reader


def require_ok(status: definition.Status) -> None:
    if status.code != definition.OK:
        raise CallRefused(status)


@contextmanager
def messaging_port(endpoint: str, *, reader: Reader | None = None) -> Iterator[MessagingClient]:
    """Give a connected client. A refusal or a lost connection ends the command with one line."""
    context = chosen()
    try:
        with MessagingClient(endpoint, reader=reader, context=context) as client:
            yield client
    except CallRefused as error:
        admin = None if context is None else context.admin  # the messaging port lists no names
        end(Exit.COULD_NOT_RUN, str(error), no_names if admin is None else asked_names(admin))
    except grpc.RpcError as error:
        end(Exit.COULD_NOT_RUN, refusal(error, endpoint))
    except ValueError as error:
        end(Exit.COULD_NOT_RUN, f"{endpoint}: {error}")
