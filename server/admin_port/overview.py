"""Serve `quarry.admin.v1.OverviewService` on the admin port: what an operator looks at first.

The service answers with the overview, and with pages of topics and groups.
"""

from __future__ import annotations

from typing import Any, Final

import grpc.aio
from google.protobuf.message import DecodeError

from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.overview_pb2_grpc import (
    OverviewServiceServicer,
    add_OverviewServiceServicer_to_server,
)
from quarry_mq.server.admin.administration import Administration
from quarry_mq.server.admin.concerns import Concern, Concerns, Severity
from quarry_mq.server.admin.dead_letter_box import DeadLetterBox
from quarry_mq.server.admin.name_history import Named, NameHistory
from quarry_mq.server.admin.pages import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    GroupPage,
    GroupPages,
    GroupStats,
    Order,
    PairStats,
    TopicPage,
    TopicPages,
    TopicStats,
    Wanted,
)
from quarry_mq.server.admin.sources import Sources
from quarry_mq.server.admin.stats import (
    INTERVAL_MS,
    Answered,
    Excerpt,
    History,
    Overview,
    Overviews,
    OverviewsOfMembers,
    ProcessNow,
    Recording,
    StageTimes,
)
from quarry_mq.server.admin_port.calls.edge import answered, answers, printable
from quarry_mq.server.admin_port.metadata.service import broker_message, group_message, topic_message
from quarry_mq.server.jobs import Jobs
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.wire.status import without_places
from quarry_mq.store.errors import Invalid


def overview_message(broker: admin_pb2.Broker, now: Overview) -> pb.Overview:
    """Translate an overview. Unknown values are not set."""
    today, yesterday, disk, lag = now.today, now.yesterday, now.disk, now.lag
    return pb.Overview(
        broker=broker,
        at_ms=now.at_ms,
        readiness=now.readiness,
        concerns=[each.text for each in now.concerns],
        concern_details=map(_concern_message, now.concerns),
        sent_per_second=now.rates.sent,
        received_per_second=now.rates.received,
        sent=now.moved.sent,
        received=now.moved.received,
        sent_today=None if today is None else today.sent,
        received_today=None if today is None else today.received,
        sent_yesterday=None if yesterday is None else yesterday.sent,
        received_yesterday=None if yesterday is None else yesterday.received,
        connections=now.connections,
        producers=now.producers,
        consumers=now.consumers,
        topics=now.topics,
        groups=now.groups,
        disk_total=None if disk is None else disk.total_bytes,
        disk_free=None if disk is None else disk.available_bytes,
        log_size=now.log_size,
        oldest_stored_at_ms=now.oldest_stored_ms,
        ready_messages=None if lag is None else lag.ready,
        in_flight_messages=None if lag is None else lag.in_flight,
        lag_ms=None if lag is None else lag.lag_ms,
        lag_is_whole=now.lag_is_whole,
        timers=now.timers,
        transactions=now.transactions,
        lite_topics=now.lite_topics,
        migration_phase=now.migration_phase,
        migration_lag_bytes=now.migration_lag_bytes,
        open_jobs=now.open_jobs,
        log_check_ratio=None if now.log_check is None else now.log_check.ratio,
        log_checked_at_ms=now.log_checked_at_ms,
        stages=map(_stage_message, now.stages),
        process=_process_message(now.process),
    )


SEVERITIES: Final = {
    Severity.FAULT: pb.CONCERN_SEVERITY_FAULT,
    Severity.WARNING: pb.CONCERN_SEVERITY_WARNING,
}


def _concern_message(concern: Concern) -> pb.Concern:
    return pb.Concern(
        kind=concern.kind,
        severity=SEVERITIES[concern.severity],
        text=concern.text,
        since_ms=concern.since_ms,
        page=concern.page,
        command=concern.command,
    )


def history_message(excerpt: Excerpt) -> pb.History:
    return pb.History(
        interval_ms=INTERVAL_MS,
        at_ms=excerpt.at_ms,
        series=[pb.Series(name=each.name, unit=each.unit, values=values) for each, values in excerpt.series],
    )


def _stage_message(stage: StageTimes) -> pb.Stage:
    return pb.Stage(
        call=stage.call,
        name=stage.name,
        bounds_seconds=stage.histogram.bounds,
        counts=stage.histogram.counts(),
        total_seconds=stage.histogram.total,
    )


def _process_message(process: ProcessNow) -> pb.Process:
    return pb.Process(
        cpu_seconds=process.cpu_seconds,
        resident_bytes=process.resident_bytes,
        open_files=process.open_files,
        loop_late_seconds=process.loop_late_seconds,
    )


ORDERS: Final = {
    pb.FIGURE_ORDER_UNSPECIFIED: Order.NAME,
    pb.FIGURE_ORDER_BUSIEST: Order.BUSIEST,
    pb.FIGURE_ORDER_LAG: Order.LAG,
}


