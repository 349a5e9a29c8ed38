"""Serve `apache.rocketmq.v2.Admin`: the calls that dashboards of RocketMQ make, by name.

| calls about   | content                                                                                          |
|---------------|--------------------------------------------------------------------------------------------------|
| clients       | asked over their telemetry streams: for their threads' stacks, or to consume a message           |
| the broker    | its statistics, and its log level                                                                |
| topics        | their properties, their routes, and resets of groups' offsets                                    |
| messages      | an operator's message, sent in the same way as clients' sends                                    |
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.apache.rocketmq.v2.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server
from quarry_mq.protocol.times import TIME_MS_MAX, fill_ms, to_ms
from quarry_mq.server.admin.administration import Administration, BrokerFacts
from quarry_mq.server.admin.browsing import MessageBrowser
from quarry_mq.server.admin_port.calls.edge import answers, caller_peer
from quarry_mq.server.admin_port.official.clients import ClientCalls, LiteReaders
from quarry_mq.server.admin_port.official.edge import Context, Names, in_band
from quarry_mq.server.admin_port.official.lag import LagCalls
from quarry_mq.server.admin_port.official.queries import QueryCalls
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.cluster.membership import Members
from quarry_mq.server.counters import RecentRates
from quarry_mq.server.delivery.model import StoredSince
from quarry_mq.server.front import Front
from quarry_mq.server.front.contract import MessageHandler
from quarry_mq.server.front.local_call import LocalCall, call_locally
from quarry_mq.server.lag.group_progress import GroupProgress
from quarry_mq.server.maintenance.maintenance import Maintenance
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.remoting.wire import RoutedBroker, topic_route
from quarry_mq.server.rpc.access import join, read
from quarry_mq.server.rpc.messaging import Messaging
from quarry_mq.server.rpc.sessions import ClientCommands, Pushing
from quarry_mq.server.settings.live_settings import LiveSettings
from quarry_mq.server.tasks import Pacing
from quarry_mq.server.wire.message_types import ACCEPTED_TYPES
from quarry_mq.server.wire.messages import fill_message
from quarry_mq.server.wire.settings import ClientKind
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.errors import Invalid
from quarry_mq.store.metadata.lite import LiteSubscriptionTable

DESCRIPTION: Final = "description"
"""The attribute of a topic that is shown as its description."""


class TopicCalls:
    def __init__(self, administration: Administration, names: Names, members: Members | None, pacing: Pacing) -> None:
        """`members` are those of the cluster; None without one."""
        self._administration = administration
        self._names = names
        self._members = members
        self._pacing = pacing

    async def describe_topic_status(self, request: pb.DescribeTopicStatusRequest) -> pb.DescribeTopicStatusResponse:
        """Describe a topic. The protocol has no type for MIXED topics, and a topic's creation time is not stored."""
        topic = self._names.topic(request.topic)
        types = ACCEPTED_TYPES[topic.type]
        return pb.DescribeTopicStatusResponse(
            topic_message_type=types[0] if len(types) == 1 else definition.MESSAGE_TYPE_UNSPECIFIED,
            description=topic.attributes.get(DESCRIPTION),
            tags=topic.attributes,
        )

    async def get_topic_route(self, request: pb.GetTopicRouteRequest) -> pb.GetTopicRouteResponse:
        """Return a route as RocketMQ's name server writes it, in JSON. Only the request's topic matters."""
        topic = self._names.topic(request.topic)
        return pb.GetTopicRouteResponse(topic_route_data=topic_route(topic, self._brokers()).decode())

    async def reset_group_offset(self, request: pb.ResetGroupOffsetRequest) -> pb.ResetGroupOffsetResponse:
        """Move a group to the first message of each queue that was stored at a time or later."""
        group, topic = self._names.group(request.group), self._names.topic(request.topic)
        if not request.HasField("reset_timestamp"):
            raise Refused(definition.BAD_REQUEST, "reset_timestamp: must be given")
        time_ms = to_ms(request.reset_timestamp)
        if not 0 <= time_ms <= TIME_MS_MAX:
            raise Refused(definition.BAD_REQUEST, f"reset_timestamp: {time_ms} ms is before 1970 or after 9999")
        async with self._pacing.turn() as time_slice:
            await self._administration.reset_offset(group.name, topic.name, StoredSince(time_ms), time_slice)
        return pb.ResetGroupOffsetResponse()

    def _brokers(self) -> list[RoutedBroker]:
        """Return the brokers by name. A member's address is the one without TLS, if it has one."""
        facts, members = self._administration.facts, self._members
        if members is None:
            return [RoutedBroker(facts.name, facts.cluster, facts.advertised_address)]
        limit = members.limit_of(facts.name)
        brokers = [RoutedBroker(facts.name, facts.cluster, facts.advertised_address, limit)]
        for member in members.routed():
            address = member.address or member.tls_address or ""
            brokers.append(RoutedBroker(member.name, facts.cluster, address, members.limit_of(member.name)))
        return sorted(brokers, key=lambda broker: broker.name)


