"""A gRPC client that sends what it is told and hides nothing of the answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import grpc

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub

REQUEST_TIMEOUT_S: Final = 60.0
_number = itertools.count(1)

Metadata = Sequence[tuple[str, str]]


def resource(name: str) -> definition.Resource:
    return definition.Resource(name=name)


def message(topic: str, body: bytes = b"body", **system: Any) -> definition.Message:
    """A message as clients send it; `system` are fields of its system properties."""
    made = definition.Message(topic=resource(topic), body=body)
    properties = made.system_properties
    properties.message_id = system.pop("message_id", f"01{next(_number):032X}")
    properties.message_type = system.pop("message_type", definition.NORMAL)
    properties.body_encoding = system.pop("body_encoding", definition.IDENTITY)
    properties.born_timestamp.GetCurrentTime()
    keys = system.pop("keys", ())
    properties.keys.extend(keys)
    for name, value in system.items():
        if isinstance(value, (str, int)):
            setattr(properties, name, value)
        else:
            getattr(properties, name).CopyFrom(value)
    return made


def producer_settings(*topics: str) -> definition.Settings:
    settings = definition.Settings(client_type=definition.PRODUCER)
    settings.publishing.topics.extend(resource(topic) for topic in topics)
    return settings


def consumer_settings(
    group: str, *topics: str, kind: definition.ClientType = definition.SIMPLE_CONSUMER
) -> definition.Settings:
    settings = definition.Settings(client_type=kind)
    settings.subscription.group.name = group
    for topic in topics:
        settings.subscription.subscriptions.add(topic=resource(topic))
    return settings


@dataclass(frozen=True)
class Received:
    """One receive: the kinds of its stream's items in order, and what they held."""

    kinds: list[str]
    status: definition.Status
    messages: list[definition.Message]
    seconds: float

    @property
    def code(self) -> int:
        return self.status.code

    @property
    def ids(self) -> list[str]:
        return [each.system_properties.message_id for each in self.messages]

    @property
    def handles(self) -> list[str]:
        return [each.system_properties.receipt_handle for each in self.messages]


