"""Makes the calls of `quarry top`, and converts their answers to plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import grpc

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.online.connection.administration import open_channel, refusal
from quarry_mq.cli.online.connection.concerns import concerns_of
from quarry_mq.cli.online.top.facts import (
    Group,
    GroupPage,
    History,
    Job,
    Member,
    Migration,
    Order,
    Overview,
    Pair,
    Process,
    Stage,
    Step,
    Topic,
    TopicPage,
)
from quarry_mq.cli.online.top.stats import Histogram
from quarry_mq.cli.terminal.text import one_line
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2, jobs_pb2, migration_pb2
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.jobs_pb2_grpc import JobServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.migration_pb2_grpc import MigrationServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.overview_pb2_grpc import OverviewServiceStub

CALL_TIMEOUT_S: Final = 10.0
OPTIONS: Final = (("grpc.max_reconnect_backoff_ms", 2_000), ("grpc.initial_reconnect_backoff_ms", 500))
"""Options of the channel: a broker that comes back is seen soon; by default gRPC would wait up to two minutes."""

PAGE_MAX: Final = 500
SERIES: Final = ("sent_per_second", "received_per_second")
ORDERS: Final = {
    Order.BUSIEST: pb.FIGURE_ORDER_BUSIEST,
    Order.LAG: pb.FIGURE_ORDER_LAG,
    Order.NAME: pb.FIGURE_ORDER_UNSPECIFIED,
}

_Fact = TypeVar("_Fact")


class Failure(Enum):
    """The kinds of failed calls, by how they are shown."""

    GONE = "no answer"
    STRANGER = "not authenticated"
    FORBIDDEN = "not allowed"
    OTHER = "refused"


_FAILURES: Final = {
    grpc.StatusCode.UNAVAILABLE: Failure.GONE,
    grpc.StatusCode.DEADLINE_EXCEEDED: Failure.GONE,
    grpc.StatusCode.CANCELLED: Failure.GONE,
    grpc.StatusCode.UNAUTHENTICATED: Failure.STRANGER,
    grpc.StatusCode.PERMISSION_DENIED: Failure.FORBIDDEN,
}


class CallFailed(Exception):
    """A call failed. The text is one line for the user."""

    def __init__(self, failure: Failure, text: str) -> None:
        super().__init__(text)
        self.failure = failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The topics and groups that are requested."""

    contains: str = ""
    topics: Order = Order.BUSIEST
    groups: Order = Order.LAG
    limit: int = PAGE_MAX


