"""Builds the messaging service of one broker: its calls, and the components that serve them.

EndTransaction and RecallMessage, which end the wait of pending messages, are served here.

Sends, receives and acknowledgements are recorded as spans, as parts of the traces that clients name. A client names its
trace in the header `traceparent`, as instrumented gRPC libraries do, or in a message's `trace_context`, as some clients
of RocketMQ do. Attributes follow OpenTelemetry's conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog
from google.protobuf.message import DecodeError, Message

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.limits import WireLimits
from quarry_mq.protocol.names import is_blank
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.append.copies import Copies
from quarry_mq.server.cluster.cluster import Cluster
from quarry_mq.server.counters import RecentRates, Traffic
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.delivery.pulls import Pulls
from quarry_mq.server.front import Call, Method, Methods
from quarry_mq.server.front.contract import MessageHandler
from quarry_mq.server.lite.subscriptions import make_lite_subscriptions
from quarry_mq.server.metadata import Directory
from quarry_mq.server.observability.tracing import TRACEPARENT, CallSpan, Tracing
from quarry_mq.server.pending import DelayedDelivery, Transactions
from quarry_mq.server.rpc.context import Edge
from quarry_mq.server.rpc.lite import LiteService
from quarry_mq.server.rpc.pulls import OffsetService, PullService
from quarry_mq.server.rpc.receives import MessageService
from quarry_mq.server.rpc.routes import RouteService
from quarry_mq.server.rpc.sends import FastSends, SendService, SendStore
from quarry_mq.server.rpc.sessions import ClientCommands, Revocation, SessionService, TelemetryService
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.wire.message_types import ACCEPTED_TYPES, type_fault
from quarry_mq.server.wire.parsing import request_of
from quarry_mq.server.wire.settings import LITE_CONSUMERS, ClientSettings
from quarry_mq.server.wire.status import Refused, fill_ok
from quarry_mq.server.wire.validate import check_topic
from quarry_mq.store.errors import GroupNotFound
from quarry_mq.store.native import NATIVE, WHY_NOT, Native
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.pending import Resolution

log = structlog.get_logger(__name__)

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


_RESOLUTIONS: Final = {
    definition.COMMIT: Resolution.COMMITTED,
    definition.ROLLBACK: Resolution.ROLLED_BACK,
}


class PendingMessageService:
    def __init__(
        self,
        edge: Edge,
        *,
        directory: Directory,
        delays: DelayedDelivery,
        transactions: Transactions,
        traffic: Traffic,
    ) -> None:
        self._edge = edge
        self._directory = directory
        self._delays = delays
        self._transactions = transactions
        self._traffic = traffic

    def methods(self) -> dict[str, Method]:
        unary = self._edge.unary
        return {
            "EndTransaction": unary(
                service.EndTransactionRequest, service.EndTransactionResponse, self._end_transaction
            ),
            "RecallMessage": unary(service.RecallMessageRequest, service.RecallMessageResponse, self._recall),
        }

    def _end_transaction(
        self, call: Call, _client_id: str, request: service.EndTransactionRequest
    ) -> service.EndTransactionResponse | None:
        """End a transaction.

        The source of the request is ignored: the producer itself, or its answer to a check; some clients leave it out.
        """
        check_topic(request.topic.name)
        if is_blank(request.transaction_id):
            raise Refused(definition.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        resolution = _RESOLUTIONS.get(request.resolution)
        if resolution is None:
            answer = service.EndTransactionResponse()
            fill_ok(answer.status)
            return answer
        answered = self._edge.later(call, service.EndTransactionResponse())

        def ended(error: Exception | None) -> None:
            if error is None:
                self._traffic.ended(request.topic.name, is_commit=resolution is Resolution.COMMITTED)
            answered(error)

        self._transactions.end(request.topic.name, request.message_id, request.transaction_id, resolution, ended)
        return None

    def _recall(self, call: Call, _client_id: str, request: service.RecallMessageRequest) -> None:
        """Recall a scheduled message: it will not be delivered once the call is answered with OK."""
        check_topic(request.topic.name)
        topic = self._directory.topic(request.topic.name)
        if definition.DELAY not in ACCEPTED_TYPES[topic.type]:
            raise Refused(
                definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"{type_fault(topic, 'DELAY')}: topic {topic.name} is of type {topic.type.value} and has no delayed "
                "messages",
            )
        answer = service.RecallMessageResponse()
        recalled = self._edge.later(call, answer)
        answer.message_id = self._delays.recall(topic.name, request.recall_handle, recalled)


_SERVICE: Final = service.DESCRIPTOR.services_by_name["MessagingService"]
METHOD_NAMES: Final = frozenset(_SERVICE.methods_by_name)


SMALL_REQUEST_SIZE: Final = 64 * 1024
"""Bytes that suffice for requests that name topics, groups, messages and a filter of 4,096 characters."""

REQUEST_SIZES: Final[Mapping[str, int | None]] = {
    "SendMessage": None,
    "AckMessage": 2 * 1024 * 1024,
    "Telemetry": 4 * 1024 * 1024,
    "SyncLiteSubscription": 4 * 1024 * 1024,
}
"""Bytes of the requests that may be larger; None: as many as the front takes.

