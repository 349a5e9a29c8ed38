"""Messages and subscriptions, and the requests that clients make of them (docs/formats/protocol.md)."""

from __future__ import annotations

import os
import platform
import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from quarry_mq.client.errors import require_ok
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.messages.bodies import uncompressed
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.signature import LANGUAGE

REQUEST_TIMEOUT_S: Final = 3
HEARTBEAT_INTERVAL_S: Final = 10.0
_MESSAGE_NUMBERS: Final = count()
"""Message numbers of all clients of this process, so that no two messages have the same id."""

MESSAGE_ID_EPOCH_S: Final = 1_609_459_200  # 2021-01-01T00:00:00Z
VERSION: Final = "5.0.0"
"""Version of the protocol, not of Quarry: brokers compare it as text with the versions of the official clients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutgoingMessage:
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
    """Each of these four fields determines the type of the message. A message has at most one of them."""

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
class Subscription:
    """A consumer group and the topic that it reads. `expression` is a tag expression, `*` for all messages."""

    group: str
    topic: str
    expression: str = "*"


class Requests:
    """Builds the requests of one client: its identity, settings, messages and calls."""

    def __init__(self, endpoint: str, clock: Clock, client_id: str | None = None) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self.client_id = client_id or f"{socket.gethostname()}@{os.getpid()}@{uuid.uuid4().hex[:8]}"

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of one call."""
        return (
            ("x-mq-client-id", self.client_id),
            (LANGUAGE, "PYTHON"),
            ("x-mq-client-version", VERSION),
            ("x-mq-protocol", "v2"),
            ("x-mq-request-id", str(uuid.uuid4())),
            ("x-mq-namespace", ""),
        )

    def settings(self, subscription: Subscription | None) -> definition.Settings:
        """Return the settings of a simple consumer, or without a subscription those of a producer."""
        settings = definition.Settings(
            access_point=self.access_point(),
            user_agent=definition.UA(
                language=definition.PYTHON, version=VERSION, platform=platform.platform(), hostname=socket.gethostname()
            ),
        )
        settings.request_timeout.FromSeconds(REQUEST_TIMEOUT_S)
        if subscription is None:
            settings.client_type = definition.PRODUCER
            settings.publishing.SetInParent()
            return settings
        settings.client_type = definition.SIMPLE_CONSUMER
        settings.subscription.group.name = subscription.group
        entry = settings.subscription.subscriptions.add()
        entry.topic.name = subscription.topic
        entry.expression.type = definition.TAG
        entry.expression.expression = subscription.expression
        return settings

    def access_point(self) -> definition.Endpoints:
        host, _, port = self._endpoint.rpartition(":")
        return definition.Endpoints(
            scheme=definition.DOMAIN_NAME, addresses=[definition.Address(host=host.strip("[]"), port=int(port))]
        )

    def message(self, message: OutgoingMessage) -> definition.Message:
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

    def receive(
        self, subscription: Subscription, *, limit: int, invisible_s: int, wait_s: float
    ) -> service.ReceiveMessageRequest:
        request = service.ReceiveMessageRequest(
            group=definition.Resource(name=subscription.group),
            message_queue=definition.MessageQueue(topic=definition.Resource(name=subscription.topic), id=-1),
            filter_expression=definition.FilterExpression(type=definition.TAG, expression=subscription.expression),
            batch_size=limit,
        )
        request.invisible_duration.FromSeconds(invisible_s)
        request.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))
        return request

    def acknowledgement(self, subscription: Subscription, message: definition.Message) -> service.AckMessageRequest:
        properties = message.system_properties
        return service.AckMessageRequest(
            group=definition.Resource(name=subscription.group),
            topic=definition.Resource(name=subscription.topic),
            entries=[
                service.AckMessageEntry(message_id=properties.message_id, receipt_handle=properties.receipt_handle)
            ],
        )

    def return_of(
        self, subscription: Subscription, message: definition.Message
    ) -> service.ChangeInvisibleDurationRequest:
        """Return the request that makes a received message visible to other consumers at once."""
        request = service.ChangeInvisibleDurationRequest(
            group=definition.Resource(name=subscription.group),
            topic=definition.Resource(name=subscription.topic),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
        )
        request.invisible_duration.FromSeconds(0)
        return request

    def heartbeat(self, subscription: Subscription | None) -> service.HeartbeatRequest:
        if subscription is None:
            return service.HeartbeatRequest(client_type=definition.PRODUCER)
        return service.HeartbeatRequest(
            group=definition.Resource(name=subscription.group), client_type=definition.SIMPLE_CONSUMER
        )

    def goodbye(self, subscription: Subscription | None) -> service.NotifyClientTerminationRequest:
        request = service.NotifyClientTerminationRequest()
        if subscription is not None:
            request.group.name = subscription.group
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


def sent_of(answer: service.SendMessageResponse) -> list[Sent]:
    """Return what became of the messages of one request. Raises CallRefused."""
    require_ok(answer.status)
    for entry in answer.entries:
        require_ok(entry.status)
    return [Sent(entry.message_id, entry.offset) for entry in answer.entries]


def received_of(answers: Iterable[service.ReceiveMessageResponse]) -> list[definition.Message]:
    """Return the messages of the answers to one receive. Raises CallRefused."""
    messages = []
    for item in answers:
        match item.WhichOneof("content"):
            case "status" if item.status.code != definition.MESSAGE_NOT_FOUND:
                require_ok(item.status)
            case "message":
                messages.append(item.message)
    return messages


def body_of(message: definition.Message) -> bytes | None:
    """Return the body of a received message as its sender gave it; None if it cannot be uncompressed."""
    if message.system_properties.body_encoding != definition.GZIP:
        return message.body
    return uncompressed(message.body)