CLIENT_ID: Final = "admin-port"
ID_VERSION: Final = "01"
ID_BYTES: Final = 16

_SENDERS: Final = (
    "tag",
    "keys",
    "message_id",
    "body_encoding",
    "born_host",
    "delivery_timestamp",
    "message_group",
    "trace_context",
    "lite_topic",
    "priority",
)
"""The system properties that a sender may set; the broker sets all others."""


def random_id() -> str:
    """Make a message id, as long as those that clients make."""
    return ID_VERSION + secrets.token_hex(ID_BYTES).upper()


class SendCalls:
    def __init__(self, names: Names, send: MessageHandler, clock: Clock, new_id: Callable[[], str] = random_id) -> None:
        """`send` is the handler of SendMessage for callers that are already authorized."""
        self._names = names
        self._send = send
        self._clock = clock
        self._new_id = new_id

    async def admin_send_message(
        self, request: pb.AdminSendMessageRequest, context: Context
    ) -> pb.AdminSendMessageResponse:
        topic = self._names.topic(request.topic)
        message = self._message(request)
        message.topic.name = topic.name
        call = LocalCall(
            "AdminSendMessage",
            peer=caller_peer(context),
            headers={"x-mq-client-id": CLIENT_ID},
            remaining_s=context.time_remaining(),
        )
        body = service.SendMessageRequest(messages=[message]).SerializeToString()
        sent = service.SendMessageResponse.FromString(await call_locally(self._send, call, body))
        answer = pb.AdminSendMessageResponse(status=sent.status)
        if sent.status.code == definition.OK:
            answer.message_id = sent.entries[0].message_id
        return answer

    def _message(self, request: pb.AdminSendMessageRequest) -> definition.Message:
        """Build the message to send. Raises Refused."""
        given = request.system_properties
        if given.message_type == definition.TRANSACTION:
            reason = "system_properties: a transaction needs a connected producer that can be asked for its outcome"
            raise Refused(definition.BAD_REQUEST, reason)
        if LIGHT_QUEUES in request.user_properties:
            # a producer needs a right for each of them
            raise Refused(
                definition.ILLEGAL_MESSAGE_PROPERTY_KEY, f"user_properties: only producers may set {LIGHT_QUEUES}"
            )
        message = definition.Message(body=request.body, user_properties=request.user_properties)
        system = message.system_properties
        system.CopyFrom(given)
        for field, _ in given.ListFields():
            if field.name not in _SENDERS:
                system.ClearField(field.name)
        if request.HasField("tag"):
            system.tag = request.tag
        if request.HasField("key"):
            system.keys.append(request.key)
        system.message_id = system.message_id or self._new_id()
        fill_ms(system.born_timestamp, self._clock.wall_ms())
        return message


LOG_LEVEL: Final = "log.level"
UNKNOWN: Final = -1
"""The value of a count that is not known; 0 would say that there are none."""