An acknowledgement has 4,096 entries of 512 bytes, settings have 4,096 topics with their filters, and a client's answer
has all of its threads. Lite topics have 64 bytes each, and a group's quota limits their number.
"""


def messaging_methods(*parts: Mapping[str, Method]) -> Methods:
    """Join the services' methods (by short name) into those of the whole service (by full path).

    Raises ValueError unless the parts hold every method of the protocol exactly once, streaming as the protocol says.
    """
    names = [name for part in parts for name in part]
    twice = {name for name in names if names.count(name) > 1}
    if twice or set(names) != METHOD_NAMES:
        raise ValueError(
            f"methods served twice: {sorted(twice)}, not at all: {sorted(METHOD_NAMES - set(names))}, "
            f"unknown: {sorted(set(names) - METHOD_NAMES)}"
        )
    methods = {name: method for part in parts for name, method in part.items()}
    for name, method in methods.items():
        descriptor = _SERVICE.methods_by_name[name]
        if (method.streaming_in, method.streaming_out) != (descriptor.client_streaming, descriptor.server_streaming):
            raise ValueError(f"{name} does not stream as the protocol says")
    return {
        f"/{_SERVICE.full_name}/{name}": replace(method, size_max=REQUEST_SIZES.get(name, SMALL_REQUEST_SIZE))
        for name, method in methods.items()
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Components:
    """The parts of a broker that calls reach: what all of them share, and those of sends and receives."""

    store: OpenStore
    edge: Edge
    sends: SendStore
    copies: Copies
    """Sends the broker's own copies of messages."""
    delivery: Delivery
    pulls: Pulls
    cluster: Cluster | None
    clock: Clock


