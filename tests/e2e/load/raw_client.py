"""A fast client on our own stubs, for load. It is no substitute for the official clients: those test the protocol."""

from __future__ import annotations

import asyncio
import uuid
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from hashlib import md5
from types import TracebackType
from typing import Any, Final

import grpc

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub

REQUEST_TIMEOUT_S: Final = 10.0


class Refused(Exception):
    """The broker answered with a code other than OK."""

    def __init__(self, status: definition.Status) -> None:
        super().__init__(f"{definition.Code.Name(status.code)}: {status.message}")
        self.code = status.code


class Damaged(Exception):
    """A message arrived that nobody sent."""


def stamped_body(message_id: str, size: int) -> bytes:
    """A body that proves itself: the id, a CRC of all else, filler made from the id."""
    filler = (message_id.encode() * (size // len(message_id) + 1))[:size]
    return b"%s|%08x|%s" % (message_id.encode(), zlib.crc32(message_id.encode() + filler), filler)


def check_body(message_id: str, body: bytes) -> None:
    """Raises Damaged unless `stamped_body` made this body for this id."""
    name, _, rest = body.partition(b"|")
    crc, _, filler = rest.partition(b"|")
    if name != message_id.encode() or crc != b"%08x" % zlib.crc32(name + filler):
        raise Damaged(f"message {message_id} has the body {body[:200]!r}")


@dataclass(frozen=True, slots=True)
class Received:
    message_id: str
    handle: str
    attempt: int


class RawClient:
    """One client with a connection of its own."""

    def __init__(self, endpoint: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self._channel = grpc.aio.insecure_channel(endpoint, options=options)
        self._stub: Any = MessagingServiceStub(self._channel)
        self._metadata = (
            ("x-mq-client-id", f"load@{uuid.uuid4().hex}"),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", "5.1.2"),
        )
        self._closing = asyncio.Event()
        self._telemetry: Any = None

    async def __aenter__(self) -> RawClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        if self._telemetry is not None:
            self._telemetry.cancel()
        await self._channel.close()

    async def subscribe(self, group: str, topic: str) -> None:
        """Ask for the route, declare the subscription over telemetry, keep that stream open: as official clients do."""
        route = await self._stub.QueryRoute(
            service.QueryRouteRequest(topic=definition.Resource(name=topic)),
            metadata=self._metadata,
            timeout=REQUEST_TIMEOUT_S,
        )
        if route.status.code != definition.OK:
            raise Refused(route.status)
        settings = definition.Settings(client_type=definition.SIMPLE_CONSUMER)
        settings.subscription.group.name = group
        entry = settings.subscription.subscriptions.add()
        entry.topic.name = topic
        entry.expression.type = definition.TAG
        entry.expression.expression = "*"
        self._telemetry = self._stub.Telemetry(self._settings(settings), metadata=self._metadata)
        answer = await self._telemetry.read()
        if answer.status.code != definition.OK:
            raise Refused(answer.status)

    async def _settings(self, settings: definition.Settings) -> AsyncIterator[service.TelemetryCommand]:
        yield service.TelemetryCommand(settings=settings)
        await self._closing.wait()

    async def send(self, topic: str, message_id: str, body: bytes) -> None:
        """Raises Refused or grpc.aio.AioRpcError: the message may be stored all the same."""
        message = definition.Message(body=body)
        message.topic.name = topic
        message.system_properties.message_id = message_id
        message.system_properties.message_type = definition.NORMAL
        message.system_properties.body_encoding = definition.IDENTITY
        message.system_properties.born_timestamp.GetCurrentTime()
        request = service.SendMessageRequest(messages=[message])
        answer = await self._stub.SendMessage(request, metadata=self._metadata, timeout=REQUEST_TIMEOUT_S)
        if answer.status.code != definition.OK:
            raise Refused(answer.status)

    async def receive(
        self, group: str, topic: str, *, polling_s: float, invisible_s: int = 300, count: int = 32
    ) -> list[Received]:
        """One receive, checked: digest and body of every message. Raises Damaged, Refused, grpc.aio.AioRpcError."""
        request = service.ReceiveMessageRequest(batch_size=count, auto_renew=False)
        request.group.name = group
        request.message_queue.topic.name = topic
        request.message_queue.id = -1
        request.filter_expression.type = definition.TAG
        request.filter_expression.expression = "*"
        request.invisible_duration.seconds = invisible_s
        request.long_polling_timeout.FromMilliseconds(int(polling_s * 1000))
        call = self._stub.ReceiveMessage(request, metadata=self._metadata, timeout=polling_s + REQUEST_TIMEOUT_S)
        received = []
        async for part in call:
            if part.HasField("status"):
                if part.status.code == definition.MESSAGE_NOT_FOUND:
                    continue
                if part.status.code != definition.OK:
                    raise Refused(part.status)
            elif part.HasField("message"):
                received.append(_checked(part.message))
        return received

    async def ack(self, group: str, topic: str, received: Sequence[Received]) -> None:
        """Acknowledge all in one request. Raises Refused or grpc.aio.AioRpcError."""
        request = service.AckMessageRequest()
        request.group.name = group
        request.topic.name = topic
        for each in received:
            request.entries.add(message_id=each.message_id, receipt_handle=each.handle)
        answer = await self._stub.AckMessage(request, metadata=self._metadata, timeout=REQUEST_TIMEOUT_S)
        if answer.status.code != definition.OK:
            raise Refused(answer.status)


def _checked(message: definition.Message) -> Received:
    system = message.system_properties
    if system.body_digest.checksum != md5(message.body).hexdigest().upper():
        raise Damaged(f"message {system.message_id} does not match its digest")
    check_body(system.message_id, message.body)
    return Received(system.message_id, system.receipt_handle, system.delivery_attempt)
