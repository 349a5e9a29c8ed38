"""The admin port: `quarry.admin.v1.AdminService` with gRPC health and reflection, on grpcio and its own address.

Unlike the messaging service it answers errors with gRPC status codes. It shares the event loop with the broker, so
that administration needs no locks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NoReturn, ParamSpec, Protocol, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kv import EngineCorrupt, EngineFull
from server._generated.quarry.admin.v1 import admin_pb2 as pb
from server._generated.quarry.admin.v1.admin_pb2_grpc import AdminServiceServicer, add_AdminServiceServicer_to_server
from server.administration import (
    Administration,
    GroupChange,
    Place,
    QueueReset,
    ResetTarget,
    StoredSince,
    TopicChange,
)
from server.backup_points import LEASE_S
from server.errors import NoIndex
from server.faults import FaultLog
from server.front.grpcio import bind
from server.retention import ExpiryReport
from server.rpc.admin_summary import summary_message
from server.wire.status import INTERNAL_TEXT
from store import errors
from store.backup import BackupPoint
from store.metadata import (
    READ_WRITE,
    Backoff,
    CustomizedBackoff,
    ExponentialBackoff,
    Group,
    Permission,
    Topic,
    TopicType,
)
from store.offsets import QueueBounds, QueueId, QueueOffset
from store.queue_summary import QueueSummary

SERVICE_NAME: Final = pb.DESCRIPTOR.services_by_name["AdminService"].full_name
PAGE_ROWS: Final = 256

STATUS_CODES: Final[dict[type[BaseException], grpc.StatusCode]] = {
    errors.TopicNotFound: grpc.StatusCode.NOT_FOUND,
    errors.GroupNotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.Forbidden: grpc.StatusCode.FAILED_PRECONDITION,
    NoIndex: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DiskRefused: grpc.StatusCode.RESOURCE_EXHAUSTED,
    EngineFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    EngineCorrupt: grpc.StatusCode.DATA_LOSS,
    errors.StoreUnusable: grpc.StatusCode.DATA_LOSS,
    errors.StorePoisoned: grpc.StatusCode.DATA_LOSS,
    Exception: grpc.StatusCode.INTERNAL,
}
"""The nearest class of an error's ancestry decides."""

TOPIC_TYPES: Final[dict[pb.TopicType, TopicType]] = {
    pb.TOPIC_TYPE_NORMAL: TopicType.NORMAL,
    pb.TOPIC_TYPE_FIFO: TopicType.FIFO,
    pb.TOPIC_TYPE_DELAY: TopicType.DELAY,
    pb.TOPIC_TYPE_TRANSACTION: TopicType.TRANSACTION,
    pb.TOPIC_TYPE_MIXED: TopicType.MIXED,
    pb.TOPIC_TYPE_LITE: TopicType.LITE,
    pb.TOPIC_TYPE_PRIORITY: TopicType.PRIORITY,
}
TOPIC_TYPES_BACK: Final = {ours: theirs for theirs, ours in TOPIC_TYPES.items()}

PERMISSIONS: Final[dict[pb.Permission, Permission]] = {
    pb.PERMISSION_READ: Permission.READ,
    pb.PERMISSION_WRITE: Permission.WRITE,
    pb.PERMISSION_READ_WRITE: READ_WRITE,
    pb.PERMISSION_NONE: Permission(0),
}
PERMISSIONS_BACK: Final = {ours: theirs for theirs, ours in PERMISSIONS.items()}

_Context = grpc.aio.ServicerContext[Any, Any]
_Parameters = ParamSpec("_Parameters")
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
_Row = TypeVar("_Row")


class Expire(Protocol):
    """Lets old segments expire, see `server.retention`; with `rewrite_queues`, see `server.queue_cleaning`, too."""

    def __call__(self, *, dry_run: bool, rewrite_queues: bool) -> Awaitable[ExpiryReport]: ...


Summarize = Callable[[int], Awaitable[QueueSummary]]
"""Counts all queues and names so many of the largest, see `server.queue_summaries`."""


