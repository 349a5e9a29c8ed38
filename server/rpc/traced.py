"""Records calls as spans: sends, receives and acknowledgements, as parts of the traces that clients name.

A client names its trace in the header `traceparent`, as instrumented gRPC libraries do, or in a message's
`trace_context`, as some clients of RocketMQ do. Attributes follow OpenTelemetry's conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.front import Call, Method, Methods
from quarry_mq.server.observability.tracing import TRACEPARENT, CallSpan, Tracing
from quarry_mq.server.wire.parsing import request_of
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.native import Native

SUCCESSES: Final = frozenset({definition.OK, definition.MESSAGE_NOT_FOUND})
"""Statuses that mean success."""

Describe = Callable[[CallSpan, bytes], None]
DescribeRequest = Callable[[CallSpan, Any], None]


def traced(methods: Methods, tracing: Tracing, native: Native | None = None) -> Methods:
    """Return the same methods; those that carry messages begin a span for each call that is sampled.

    `native` counts fields of large requests.
    """
    return {path: _traced(path.rpartition("/")[2], method, tracing, native) for path, method in methods.items()}


def _traced(name: str, method: Method, tracing: Tracing, native: Native | None) -> Method:
    if name not in _REQUESTS:
        return method
    request_type, describe, describe_answer = _REQUESTS[name]
    serve = method.handler

    def parsed(body: bytes) -> Message | None:
        """Parse the request; None for an invalid one, which its handler will refuse."""
        try:
            return request_of(request_type, body, native=native)
        except (DecodeError, Refused):
            return None

    def handler(call: Call, body: bytes) -> None:
        if method.admit is not None:  # before a request of an unauthenticated caller is parsed
            method.admit(call)
            if call.closed:
                return
        request, parent = None, call.header(TRACEPARENT)
        if not parent and request_type is service.SendMessageRequest:
            request = parsed(body)
            parent = _context_of_first(request)
        span = tracing.begin(name, parent)
        if span is None:
            serve(call, body)
            return
        span.set(messaging_system="rocketmq", rpc_method=name)
        request = request or parsed(body)
        if request is None:
            span.fail("cannot be parsed")
        else:
            describe(span, request)
        traced_call = _TracedCall(call, span, describe_answer)
        call.on_close(span.end)
        serve(traced_call, body)

    return replace(method, handler=handler)


class _TracedCall:
    """The call, as handlers see it; its end is the end of the span."""

    def __init__(self, call: Call, span: CallSpan, describe_answer: Describe) -> None:
        self._call = call
        self._span = span
        self._describe_answer = describe_answer

    @property
    def path(self) -> str:
        return self._call.path

    @property
    def peer(self) -> str:
        return self._call.peer

    @property
    def closed(self) -> bool:
        return self._call.closed

    @property
    def has_begun(self) -> bool:
        return self._call.has_begun

    @property
    def is_secure(self) -> bool:
        return self._call.is_secure

    @property
    def peer_certificate(self) -> bytes | None:
        return self._call.peer_certificate

    def header(self, name: str) -> str | None:
        return self._call.header(name)

    def metadata(self) -> Mapping[str, str]:
        return self._call.metadata()

    def remaining_s(self) -> float | None:
        return self._call.remaining_s()

    def reply(self, body: bytes) -> None:
        _attempt(self._describe_answer, self._span, body)
        self._call.reply(body)
        self._span.end()

    def send(self, body: bytes) -> bool:
        _attempt(self._describe_answer, self._span, body)
        return self._call.send(body)

    def send_all(self, bodies: Sequence[bytes]) -> bool:
        for body in bodies:
            _attempt(self._describe_answer, self._span, body)
        return self._call.send_all(bodies)

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        if status is not GrpcStatus.OK:
            self._span.fail(status.name)
        self._call.finish(status, message)
        self._span.end()

    def on_close(self, callback: Callable[[], None]) -> None:
        self._call.on_close(callback)

    def on_drain(self, callback: Callable[[], None]) -> None:
        self._call.on_drain(callback)


def _attempt(describe: Describe, span: CallSpan, answer: bytes) -> None:
    """Describe an answer in the span; an answer that cannot be parsed must not make the call fail."""
    try:
        describe(span, answer)
    except DecodeError:
        span.fail("cannot be parsed")


def _context_of_first(request: Any) -> str | None:
    """Return the trace that the first message of a send names."""
    if request is None or not request.messages:
        return None
    return request.messages[0].system_properties.trace_context or None


def _describe_send(span: CallSpan, request: service.SendMessageRequest) -> None:
    span.set(messaging_operation_type="send", messaging_batch_message__count=len(request.messages))
    for message in request.messages[:1]:
        span.set(
            messaging_destination_name=message.topic.name,
            messaging_message_id=message.system_properties.message_id,
        )


def _describe_receive(span: CallSpan, request: service.ReceiveMessageRequest) -> None:
    span.set(
        messaging_operation_type="receive",
        messaging_destination_name=request.message_queue.topic.name,
        messaging_consumer_group_name=request.group.name,
    )


def _describe_ack(span: CallSpan, request: service.AckMessageRequest) -> None:
    span.set(
        messaging_operation_type="settle",
        messaging_destination_name=request.topic.name,
        messaging_consumer_group_name=request.group.name,
        messaging_batch_message__count=len(request.entries),
    )


def _describe_sent(span: CallSpan, body: bytes) -> None:
    _note(span, service.SendMessageResponse.FromString(body).status)


def _describe_acknowledged(span: CallSpan, body: bytes) -> None:
    _note(span, service.AckMessageResponse.FromString(body).status)


def _describe_item(span: CallSpan, body: bytes) -> None:
    """Describe an item of a receive: its status, or a message, whose own trace is linked."""
    item = service.ReceiveMessageResponse.FromString(body)
    if item.HasField("status"):
        _note(span, item.status)
    elif item.HasField("message"):
        context = item.message.system_properties.trace_context
        if context:
            span.link(context)


def _note(span: CallSpan, status: definition.Status) -> None:
    name = definition.Code.Name(status.code)
    span.set(rpc_response_status__code=name)
    if status.code not in SUCCESSES:
        span.fail(name)


_REQUESTS: Final[Mapping[str, tuple[type[Message], DescribeRequest, Describe]]] = {
    "SendMessage": (service.SendMessageRequest, _describe_send, _describe_sent),
    "ReceiveMessage": (service.ReceiveMessageRequest, _describe_receive, _describe_item),
    "AckMessage": (service.AckMessageRequest, _describe_ack, _describe_acknowledged),
}