class Client:
    """One client with a connection of its own. `client_id` None sends no such header."""

    def __init__(
        self, endpoint: str, client_id: str | None = "", *, version: str = "5.1.2", headers: Metadata = ()
    ) -> None:
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            ("grpc.max_receive_message_length", -1),
            (
                "grpc.http2.bdp_probe",
                0,
            ),  # what a client takes ahead of its reader must not depend on the machine's speed
        ]
        self._channel: Any = grpc.aio.insecure_channel(endpoint, options=options)
        self.stub: Any = MessagingServiceStub(self._channel)
        self.metadata: list[tuple[str, str]] = [("x-mq-language", "PYTHON"), ("x-mq-client-version", version)]
        self.metadata.extend(headers)
        if client_id is not None:
            self.metadata.append(("x-mq-client-id", client_id or f"client@{next(_number)}"))
        self._said: asyncio.Queue[service.TelemetryCommand | None] = asyncio.Queue()
        self._telemetry: Any = None
        self._reading: asyncio.Future[Any] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.vanish()

    async def vanish(self) -> None:
        """Be gone without a word: the connection closes under everything."""
        if self._telemetry is not None:
            self._telemetry.cancel()
        await self._channel.close()

    async def call(self, method: str, request: Any, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """A unary call; the whole answer. Raises grpc.aio.AioRpcError, which no call may end with."""
        return await getattr(self.stub, method)(request, metadata=self.metadata, timeout=timeout_s)

    # telemetry

    async def declare(self, settings: definition.Settings) -> service.TelemetryCommand:
        """Send settings on the telemetry stream, opened if need be, and read the answer."""
        if self._telemetry is None:
            self._telemetry = self.stub.Telemetry(self._words(), metadata=self.metadata)
        self._said.put_nowait(service.TelemetryCommand(settings=settings))
        return await self.told()

    async def told(self) -> service.TelemetryCommand:
        """The next command of the broker."""
        return await self.told_within(REQUEST_TIMEOUT_S)

    async def told_within(self, seconds: float) -> service.TelemetryCommand:
        """The next command of the broker. Raises TimeoutError when there is none; it is not lost then."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._telemetry.read())
        command = await asyncio.wait_for(asyncio.shield(self._reading), seconds)
        self._reading = None
        assert isinstance(command, service.TelemetryCommand), "the stream has ended"
        return command

    async def refused(self, settings: definition.Settings) -> grpc.StatusCode:
        """Send settings that the broker ends the stream over; the status it ends with."""
        self._telemetry = self.stub.Telemetry(self._words(), metadata=self.metadata)
        self._said.put_nowait(service.TelemetryCommand(settings=settings))
        code: grpc.StatusCode = await asyncio.wait_for(self._telemetry.code(), REQUEST_TIMEOUT_S)
        return code

    async def ended(self) -> grpc.StatusCode:
        """The status that the broker ends the stream with, next and without another word."""
        assert await asyncio.wait_for(self._telemetry.read(), REQUEST_TIMEOUT_S) is grpc.aio.EOF
        code: grpc.StatusCode = await self._telemetry.code()
        return code

    async def hang_up(self) -> grpc.StatusCode:
        """Close our side of the telemetry stream; the status it ends with."""
        self._said.put_nowait(None)
        code = await self.ended()
        self._telemetry, self._said = None, asyncio.Queue()
        return code

    async def _words(self) -> AsyncIterator[service.TelemetryCommand]:
        said = self._said
        while (command := await said.get()) is not None:
            yield command

    async def raw(self, method: str, body: bytes) -> list[bytes]:
        """The answer's messages, as bytes, to a request that need not be one."""
        path = f"/{service.DESCRIPTOR.services_by_name['MessagingService'].full_name}/{method}"
        call = self._channel.unary_stream(path)(body, metadata=self.metadata, timeout=REQUEST_TIMEOUT_S)
        return [item async for item in call]

    # messages

    async def send(self, *messages: definition.Message) -> service.SendMessageResponse:
        answer: service.SendMessageResponse = await self.call(
            "SendMessage", service.SendMessageRequest(messages=messages)
        )
        return answer

    async def sent(self, *messages: definition.Message) -> list[str]:
        """Send, and have it succeed; the ids."""
        answer = await self.send(*messages)
        assert answer.status.code == definition.OK, answer.status
        return [entry.message_id for entry in answer.entries]

    def start_receive(
        self,
        group: str,
        topic: str,
        *,
        polling_s: float | None = 0.0,
        invisible_s: float | None = 30.0,
        count: int = 32,
        tags: str | None = "*",
        filter_type: definition.FilterType = definition.TAG,
        attempt_id: str | None = None,
        deadline_s: float = REQUEST_TIMEOUT_S,
    ) -> Any:
        """The running call. `invisible_s` None asks the broker to renew; `tags` None sends no filter."""
        request = service.ReceiveMessageRequest(batch_size=count, auto_renew=invisible_s is None)
        request.group.name = group
        request.message_queue.topic.name = topic
        request.message_queue.id = -1
        if attempt_id is not None:
            request.attempt_id = attempt_id
        if tags is not None:
            request.filter_expression.type = filter_type
            request.filter_expression.expression = tags
        if invisible_s is not None:
            request.invisible_duration.FromMilliseconds(int(invisible_s * 1000))
        if polling_s is not None:
            request.long_polling_timeout.FromMilliseconds(int(polling_s * 1000))
        return self.stub.ReceiveMessage(request, metadata=self.metadata, timeout=deadline_s)

    async def receive(self, group: str, topic: str, **terms: Any) -> Received:
        """A receive to its end, which must be gRPC's OK."""
        return await read_all(self.start_receive(group, topic, **terms))

    async def ack(self, group: str, topic: str, *handles: str) -> service.AckMessageResponse:
        request = service.AckMessageRequest(group=resource(group), topic=resource(topic))
        for handle in handles:
            request.entries.add(message_id=f"id of {handle}", receipt_handle=handle)
        answer: service.AckMessageResponse = await self.call("AckMessage", request)
        return answer

    async def change(
        self, group: str, topic: str, handle: str, invisible_s: float
    ) -> service.ChangeInvisibleDurationResponse:
        request = service.ChangeInvisibleDurationRequest(
            group=resource(group), topic=resource(topic), receipt_handle=handle, message_id="any"
        )
        request.invisible_duration.FromMilliseconds(int(invisible_s * 1000))
        answer: service.ChangeInvisibleDurationResponse = await self.call("ChangeInvisibleDuration", request)
        return answer


async def read_all(call: Any) -> Received:
    """Everything a receive says."""
    started = asyncio.get_running_loop().time()
    kinds: list[str] = []
    status = definition.Status()
    messages: list[definition.Message] = []
    async for item in call:
        kind = item.WhichOneof("content")
        kinds.append(kind)
        if kind == "status":
            status = item.status
        elif kind == "message":
            messages.append(item.message)
    assert await call.code() is grpc.StatusCode.OK
    return Received(kinds, status, messages, asyncio.get_running_loop().time() - started)
