"""Serve `quarry.admin.v1.OverviewService` on the admin port: what an operator looks at first."""

from __future__ import annotations

from typing import Any, Final

import grpc.aio
from google.protobuf.message import DecodeError

from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.overview_pb2_grpc import (
    OverviewServiceServicer,
    add_OverviewServiceServicer_to_server,
)
from quarry_mq.server.admin.administration import Administration
from quarry_mq.server.admin.dead_letter_box import DeadLetterBox
from quarry_mq.server.admin.figures.history import History
from quarry_mq.server.admin.figures.members import Answered, OverviewsOfMembers
from quarry_mq.server.admin.figures.overview import Overviews
from quarry_mq.server.admin.figures.recorder import Recording
from quarry_mq.server.admin.figures.sources import Sources
from quarry_mq.server.admin.pages.groups import GroupPages
from quarry_mq.server.admin.pages.topics import TopicPages
from quarry_mq.server.admin_port.calls.edge import answered, answers
from quarry_mq.server.admin_port.metadata.messages import broker_message
from quarry_mq.server.admin_port.overview.figures_messages import group_page_message, topic_page_message, wanted_page
from quarry_mq.server.admin_port.overview.overview_messages import history_message, overview_message
from quarry_mq.server.faults import FaultLog
from quarry_mq.server.jobs import Jobs
from quarry_mq.server.wire.places import without_places

NAME: Final = pb.DESCRIPTOR.services_by_name["OverviewService"].full_name
ALONE: Final = "alone"

_Context = grpc.aio.ServicerContext[Any, Any]


def make_overview_service(
    sources: Sources, administration: Administration, recording: Recording, jobs: Jobs, box: DeadLetterBox
) -> OverviewService:
    def open_jobs() -> int:
        return sum(not each.state.is_end for each in jobs.all()) + sources.upkeep.verification.is_running

    cluster = sources.cluster
    return OverviewService(
        administration,
        Overviews(sources, recording, open_jobs),
        recording.history,
        members=None if cluster is None else OverviewsOfMembers(cluster.members, cluster.peers.overview),
        topics=TopicPages(sources),
        groups=GroupPages(sources, box.waiting),
        faults=sources.components.edge.faults,
    )


class OverviewService(OverviewServiceServicer):
    """Translates requests and answers. `members` is None for a broker that is in no cluster."""

    def __init__(
        self,
        administration: Administration,
        overviews: Overviews,
        history: History,
        *,
        members: OverviewsOfMembers | None,
        topics: TopicPages,
        groups: GroupPages,
        faults: FaultLog,
    ) -> None:
        self._administration = administration
        self._overviews = overviews
        self._history = history
        self._members = members
        self._topics = topics
        self._groups = groups
        self.faults = faults

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_OverviewServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        return NAME

    def own_overview(self) -> bytes:
        """Return the serialized overview, for another member of the cluster."""
        return self._overview().SerializeToString()

    @answers
    def GetOverview(self, _request: pb.GetOverviewRequest) -> pb.Overview:
        return self._overview()

    async def ListOverviews(self, _request: pb.ListOverviewsRequest, context: _Context) -> pb.ListOverviewsResponse:
        return await answered(context, self._all(), self.faults)

    @answers
    def GetHistory(self, request: pb.GetHistoryRequest) -> pb.History:
        after_ms = request.after_ms if request.HasField("after_ms") else None
        return history_message(self._history.excerpt(request.series, after_ms))

    async def ListTopicFigures(
        self, request: pb.ListTopicFiguresRequest, context: _Context
    ) -> pb.ListTopicFiguresResponse:
        return await answered(context, self._topic_page(request), self.faults)

    async def ListGroupFigures(
        self, request: pb.ListGroupFiguresRequest, context: _Context
    ) -> pb.ListGroupFiguresResponse:
        return await answered(context, self._group_page(request), self.faults)

    async def _topic_page(self, request: pb.ListTopicFiguresRequest) -> pb.ListTopicFiguresResponse:
        page = await self._topics.page(wanted_page(request), include_system=request.include_system)
        return topic_page_message(page)

    async def _group_page(self, request: pb.ListGroupFiguresRequest) -> pb.ListGroupFiguresResponse:
        return group_page_message(await self._groups.page(wanted_page(request)))

    def _overview(self) -> pb.Overview:
        return overview_message(broker_message(self._administration), self._overviews.now())

    async def _all(self) -> pb.ListOverviewsResponse:
        if self._members is None:
            return pb.ListOverviewsResponse(members=[self._alone()])
        return pb.ListOverviewsResponse(members=[self._message(each) for each in await self._members.all()])

    def _alone(self) -> pb.MemberOverview:
        facts = self._administration.facts
        return pb.MemberOverview(
            name=facts.name,
            is_self=True,
            state=ALONE,
            is_reachable=True,
            address=facts.advertised_address,
            version=facts.version,
            overview=self._overview(),
        )

    def _message(self, answer: Answered) -> pb.MemberOverview:
        member, overview, problem = answer.seen.member, None, answer.problem
        if answer.seen.is_self:
            overview = self._overview()
        elif answer.overview is not None:
            try:
                overview = pb.Overview.FromString(answer.overview)
            except DecodeError:
                problem = "its answer is no overview"
        return pb.MemberOverview(
            name=member.name,
            is_self=answer.seen.is_self,
            state=member.state.value,
            is_reachable=answer.seen.is_self or overview is not None,
            address=member.address or member.tls_address or "",
            admin_address=member.admin_address,
            version=member.version,
            overview=overview,
            problem=without_places(problem),
        )