class Reading:
    """A connection to one admin port, for any thread. Every call raises CallFailed.

    An unusable file of the context ends the command with one line.
    """

    def __init__(self, address: str, context: Context | None) -> None:
        self.address: Final = address
        self._context = context
        self._channel = open_channel(address, context, options=OPTIONS)
        self._overview = OverviewServiceStub(self._channel)
        self._migration = MigrationServiceStub(self._channel)
        self._jobs = JobServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Calls that are under way end at once."""
        self._channel.close()

    def overview(self) -> Overview:
        return overview_of(self._call(self._overview.GetOverview, pb.GetOverviewRequest()))

    def members(self) -> tuple[Member, ...]:
        """Return all members of the cluster; for a broker without a cluster, the broker alone."""
        answer = self._call(self._overview.ListOverviews, pb.ListOverviewsRequest())
        return tuple(map(_member, answer.members))

    def history(self) -> History:
        answer = self._call(self._overview.GetHistory, pb.GetHistoryRequest(series=SERIES))
        series = {each.name: tuple(each.values) for each in answer.series}
        return History(interval_ms=answer.interval_ms, at_ms=tuple(answer.at_ms), series=series)

    def topics(self, wish: Wish) -> TopicPage:
        request = pb.ListTopicFiguresRequest(contains=wish.contains, limit=wish.limit, order=ORDERS[wish.topics])
        answer = self._call(self._overview.ListTopicFigures, request)
        rows = tuple(map(_topic, answer.topics))
        return TopicPage(rows=rows, has_more=answer.has_more, matching=answer.matching)

    def groups(self, wish: Wish) -> GroupPage:
        request = pb.ListGroupFiguresRequest(contains=wish.contains, limit=wish.limit, order=ORDERS[wish.groups])
        answer = self._call(self._overview.ListGroupFigures, request)
        rows = tuple(map(_group, answer.groups))
        return GroupPage(rows=rows, has_more=answer.has_more, matching=answer.matching)

    def migration(self) -> Migration:
        return _migration(self._call(self._migration.GetMigration, migration_pb2.GetMigrationRequest()))

    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs, the newest first, including verifications."""
        return tuple(map(_job, self._call(self._jobs.ListJobs, jobs_pb2.ListJobsRequest()).jobs))

    def _call(self, method: Callable[..., Any], request: object) -> Any:
        try:
            return method(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._failed(error) from error
        except ValueError as error:  # gRPC raises it for a channel that was closed meanwhile
            raise CallFailed(Failure.GONE, f"{self.address}: closed") from error

    def _failed(self, error: grpc.RpcError) -> CallFailed:
        call = cast("grpc.Call", error)
        code, details = call.code(), call.details() or ""
        user = None if self._context is None else self._context.user
        who = "without a user" if user is None else f"as {user}"
        match code:
            case grpc.StatusCode.UNAUTHENTICATED:
                advice = "name one with quarry --context NAME top" if user is None else "check the context's secret"
                text = f"{self.address}: asked {who}, but not authenticated ({details}); {advice}"
            case grpc.StatusCode.PERMISSION_DENIED:
                text = f"{self.address}: asked {who}, who may not see this ({details})"
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                text = f"{self.address}: no answer within {CALL_TIMEOUT_S:.0f} s"
            case grpc.StatusCode.UNIMPLEMENTED:
                text = f"{self.address}: this broker is older than quarry top, and does not provide its stats"
            case _:
                text = refusal(error, self.address)
        return CallFailed(_FAILURES.get(code, Failure.OTHER), " ".join(one_line(text).split()))


# -- from protobuf


def _plain(fact: type[_Fact], message: Any, **others: Any) -> _Fact:
    """Make a value from the fields of a message with the same names; unset fields are None."""
    values: dict[str, Any] = {}
    for each in fields(fact):  # type: ignore[arg-type]
        if each.name in others:
            continue
        has_presence = message.DESCRIPTOR.fields_by_name[each.name].has_presence
        values[each.name] = None if has_presence and not message.HasField(each.name) else getattr(message, each.name)
    return fact(**values, **others)


def overview_of(message: pb.Overview) -> Overview:
    broker = message.broker
    return _plain(
        Overview,
        message,
        name=one_line(broker.name),
        cluster=one_line(broker.cluster),
        version=one_line(broker.version),
        started_at_ms=broker.started_at_ms,
        readiness=one_line(message.readiness),
        concerns=tuple(concerns_of(message)),
        disk_total=message.disk_total or None,
        disk_free=message.disk_free if message.disk_total else None,
        stages=tuple(map(_stage, message.stages)),
        process=_plain(Process, message.process) if message.HasField("process") else None,
    )


def _stage(message: pb.Stage) -> Stage:
    histogram = Histogram(tuple(message.bounds_seconds), tuple(message.counts), message.total_seconds)
    return Stage(call=one_line(message.call), name=one_line(message.name), histogram=histogram)


def _member(message: pb.MemberOverview) -> Member:
    overview = overview_of(message.overview) if message.HasField("overview") else None
    return _plain(Member, message, name=one_line(message.name), overview=overview, problem=one_line(message.problem))


def _pairs(messages: Iterable[pb.PairFigures]) -> tuple[Pair, ...]:
    return tuple(_plain(Pair, each, group=one_line(each.group), topic=one_line(each.topic)) for each in messages)


def _topic(message: pb.TopicFigures) -> Topic:
    topic = message.topic
    kind = admin_pb2.TopicType.Name(topic.type).removeprefix("TOPIC_TYPE_").lower()
    return _plain(
        Topic,
        message,
        name=one_line(topic.name),
        kind="unknown" if kind == "unspecified" else kind,
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        pairs=_pairs(message.groups),
    )


def _group(message: pb.GroupFigures) -> Group:
    group = message.group
    return _plain(
        Group,
        message,
        name=one_line(group.name),
        is_fifo=group.fifo,
        max_attempts=group.max_attempts,
        is_enabled=group.enabled,
        pairs=_pairs(message.topics),
    )


def _migration(message: migration_pb2.Migration) -> Migration:
    backfill = message.backfill if message.HasField("backfill") else None
    comparing = message.comparing if message.HasField("comparing") else None
    report = message.report if message.HasField("report") else None
    total = None if backfill is None else max(0, backfill.end - backfill.log_begin)
    return Migration(
        phase=one_line(message.phase),
        read=one_line(message.read),
        assign=one_line(message.assign),
        next=_text(message, "advance_to"),
        next_refused=_text(message, "advance_refused"),
        comparison_first=_text(message, "comparison_first"),
        back=_text(message, "rollback_to"),
        back_refused=_text(message, "rollback_refused"),
        lag_bytes=message.lag_bytes,
        backfill_done=None if backfill is None else min(total or 0, max(0, backfill.done - backfill.log_begin)),
        backfill_total=total,
        compared_queues=None if comparing is None else comparing.queues,
        compared_units=None if comparing is None else comparing.units,
        differences=None if report is None else sum(report.differences.values()),
        doubt=None if report is None else _text(report, "doubt"),
        removing=message.removing,
        problem=_text(message, "problem"),
        steps=tuple(
            Step(at_ms=each.at_ms, before=getattr(each, "from"), after=each.to, asked_by=one_line(each.asked_by))
            for each in message.steps
        ),
    )


def _job(message: jobs_pb2.Job) -> Job:
    counts: Mapping[str, int] = message.counts
    return _plain(
        Job,
        message,
        asked_by=one_line(message.asked_by),
        is_dry_run=message.dry_run,
        counts=dict(counts),
        remark=_text(message, "remark"),
    )


def _text(message: Any, field: str) -> str | None:
    return one_line(getattr(message, field)) if message.HasField(field) else None
