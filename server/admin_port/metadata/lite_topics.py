"""Serve `quarry.admin.v1.LiteTopicService` on the admin port: the lite topics of a topic."""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import lite_topics_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.lite_topics_pb2_grpc import (
    LiteTopicServiceServicer,
    add_LiteTopicServiceServicer_to_server,
)
from quarry_mq.server.admin_port.calls.edge import answered, answers, given, not_negative
from quarry_mq.server.lag.consumer_lag import LiteBacklog
from quarry_mq.server.lite.lite_topics import LiteTopicDetails, LiteTopicListing, LiteTopicPage
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.tasks import Pacing

NAME: Final = pb.DESCRIPTOR.services_by_name["LiteTopicService"].full_name
LISTED_DEFAULT: Final = 100
BACKLOG_DEFAULT: Final = 20
BACKLOG_MAX: Final = 200

_Context = grpc.aio.ServicerContext[Any, Any]


class LiteTopicService(LiteTopicServiceServicer):
    """Translates requests and answers."""

    def __init__(
        self, listing: LiteTopicListing, backlog: LiteBacklog, pacing: Pacing, error_reporter: ErrorReporter
    ) -> None:
        self._listing = listing
        self._backlog = backlog
        self._pacing = pacing
        self.error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_LiteTopicServiceServicer_to_server(self, server)
        return NAME

    async def ListLiteTopics(self, request: pb.ListLiteTopicsRequest, context: _Context) -> pb.ListLiteTopicsResponse:
        page = await answered(context, self._page(request), self.error_reporter)
        return pb.ListLiteTopicsResponse(lite_topics=map(lite_topic_message, page.lite_topics), has_more=page.has_more)

    async def _page(self, request: pb.ListLiteTopicsRequest) -> LiteTopicPage:
        limit = not_negative("limit", request.limit) or LISTED_DEFAULT
        return await self._listing.page(request.topic, prefix=request.prefix, after=request.after, limit=limit)

    async def GetLiteTopic(self, request: pb.GetLiteTopicRequest, context: _Context) -> pb.LiteTopic:
        finding = self._listing.show(request.topic, request.lite_topic)
        return lite_topic_message(await answered(context, finding, self.error_reporter))

    async def DeleteLiteTopic(
        self, request: pb.DeleteLiteTopicRequest, context: _Context
    ) -> pb.DeleteLiteTopicResponse:
        await answered(context, self._listing.delete(request.topic, request.lite_topic), self.error_reporter)
        return pb.DeleteLiteTopicResponse()

    @answers
    def GetLiteTopicStatistics(self, request: pb.GetLiteTopicStatisticsRequest) -> pb.LiteTopicStatistics:
        found = self._listing.statistics(request.topic)
        return pb.LiteTopicStatistics(lite_topics=found.lite_topics, lite_topics_max=found.limit, ttl_ms=found.ttl_ms)

    async def ListLiteBacklog(
        self, request: pb.ListLiteBacklogRequest, context: _Context
    ) -> pb.ListLiteBacklogResponse:
        return await answered(context, self._found_backlog(request), self.error_reporter)

    async def _found_backlog(self, request: pb.ListLiteBacklogRequest) -> pb.ListLiteBacklogResponse:
        topic, group = given("topic", request.topic), given("group", request.group)
        limit = min(request.limit or BACKLOG_DEFAULT, BACKLOG_MAX)
        async with self._pacing.turn() as time_slice:
            found = await self._backlog.of(topic, group, limit, time_slice)
        return pb.ListLiteBacklogResponse(
            lite_topics=[
                pb.LiteBacklog(lite_topic=each.lite_topic, ready=each.ready, oldest_stored_at_ms=each.oldest_ms)
                for each in found.lite_topics
            ],
            is_complete=found.is_complete,
            clients=[
                pb.LiteClientDepth(
                    client_id=each.client_id,
                    lite_topics_ready=each.ready,
                    subscriptions=each.subscriptions,
                    wants_all=each.wants_all,
                )
                for each in found.clients
            ],
            looked_at=found.looked_at,
        )


def lite_topic_message(each: LiteTopicDetails) -> pb.LiteTopic:
    return pb.LiteTopic(
        name=each.name,
        minimum_offset=each.minimum,
        maximum_offset=each.maximum,
        last_stored_at_ms=each.last_stored_ms,
        subscribers=each.subscribers,
    )
