"""Serve `apache.rocketmq.v2.Admin`: the calls that dashboards of RocketMQ make, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import grpc.aio

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server
from quarry_mq.server.admin.administration import Administration
from quarry_mq.server.admin.browsing.browser import MessageBrowser
from quarry_mq.server.admin_port.calls.edge import answers
from quarry_mq.server.admin_port.official.clients import ClientCalls, LiteReaders
from quarry_mq.server.admin_port.official.commands import CommandCalls
from quarry_mq.server.admin_port.official.edge import Context, Names, in_band
from quarry_mq.server.admin_port.official.lag import LagCalls
from quarry_mq.server.admin_port.official.queries import QueryCalls
from quarry_mq.server.admin_port.official.runtime import RuntimeCalls
from quarry_mq.server.admin_port.official.sends import SendCalls
from quarry_mq.server.admin_port.official.topics import TopicCalls
from quarry_mq.server.error_reporter import ErrorReporter
from quarry_mq.server.front import Front
from quarry_mq.server.lag.group_progress import GroupProgress
from quarry_mq.server.maintenance.maintenance import Maintenance
from quarry_mq.server.rpc.messaging import Messaging
from quarry_mq.server.settings.live_settings import LiveSettings
from quarry_mq.server.tasks.time_slice import Pacing
from quarry_mq.store.metadata.lite_subscriptions import LiteSubscriptionTable

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
        MessageBrowser(store.messages, store.expiry),
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