def _answers(
    method: Callable[[AdminService, _Request], _Answer],
) -> Callable[[AdminService, _Request, _Context], Coroutine[Any, Any, _Answer]]:
    """A plain method as a gRPC one: its errors become status codes."""

    async def call(self: AdminService, request: _Request, context: _Context) -> _Answer:
        try:
            return method(self, request)
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
            await refuse(context, error, self.faults)

    return call


def _streams(
    method: Callable[[AdminService, _Request], Iterator[_Answer]],
) -> Callable[[AdminService, _Request, _Context], Coroutine[Any, Any, None]]:
    """A generator of pages as a streaming gRPC method. The loop is free between two pages."""

    async def call(self: AdminService, request: _Request, context: _Context) -> None:
        answers = method(self, request)
        while True:
            try:
                page = next(answers, None)
            except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
                await refuse(context, error, self.faults)
            if page is None:
                return
            await context.write(page)

    return call


class AdministeredBackups(Protocol):
    """What the service asks of `server.backup_points`."""

    async def begin(self) -> BackupPoint: ...

    def renew(self, name: str) -> None: ...

    def end(self, name: str) -> None: ...


class AdminService(AdminServiceServicer):
    """Each method checks, calls and translates."""

    def __init__(
        self,
        administration: Administration,
        faults: FaultLog,
        backups: AdministeredBackups,
        expire: Expire,
        summarize: Summarize,
    ) -> None:
        self._administration = administration
        self._summarize = summarize
        self._backups = backups
        self.faults = faults
        self._expire = expire

    @_answers
    def GetBroker(self, _request: pb.GetBrokerRequest) -> pb.Broker:
        facts = self._administration.facts
        figures = self._administration.log_figures()
        return pb.Broker(
            name=facts.name,
            cluster=facts.cluster,
            version=facts.version,
            advertised_address=facts.advertised_address,
            store_directory=facts.store_directory,
            durability=facts.durability.value,
            started_at_ms=facts.started_at_ms,
            log=pb.Log(
                appended_offset=figures.appended,
                flushed_offset=figures.flushed,
                dispatched_offset=figures.dispatched,
            ),
        )

    @_answers
    def CreateTopic(self, request: pb.CreateTopicRequest) -> pb.Topic:
        return topic_message(self._administration.create_topic(request.name, topic_change(request)))

    @_answers
    def UpdateTopic(self, request: pb.UpdateTopicRequest) -> pb.Topic:
        return topic_message(self._administration.update_topic(request.name, topic_change(request)))

    @_answers
    def DeleteTopic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        self._administration.delete_topic(request.name)
        return pb.DeleteTopicResponse()

    @_answers
    def GetTopic(self, request: pb.GetTopicRequest) -> pb.Topic:
        return topic_message(self._administration.topic(request.name))

    @_streams
    def ListTopics(self, request: pb.ListTopicsRequest) -> Iterator[pb.ListTopicsResponse]:
        topics = self._administration.topics(request.prefix)
        shown = (topic for topic in topics if request.include_system or not topic.is_system)
        for page in pages(shown):
            yield pb.ListTopicsResponse(topics=[topic_message(topic) for topic in page])

    @_answers
    def CreateGroup(self, request: pb.CreateGroupRequest) -> pb.Group:
        return group_message(self._administration.create_group(request.name, group_change(request)))

    @_answers
    def UpdateGroup(self, request: pb.UpdateGroupRequest) -> pb.Group:
        return group_message(self._administration.update_group(request.name, group_change(request)))

    @_answers
    def DeleteGroup(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        self._administration.delete_group(request.name)
        return pb.DeleteGroupResponse()

    @_answers
    def GetGroup(self, request: pb.GetGroupRequest) -> pb.Group:
        return group_message(self._administration.group(request.name))

    @_streams
    def ListGroups(self, request: pb.ListGroupsRequest) -> Iterator[pb.ListGroupsResponse]:
        for page in pages(self._administration.groups(request.prefix)):
            yield pb.ListGroupsResponse(groups=[group_message(group) for group in page])

    @_answers
    def ResetOffset(self, request: pb.ResetOffsetRequest) -> pb.ResetOffsetResponse:
        resets = self._administration.reset_offset(
            request.group,
            request.topic,
            reset_target(request),
            queue_number=request.queue if request.HasField("queue") else None,
            dry_run=request.dry_run,
        )
        return pb.ResetOffsetResponse(queues=[reset_message(reset) for reset in resets])

    async def ExpireSegments(self, request: pb.ExpireSegmentsRequest, context: _Context) -> pb.ExpireSegmentsResponse:
        expiring = self._expire(dry_run=request.dry_run, rewrite_queues=request.rewrite_queues)
        return expiry_message(await answered(context, expiring, self.faults))

    @_answers
    def ListQueues(self, request: pb.ListQueuesRequest) -> pb.ListQueuesResponse:
        return pb.ListQueuesResponse(
            queues=[queue_message(*each) for each in self._administration.queues(request.topic)]
        )

    async def SummarizeQueues(self, request: pb.SummarizeQueuesRequest, context: _Context) -> pb.QueuesSummary:
        return summary_message(await answered(context, self._summarize(request.largest), self.faults))

    async def BeginBackup(self, _request: pb.BeginBackupRequest, context: _Context) -> pb.BackupPoint:
        try:
            point = await self._backups.begin()
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
            await refuse(context, error, self.faults)
        return pb.BackupPoint(
            name=point.name,
            store_directory=str(point.root),
            log_begin=point.log_begin,
            log_end=point.log_end,
            segment_size=point.segment_size,
            lease_ms=int(LEASE_S * 1000),
        )

    @_answers
    def RenewBackup(self, request: pb.RenewBackupRequest) -> pb.RenewBackupResponse:
        self._backups.renew(request.name)
        return pb.RenewBackupResponse()

    @_answers
    def EndBackup(self, request: pb.EndBackupRequest) -> pb.EndBackupResponse:
        self._backups.end(request.name)
        return pb.EndBackupResponse()


class MoreService(Protocol):
    """Another service on the admin port."""

    def add_to(self, server: grpc.aio.Server) -> str:
        """Serve it; returns its full name."""


class AdminServer:
    """The admin port of one broker."""

    def __init__(
        self,
        administration: Administration,
        faults: FaultLog,
        *,
        backups: AdministeredBackups,
        expire: Expire,
        summarize: Summarize,
        more: Sequence[MoreService] = (),
    ) -> None:
        self._more = more
        self._service = AdminService(administration, faults, backups, expire, summarize)
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str) -> str:
        """Listen on `host:port` and return the bound address. Raises OSError that names the address."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        add_AdminServiceServicer_to_server(self._service, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE_NAME, *(each.add_to(server) for each in self._more))
        reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        port = bind(server, address)
        await server.start()
        self._server = server
        for service in ("", *names):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        return f"{address.rpartition(':')[0]}:{port}"

    async def stop(self, grace_s: float) -> None:
        """Tell health watchers, take no new calls, let open ones end within `grace_s`."""
        server, self._server = self._server, None
        if server is not None:
            await self._health.enter_graceful_shutdown()
            await server.stop(grace_s)


async def answered(context: _Context, result: Awaitable[_Answer], faults: FaultLog) -> _Answer:
    """The result, or the end of the call as `refuse` has it."""
    try:
        return await result
    except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
        await refuse(context, error, faults)


async def refuse(context: _Context, error: Exception, faults: FaultLog) -> NoReturn:
    """End the call with the error's code and text; the text of an unexpected one stays in the log."""
    faults.report(error, port="admin")
    await context.abort(status_code(error), status_text(error))