LEVELS: Final[Mapping[int, str]] = {
    pb.ChangeLogLevelRequest.TRACE: "debug",
    pb.ChangeLogLevelRequest.DEBUG: "debug",
    pb.ChangeLogLevelRequest.INFO: "info",
    pb.ChangeLogLevelRequest.WARN: "warning",
    pb.ChangeLogLevelRequest.ERROR: "error",
}
"""Our log levels. Nothing less important than debug is logged here."""


class RuntimeCalls:
    def __init__(
        self,
        facts: BrokerFacts,
        clients: ClientRegistry,
        rates: RecentRates,
        connections: Callable[[], int | None],
        settings: LiveSettings,
    ) -> None:
        """`connections` returns the number of open connections, None if they are not counted."""
        self._facts = facts
        self._clients = clients
        self._rates = rates
        self._connections = connections
        self._settings = settings

    async def get_proxy_runtime_stats(
        self, _request: pb.GetProxyRuntimeStatsRequest
    ) -> pb.GetProxyRuntimeStatsResponse:
        rates, kinds, connections = self._rates.totals(), self._clients.kinds, self._connections()
        producers = kinds.get(ClientKind.PRODUCER, 0)
        return pb.GetProxyRuntimeStatsResponse(
            proxy_name=self._facts.name,
            version=self._facts.version,
            in_tps=rates.sent,
            out_tps=rates.received,
            connections=UNKNOWN if connections is None else connections,
            producers=producers,
            consumers=sum(kinds.values()) - producers,
        )

    def change_log_level(self, request: pb.ChangeLogLevelRequest) -> pb.ChangeLogLevelResponse:
        """Set the log level durably, as `quarry settings set` does it. Raises Invalid."""
        level = LEVELS.get(request.level)
        if level is None:
            raise Invalid(f"level: {request.level} is unknown")
        shown = self._settings.set(LOG_LEVEL, level)
        return pb.ChangeLogLevelResponse(remark=f"{LOG_LEVEL} is {shown.value} now")


TRACE_SIZE_MAX: Final = 1024 * 1024
MESSAGE_SIZE_MAX: Final = 1024
"""Characters of a client's status message."""

ANSWERING_RESERVE_S: Final = 0.5
"""Seconds of the caller's time that remain when the client's time is over, so that the caller gets the answer."""


class CommandCalls:
    def __init__(
        self, names: Names, clients: ClientCalls, queries: QueryCalls, commands: ClientCommands, pushing: Pushing
    ) -> None:
        self._names = names
        self._clients = clients
        self._queries = queries
        self._commands = commands
        self._pushing = pushing

    async def print_thread_stack_trace(
        self, request: pb.PrintThreadStackTraceRequest, context: Context
    ) -> pb.PrintThreadStackTraceResponse:
        group = self._names.group(request.group, is_connected=True).name
        self._clients.consumer(request.client_id, group)

        def command(nonce: str) -> service.TelemetryCommand:
            asked = service.PrintThreadStackTraceCommand(nonce=nonce)
            return service.TelemetryCommand(print_thread_stack_trace_command=asked)

        said = await self._commands.ask(self._pushing, request.client_id, (), command, _patience_s(context))
        answer = pb.PrintThreadStackTraceResponse()
        _fill_status(answer.status, said)
        if said.thread_stack_trace.HasField("thread_stack_trace"):
            trace = said.thread_stack_trace.thread_stack_trace
            answer.thread_stack_trace = trace[:TRACE_SIZE_MAX]
            if len(trace) > TRACE_SIZE_MAX:
                answer.status.message = f"the first {TRACE_SIZE_MAX} of {len(trace)} characters"
        return answer

    async def verify_message(self, request: pb.VerifyMessageRequest, context: Context) -> pb.VerifyMessageResponse:
        """Let the client consume the message as it was stored, once more, and return its result."""
        group = self._names.group(request.group, is_connected=True).name
        client = self._clients.consumer(request.client_id, group)
        topic = self._names.topic(request.topic)
        if topic.name not in client.settings.topics:
            raise Refused(definition.BAD_REQUEST, f"topic: the client is not subscribed to {topic.name}")
        if not request.message_id:
            raise Refused(definition.ILLEGAL_MESSAGE_ID, "message_id: must be given")
        stored = await self._queries.with_id(topic, request.message_id)
        if stored is None:
            raise Refused(definition.MESSAGE_NOT_FOUND, f"message_id: topic {topic.name} has no such message")

        def command(nonce: str) -> service.TelemetryCommand:
            asked = service.VerifyMessageCommand(nonce=nonce)
            fill_message(asked.message, stored, topic=topic.name, receipt_handle="", delivery_attempt=1)
            return service.TelemetryCommand(verify_message_command=asked)

        needs = [join(group), read(topic.name, group)]
        said = await self._commands.ask(self._pushing, request.client_id, needs, command, _patience_s(context))
        answer = pb.VerifyMessageResponse()
        _fill_status(answer.status, said)
        return answer