class Messaging:
    """Serve all calls of the protocol."""

    def __init__(self, components: Components, settings: BrokerSettings, tracing: Tracing | None) -> None:
        self.components: Final = components
        self._tracing = tracing
        self._edge, cluster = components.edge, components.cluster
        clients, sends = self._edge.clients, components.sends
        self.rates = RecentRates(sends.metrics.traffic, components.clock)
        limits = settings.for_wire()
        self._directory = Directory(components.store.topics, components.store.groups, settings)
        self.commands = ClientCommands()
        self.telemetry = TelemetryService(
            self._edge,
            clients,
            self._directory,
            limits,
            subscribed=self._start_groups,
            command_answered=self.commands.answered,
        )
        self.lite_subscriptions: Final = make_lite_subscriptions(
            components.store,
            components.delivery,
            clients,
            taken_away=self.telemetry.push_taken_away,
            clock=components.clock,
        )
        grouped = None if cluster is None else cluster.sends
        self.sending = SendService(self._edge, self._directory, sends, limits, grouped)
        if (native := self._edge.native) is not None:
            components.store.messages.use(native)
            components.store.queues.use(native)
        self._fast = FastSends(self._edge, ordinary=self.sending, directory=self._directory, sends=sends, limits=limits)
        # for operators, whom the admin port has authenticated
        edge = Edge(clients, self._edge.error_reporter, limits_met=self._edge.limits_met)
        self._operators_sending = SendService(edge, self._directory, sends, limits, grouped)
        self._messages = MessageService(
            self._edge,
            directory=self._directory,
            clients=clients,
            delivery=components.delivery,
            limits=limits,
            clock=components.clock,
            metrics=sends.metrics,
        )
        self._pulling = self._make_pulling(limits)
        self.lite = LiteService(
            self._edge,
            directory=self._directory,
            subscriptions=self.lite_subscriptions,
            limits=limits,
            spreading=None if cluster is None else cluster.lite,
        )
        self._revocation = self._make_revocation()

    def _make_pulling(self, limits: WireLimits) -> PullService:
        its = self.components
        return PullService(
            self._edge,
            directory=self._directory,
            store=its.store.messages,
            pulls=its.pulls,
            delivery=its.delivery,
            limits=limits,
        )

    def _make_revocation(self) -> Revocation | None:
        gate, its = self._edge.gate, self.components
        if gate is None:
            return None
        ends = [its.delivery.end_waiting, its.pulls.end_waiting]
        return Revocation(gate, self.telemetry, self._edge.clients, end_waiting=ends)

    def sweep(self) -> None:
        """Sample the rates, and end calls of users that lost their rights; to be called every few seconds."""
        self.rates.sample()
        if self._revocation is not None:
            self._revocation.sweep()

    def configure(self, settings: BrokerSettings) -> None:
        """Apply changed settings from now on."""
        self._directory.configure(settings)
        self._edge.configure(settings.limits)
        self.components.sends.configure(settings.limits)
        configured = (self.telemetry, self.sending, self._operators_sending, self._messages, self._pulling, self.lite)
        limits = settings.for_wire()
        for each in configured:
            each.configure(limits)
        self._fast.configure(limits)

    @property
    def operators_send(self) -> MessageHandler:
        """SendMessage for operators, whom the admin port has let in already."""
        return self._operators_sending.method().handler

    @property
    def operators_resend(self) -> MessageHandler:
        """SendMessage for operators who send messages again that were stored before."""
        return self._operators_sending.resending()

    def methods(self) -> Methods:
        """Return all calls, for a front to serve."""
        edge, directory, its = self._edge, self._directory, self.components
        members = None if its.cluster is None else its.cluster.members
        methods = messaging_methods(
            {"SendMessage": self._fast.method()},
            self._messages.methods(),
            self.telemetry.methods(),
            RouteService(edge, edge.clients, directory, its.sends.identity, members).methods(),
            SessionService(edge, edge.clients).methods(),
            OffsetService(edge, directory, its.store.messages).methods(),
            PendingMessageService(
                edge,
                directory=directory,
                delays=its.sends.delays,
                transactions=its.sends.transactions,
                traffic=its.sends.metrics.traffic,
            ).methods(),
            self._pulling.methods(),
            self.lite.methods(),
        )
        return methods if self._tracing is None else traced(methods, self._tracing, edge.native)

    def _start_groups(self, group: str, settings: ClientSettings) -> None:
        """Fix the offsets where a consumer's group starts, before a message is sent to it.

        The group is created by that, and counted: its starts are stored. For lite topics the consumer itself says where
        its group starts. Raises OverLimit.
        """
        if settings.kind in LITE_CONSUMERS:
            return
        found = [topic for name in settings.topics if (topic := self.components.store.topics.get(name)) is not None]
        try:
            if found:
                self._directory.group_to_receive(group, self._edge.user)
        except GroupNotFound:
            return  # the group may not be created, so it will not receive
        for topic in found:
            queues = range(topic.queue_count)
            self.components.delivery.start_group(group, topic.name, queues)


def native_part(settings: BrokerSettings) -> Native | None:
    """Return the native part if it is installed and the settings do not turn it off."""
    if settings.broker.native and NATIVE is None:
        log.info("no native part: all is done in Python", reason=WHY_NOT)
    return NATIVE if settings.broker.native else None