def status_code(error: Exception) -> grpc.StatusCode:
    return next(STATUS_CODES[ancestor] for ancestor in type(error).__mro__ if ancestor in STATUS_CODES)


def status_text(error: Exception) -> str:
    match error:
        case EngineFull():
            return f"the disk has no room: {error}"
        case errors.BrokerError() | EngineCorrupt():
            return str(error)
        case _:
            return INTERNAL_TEXT


def pages(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    iterator = iter(rows)
    while page := list(islice(iterator, PAGE_ROWS)):
        yield page


def topic_change(request: pb.CreateTopicRequest | pb.UpdateTopicRequest) -> TopicChange:
    """Raises Invalid for an enum value that this broker does not know."""
    return TopicChange(
        type=_known(TOPIC_TYPES, request.type, "type"),
        read_queues=request.read_queues if request.HasField("read_queues") else None,
        write_queues=request.write_queues if request.HasField("write_queues") else None,
        permission=_known(PERMISSIONS, request.permission, "permission"),
        attributes=dict(request.attributes),
    )


def group_change(request: pb.CreateGroupRequest | pb.UpdateGroupRequest) -> GroupChange:
    return GroupChange(
        fifo=request.fifo if request.HasField("fifo") else None,
        max_attempts=request.max_attempts if request.HasField("max_attempts") else None,
        enabled=request.enabled if request.HasField("enabled") else None,
        backoff=_backoff(request),
        attributes=dict(request.attributes),
    )


def reset_target(request: pb.ResetOffsetRequest) -> ResetTarget:
    """Raises Invalid when the request names no position."""
    match request.WhichOneof("position"):
        case "earliest":
            return Place.EARLIEST
        case "latest":
            return Place.LATEST
        case "offset":
            return QueueOffset(request.offset)
        case "stored_since_ms":
            return StoredSince(request.stored_since_ms)
        case _:
            raise errors.Invalid("position must be earliest, latest, an offset or a time")


def topic_message(topic: Topic) -> pb.Topic:
    return pb.Topic(
        name=topic.name,
        type=TOPIC_TYPES_BACK[topic.type],
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        permission=PERMISSIONS_BACK[topic.permission],
        attributes=dict(topic.attributes),
    )


def group_message(group: Group) -> pb.Group:
    message = pb.Group(
        name=group.name,
        fifo=group.fifo,
        max_attempts=group.max_attempts,
        enabled=group.enabled,
        attributes=dict(group.attributes),
    )
    match group.backoff:
        case CustomizedBackoff(next_ms):
            message.customized.delays_ms.extend(next_ms)
        case ExponentialBackoff(initial_ms, max_ms, multiplier):
            message.exponential.CopyFrom(
                pb.ExponentialBackoff(initial_ms=initial_ms, maximum_ms=max_ms, multiplier=multiplier)
            )
    return message


def reset_message(reset: QueueReset) -> pb.QueueReset:
    return pb.QueueReset(queue=reset.queue.number, previous_offset=reset.previous, new_offset=reset.new)


def queue_message(queue: QueueId, bounds: QueueBounds) -> pb.Queue:
    return pb.Queue(
        topic=queue.topic,
        queue=queue.number,
        minimum_offset=bounds.minimum,
        maximum_offset=bounds.maximum,
    )


def expiry_message(report: ExpiryReport) -> pb.ExpireSegmentsResponse:
    most_first = sorted(report.unread.messages_by_group.items(), key=lambda each: -each[1])
    return pb.ExpireSegmentsResponse(
        segments=[
            pb.ExpiringSegment(name=each.name, size=each.size, newest_at_ms=each.newest_ms, cause=each.cause.value)
            for each in report.segments
        ],
        unread=[pb.UnreadMessages(group=group, messages=messages) for group, messages in most_first],
        unread_complete=report.unread.complete,
    )


def _backoff(request: pb.CreateGroupRequest | pb.UpdateGroupRequest) -> Backoff | None:
    match request.WhichOneof("backoff"):
        case "customized":
            return CustomizedBackoff(tuple(request.customized.delays_ms))
        case "exponential":
            exponential = request.exponential
            return ExponentialBackoff(exponential.initial_ms, exponential.maximum_ms, exponential.multiplier)
        case _:
            return None


_Key = TypeVar("_Key", bound=int)


def _known(table: dict[_Key, _Row], value: _Key, name: str) -> _Row | None:
    """The table's value for an enum; None for 0, which stands for not set."""
    if not value:
        return None
    if value not in table:
        raise errors.Invalid(f"{name} {value} is unknown")
    return table[value]