def wanted_page(request: pb.ListTopicFiguresRequest | pb.ListGroupFiguresRequest) -> Wanted:
    """Return the requested page. Raises Invalid."""
    order = ORDERS.get(request.order)
    if order is None:
        raise Invalid(f"order {request.order} is unknown")
    return Wanted(
        contains=printable("contains", request.contains),
        after=printable("after", request.after),
        limit=min(request.limit or LIMIT_DEFAULT, LIMIT_MAX),
        order=order,
        names=[printable("names", each) for each in request.names],
    )


def topic_page_message(page: TopicPage) -> pb.ListTopicFiguresResponse:
    return pb.ListTopicFiguresResponse(
        topics=map(_topic_stats, page.topics), has_more=page.has_more, matching=page.matching
    )


def group_page_message(page: GroupPage) -> pb.ListGroupFiguresResponse:
    return pb.ListGroupFiguresResponse(
        groups=map(_group_stats, page.groups), has_more=page.has_more, matching=page.matching
    )


def _topic_stats(stats: TopicStats) -> pb.TopicFigures:
    kept = stats.kept
    return pb.TopicFigures(
        topic=topic_message(stats.topic),
        messages=None if kept is None else kept.messages,
        estimated_bytes=None if kept is None else kept.estimated_bytes,
        sent_per_second=stats.sent_per_second,
        received_per_second=stats.received_per_second,
        last_stored_at_ms=None if kept is None else kept.last_stored_ms,
        groups=map(_pair_stats, stats.groups),
        group_count=stats.group_count,
    )


def _group_stats(stats: GroupStats) -> pb.GroupFigures:
    return pb.GroupFigures(
        group=group_message(stats.group),
        consumers=stats.consumers,
        topics=map(_pair_stats, stats.topics),
        topic_count=stats.topic_count,
        ready=stats.ready,
        in_flight=stats.in_flight,
        lag_ms=stats.lag_ms,
        dead_letters=stats.dead_letters,
    )


def _pair_stats(pair: PairStats) -> pb.PairFigures:
    return pb.PairFigures(
        group=pair.group,
        topic=pair.topic,
        ready=pair.ready,
        in_flight=pair.in_flight,
        lag_ms=pair.lag_ms,
        received_per_second=pair.received_per_second,
        consumers=pair.consumers,
    )


NAME: Final = pb.DESCRIPTOR.services_by_name["OverviewService"].full_name
ALONE: Final = "alone"

_Context = grpc.aio.ServicerContext[Any, Any]


def make_overview_service(
    sources: Sources,
    administration: Administration,
    recording: Recording,
    concerns: Concerns,
    *,
    names: NameHistory,
    jobs: Jobs,
    box: DeadLetterBox,
) -> OverviewService:
    def open_jobs() -> int:
        return sum(not each.state.is_end for each in jobs.all()) + sources.maintenance.verification.is_running

    cluster = sources.cluster
    return OverviewService(
        administration,
        Overviews(sources, recording, concerns, open_jobs),
        recording.history,
        names=names,
        members=None if cluster is None else OverviewsOfMembers(cluster.members, cluster.peers.overview),
        topics=TopicPages(sources),
        groups=GroupPages(sources, box.waiting),
        error_reporter=sources.components.edge.error_reporter,
    )


class OverviewService(OverviewServiceServicer):
    """Translates requests and answers. `members` is None for a broker that is in no cluster."""

    def __init__(
        self,
        administration: Administration,
        overviews: Overviews,
        history: History,
        *,
        names: NameHistory,
        members: OverviewsOfMembers | None,
        topics: TopicPages,
        groups: GroupPages,
        error_reporter: ErrorReporter,
    ) -> None:
        self._administration = administration
        self._overviews = overviews
        self._history = history
        self._names = names
        self._members = members
        self._topics = topics
        self._groups = groups
        self.error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_OverviewServiceServicer_to_server(self, server)
        return NAME

    def own_overview(self) -> bytes:
        """Return the serialized overview, for another member of the cluster."""
        return self._overview().SerializeToString()

    @answers
    def GetOverview(self, _request: pb.GetOverviewRequest) -> pb.Overview:
        return self._overview()

    async def ListOverviews(self, _request: pb.ListOverviewsRequest, context: _Context) -> pb.ListOverviewsResponse:
        return await answered(context, self._all(), self.error_reporter)

    @answers
    def GetHistory(self, request: pb.GetHistoryRequest) -> pb.History:
        after_ms = request.after_ms if request.HasField("after_ms") else None
        if request.topic and request.group:
            raise Invalid("topic, group: only one of both")
        if not request.topic and not request.group:
            return history_message(self._history.excerpt(request.series, after_ms))
        kind, name = (Named.TOPIC, request.topic) if request.topic else (Named.GROUP, request.group)
        printable(kind.value, name)
        return history_message(self._names.excerpt(kind, name, request.series, after_ms))

    async def ListTopicFigures(
        self, request: pb.ListTopicFiguresRequest, context: _Context
    ) -> pb.ListTopicFiguresResponse:
        return await answered(context, self._topic_page(request), self.error_reporter)

    async def ListGroupFigures(
        self, request: pb.ListGroupFiguresRequest, context: _Context
    ) -> pb.ListGroupFiguresResponse:
        return await answered(context, self._group_page(request), self.error_reporter)

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
                problem = "the answer is not an overview"
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