def _patience_s(context: Context) -> float | None:
    remaining_s: Any = context.time_remaining()  # None without a deadline, whatever its type says
    return None if remaining_s is None else max(0.0, remaining_s - ANSWERING_RESERVE_S)


def _fill_status(status: definition.Status, said: service.TelemetryCommand) -> None:
    """Copy the client's status; a client without a status has succeeded."""
    status.code = said.status.code if said.HasField("status") else definition.OK
    status.message = said.status.message[:MESSAGE_SIZE_MAX] or "OK"


NAME: Final = pb.DESCRIPTOR.services_by_name["Admin"].full_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Calls:
    """The objects that answer the calls, by subject."""

    clients: ClientCalls
    commands: CommandCalls
    lag: LagCalls
    queries: QueryCalls
    runtime: RuntimeCalls
    sends: SendCalls
    topics: TopicCalls


class OfficialAdminService(AdminServicer):
    """Passes each call to the object that answers it."""

    def __init__(self, calls: Calls, error_reporter: ErrorReporter) -> None:
        self._calls = calls
        self.error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_AdminServicer_to_server(self, server)
        return NAME

    @answers
    def ChangeLogLevel(self, request: pb.ChangeLogLevelRequest) -> pb.ChangeLogLevelResponse:
        """Change the log level. Only this answer has no status: errors become a gRPC code."""
        return self._calls.runtime.change_log_level(request)

    @in_band(pb.ListSubscriptionResponse)
    async def ListSubscription(
        self, request: pb.ListSubscriptionRequest, _context: Context
    ) -> pb.ListSubscriptionResponse:
        return await self._calls.clients.list_subscription(request)

    @in_band(pb.DescribeSubscriptionResponse)
    async def DescribeSubscription(
        self, request: pb.DescribeSubscriptionRequest, _context: Context
    ) -> pb.DescribeSubscriptionResponse:
        return await self._calls.clients.describe_subscription(request)

    @in_band(pb.DeleteSubscriptionResponse)
    async def DeleteSubscription(
        self, request: pb.DeleteSubscriptionRequest, _context: Context
    ) -> pb.DeleteSubscriptionResponse:
        return await self._calls.clients.delete_subscription(request)

    @in_band(pb.DescribeGroupAccumulationResponse)
    async def DescribeGroupAccumulation(
        self, request: pb.DescribeGroupAccumulationRequest, _context: Context
    ) -> pb.DescribeGroupAccumulationResponse:
        return await self._calls.lag.describe_group_accumulation(request)

    @in_band(pb.ListConsumerConnectionResponse)
    async def ListConsumerConnection(
        self, request: pb.ListConsumerConnectionRequest, _context: Context
    ) -> pb.ListConsumerConnectionResponse:
        return await self._calls.clients.list_consumer_connection(request)

    @in_band(pb.GetConsumerRunningInfoResponse)
    async def GetConsumerRunningInfo(
        self, request: pb.GetConsumerRunningInfoRequest, _context: Context
    ) -> pb.GetConsumerRunningInfoResponse:
        return await self._calls.clients.get_consumer_running_info(request)

    @in_band(pb.QueryTimeSpanResponse)
    async def QueryTimeSpan(self, request: pb.QueryTimeSpanRequest, _context: Context) -> pb.QueryTimeSpanResponse:
        return await self._calls.lag.query_time_span(request)

    @in_band(pb.GetProxyRuntimeStatsResponse)
    async def GetProxyRuntimeStats(
        self, request: pb.GetProxyRuntimeStatsRequest, _context: Context
    ) -> pb.GetProxyRuntimeStatsResponse:
        return await self._calls.runtime.get_proxy_runtime_stats(request)

    @in_band(pb.DescribeTopicStatusResponse)
    async def DescribeTopicStatus(
        self, request: pb.DescribeTopicStatusRequest, _context: Context
    ) -> pb.DescribeTopicStatusResponse:
        return await self._calls.topics.describe_topic_status(request)

    @in_band(pb.GetTopicRouteResponse)
    async def GetTopicRoute(self, request: pb.GetTopicRouteRequest, _context: Context) -> pb.GetTopicRouteResponse:
        return await self._calls.topics.get_topic_route(request)

    @in_band(pb.ResetGroupOffsetResponse)
    async def ResetGroupOffset(
        self, request: pb.ResetGroupOffsetRequest, _context: Context
    ) -> pb.ResetGroupOffsetResponse:
        return await self._calls.topics.reset_group_offset(request)

    @in_band(pb.ListMessageResponse)
    async def QueryMessage(self, request: pb.ListMessageRequest, _context: Context) -> pb.ListMessageResponse:
        return await self._calls.queries.query_message(request)

    @in_band(pb.AdminSendMessageResponse)
    async def AdminSendMessage(
        self, request: pb.AdminSendMessageRequest, context: Context
    ) -> pb.AdminSendMessageResponse:
        return await self._calls.sends.admin_send_message(request, context)

    @in_band(pb.PrintThreadStackTraceResponse)
    async def PrintThreadStackTrace(
        self, request: pb.PrintThreadStackTraceRequest, context: Context
    ) -> pb.PrintThreadStackTraceResponse:
        return await self._calls.commands.print_thread_stack_trace(request, context)

    @in_band(pb.VerifyMessageResponse)
    async def VerifyMessage(self, request: pb.VerifyMessageRequest, context: Context) -> pb.VerifyMessageResponse:
        return await self._calls.commands.verify_message(request, context)


def official_admin(
    messaging: Messaging, administration: Administration, settings: LiveSettings, maintenance: Maintenance, front: Front
) -> OfficialAdminService:
    its, facts = messaging.components, administration.facts
    store, clock = its.store, its.clock
    names, pacing = Names(store.topics, store.groups), Pacing(clock)
    progress = GroupProgress(store, its.delivery, its.delivery.writer, clock)
    clients = ClientCalls(
        its.edge.clients,
        names,
        store.offsets,
        progress,
        pacing,
        lite_readers=LiteReaders(LiteSubscriptionTable(store.state_engine), its.delivery.writer),
        delete=its.delivery.delete_subscription,
    )
    queries = QueryCalls(
        names,
        maintenance.key_index,
        MessageBrowser(store.messages, store.expiry, its.edge.error_reporter.report),
        pacing,
        broker_name=facts.name,
        clock=clock,
    )
    runtime = RuntimeCalls(
        facts,
        its.edge.clients,
        messaging.rates,
        lambda: None if (stats := front.stats) is None else stats.connections_open,
        settings,
    )
    calls = Calls(
        clients=clients,
        commands=CommandCalls(names, clients, queries, messaging.commands, messaging.telemetry),
        lag=LagCalls(names, progress, pacing, broker_name=facts.name, clock=clock),
        queries=queries,
        runtime=runtime,
        sends=SendCalls(names, messaging.operators_send, clock),
        topics=TopicCalls(administration, names, None if its.cluster is None else its.cluster.members, pacing),
    )
    return OfficialAdminService(calls, its.edge.error_reporter)
