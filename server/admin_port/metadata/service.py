"""Serve `quarry.admin.v1.AdminService` and `quarry.admin.v1.SettingsService` on the admin port.

The first has calls for topics, groups, queues, expiry and backups, the second for settings that are changed while the
broker runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2
from quarry_mq.protocol.proto.quarry.admin.v1 import settings_pb2 as settings_pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceServicer
from quarry_mq.protocol.proto.quarry.admin.v1.settings_pb2_grpc import (
    SettingsServiceServicer,
    add_SettingsServiceServicer_to_server,
)
from quarry_mq.server.admin.administration import Administration, GroupChange, QueueReset, TopicChange
from quarry_mq.server.admin_port.calls.edge import (
    answered,
    answers,
    given,
    not_negative,
    pages,
    printable,
    refuse,
    streams,
)
from quarry_mq.server.delivery.model import Place, ResetTarget, StoredSince
from quarry_mq.server.maintenance.backup_points import LEASE_S, BackupLeases
from quarry_mq.server.maintenance.retention import ExpiryReport
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.settings.live_settings import LiveSettings, ShownSetting
from quarry_mq.server.tasks import Pacing, TimeSlice
from quarry_mq.store.consumequeue.queue_summary import QueueSummary
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import QueueBounds, QueueId, QueueOffset
from quarry_mq.store.metadata import (
    READ_WRITE,
    Backoff,
    CustomizedBackoff,
    ExponentialBackoff,
    Group,
    Permission,
    Topic,
    TopicType,
)

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


def broker_message(administration: Administration) -> pb.Broker:
    facts, stats = administration.facts, administration.log_stats()
    return pb.Broker(
        name=facts.name,
        cluster=facts.cluster,
        version=facts.version,
        advertised_address=facts.advertised_address,
        store_directory=facts.store_directory,
        durability=facts.durability.value,
        started_at_ms=facts.started_at_ms,
        log=pb.Log(
            appended_offset=stats.appended,
            flushed_offset=stats.flushed,
            dispatched_offset=stats.dispatched,
        ),
    )


def topic_change(request: pb.CreateTopicRequest | pb.UpdateTopicRequest) -> TopicChange:
    """Return the change that a request asks for. Raises Invalid for an enum value that this broker does not know."""
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


def reset_target(request: pb.ResetOffsetRequest | jobs_pb2.OffsetsReset) -> ResetTarget:
    """Return the reset's target. Raises Invalid if the request names no position, or an impossible one."""
    match request.WhichOneof("position"):
        case "earliest":
            return Place.EARLIEST
        case "latest":
            return Place.LATEST
        case "offset":
            return QueueOffset(not_negative("offset", request.offset))
        case "stored_since_ms":
            return StoredSince(not_negative("stored_since_ms", request.stored_since_ms))
        case _:
            raise Invalid("position must be earliest, latest, an offset or a time")


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
_Value = TypeVar("_Value")


def _known(table: dict[_Key, _Value], value: _Key, name: str) -> _Value | None:
    """Return the table's value for an enum; None for 0, which stands for not set."""
    if not value:
        return None
    if value not in table:
        raise Invalid(f"{name} {value} is unknown")
    return table[value]


def summary_message(summary: QueueSummary) -> pb.QueuesSummary:
    return pb.QueuesSummary(
        kinds=[
            pb.QueueKindSummary(kind=kind.value, queues=each.queues, empty=each.empty, entries=each.entries)
            for kind, each in summary.kinds.items()
        ],
        largest=[
            pb.LargeQueue(topic=each.queue.topic, queue=each.queue.number, entries=each.entries)
            for each in summary.largest
        ],
        disk={
            place: pb.DiskUse(files=use.files, apparent_bytes=use.apparent_bytes, allocated_bytes=use.allocated_bytes)
            for place, use in summary.disk.items()
        },
        rocksdb=summary.stats,
    )


SERVICE_NAME: Final = pb.DESCRIPTOR.services_by_name["AdminService"].full_name

_Context = grpc.aio.ServicerContext[Any, Any]


class Expire(Protocol):
    """Lets old segments expire (`server.maintenance.retention`), and cleans up the queues with `rewrite_queues`."""

    def __call__(self, *, dry_run: bool, rewrite_queues: bool) -> Awaitable[ExpiryReport]: ...


Summarize = Callable[[int], Awaitable[QueueSummary]]
"""Count all queues, and name some number of the largest, see `server.maintenance.queue_cleanup`."""


class OrderKept(Protocol):
    """The part of `server.cluster.reading_order` that the service uses."""

    async def require_read(self, topic: Topic, time_slice: TimeSlice) -> None: ...


class AdminService(AdminServiceServicer):
    """Checks and translates requests and answers."""

    def __init__(
        self,
        administration: Administration,
        error_reporter: ErrorReporter,
        backups: BackupLeases,
        expire: Expire,
        summarize: Summarize,
        *,
        order: OrderKept,
        pacing: Pacing,
    ) -> None:
        self._order = order
        self._administration = administration
        self._summarize = summarize
        self._pacing = pacing
        self._backups = backups
        self.error_reporter = error_reporter
        self._expire = expire

    @answers
    def GetBroker(self, _request: pb.GetBrokerRequest) -> pb.Broker:
        return broker_message(self._administration)

    @answers
    def CreateTopic(self, request: pb.CreateTopicRequest) -> pb.Topic:
        return topic_message(self._administration.create_topic(request.name, topic_change(request)))

    async def UpdateTopic(self, request: pb.UpdateTopicRequest, context: _Context) -> pb.Topic:
        return await answered(context, self._update_topic(request), self.error_reporter)

    async def _update_topic(self, request: pb.UpdateTopicRequest) -> pb.Topic:
        change, topic = topic_change(request), self._administration.topic(request.name)
        if request.break_order or change.applied_to(topic).write_queues == topic.write_queues:
            return topic_message(self._administration.update_topic(request.name, change))
        async with self._pacing.turn() as time_slice:
            await self._order.require_read(topic, time_slice)
            return topic_message(self._administration.update_topic(request.name, change))

    @answers
    def DeleteTopic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        self._administration.delete_topic(request.name)
        return pb.DeleteTopicResponse()

    @answers
    def GetTopic(self, request: pb.GetTopicRequest) -> pb.Topic:
        return topic_message(self._administration.topic(request.name))

    @streams
    def ListTopics(self, request: pb.ListTopicsRequest) -> Iterator[pb.ListTopicsResponse]:
        topics = self._administration.topics(printable("prefix", request.prefix))
        shown = (topic for topic in topics if request.include_system or not topic.is_system)
        for page in pages(shown):
            yield pb.ListTopicsResponse(topics=[topic_message(topic) for topic in page])

    @answers
    def CreateGroup(self, request: pb.CreateGroupRequest) -> pb.Group:
        return group_message(self._administration.create_group(request.name, group_change(request)))

    @answers
    def UpdateGroup(self, request: pb.UpdateGroupRequest) -> pb.Group:
        return group_message(self._administration.update_group(request.name, group_change(request)))

    @answers
    def DeleteGroup(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        self._administration.delete_group(request.name)
        return pb.DeleteGroupResponse()

    @answers
    def GetGroup(self, request: pb.GetGroupRequest) -> pb.Group:
        return group_message(self._administration.group(request.name))

    @streams
    def ListGroups(self, request: pb.ListGroupsRequest) -> Iterator[pb.ListGroupsResponse]:
        for page in pages(self._administration.groups(printable("prefix", request.prefix))):
            yield pb.ListGroupsResponse(groups=[group_message(group) for group in page])

    async def ResetOffset(self, request: pb.ResetOffsetRequest, context: _Context) -> pb.ResetOffsetResponse:
        return await answered(context, self._reset_offset(request), self.error_reporter)

    async def _reset_offset(self, request: pb.ResetOffsetRequest) -> pb.ResetOffsetResponse:
        to, queue = reset_target(request), request.queue if request.HasField("queue") else None
        self._administration.require_few(request.group, request.topic, queue)
        async with self._pacing.turn() as time_slice:
            resets = await self._administration.reset_offset(
                request.group, request.topic, to, time_slice, queue_number=queue, dry_run=request.dry_run
            )
        return pb.ResetOffsetResponse(queues=[reset_message(reset) for reset in resets])

    async def ExpireSegments(self, request: pb.ExpireSegmentsRequest, context: _Context) -> pb.ExpireSegmentsResponse:
        expiring = self._expire(dry_run=request.dry_run, rewrite_queues=request.rewrite_queues)
        return expiry_message(await answered(context, expiring, self.error_reporter))

    @answers
    def ListQueues(self, request: pb.ListQueuesRequest) -> pb.ListQueuesResponse:
        return pb.ListQueuesResponse(
            queues=[queue_message(*each) for each in self._administration.queues(request.topic)]
        )

    async def SummarizeQueues(self, request: pb.SummarizeQueuesRequest, context: _Context) -> pb.QueuesSummary:
        return summary_message(await answered(context, self._summarize(request.largest), self.error_reporter))

    async def BeginBackup(self, _request: pb.BeginBackupRequest, context: _Context) -> pb.BackupPoint:
        try:
            point = await self._backups.begin()
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
            await refuse(context, error, self.error_reporter)
        return pb.BackupPoint(
            name=point.name,
            store_directory=str(point.root),
            log_begin=point.log_begin,
            log_end=point.log_end,
            segment_size=point.segment_size,
            lease_ms=int(LEASE_S * 1000),
        )

    @answers
    def RenewBackup(self, request: pb.RenewBackupRequest) -> pb.RenewBackupResponse:
        self._backups.renew(given("name", request.name))
        return pb.RenewBackupResponse()

    @answers
    def EndBackup(self, request: pb.EndBackupRequest) -> pb.EndBackupResponse:
        self._backups.end(given("name", request.name))
        return pb.EndBackupResponse()


NAME: Final = settings_pb.DESCRIPTOR.services_by_name["SettingsService"].full_name


class SettingsService(SettingsServiceServicer):
    """Translates requests and answers."""

    def __init__(self, settings: LiveSettings, error_reporter: ErrorReporter) -> None:
        self._settings = settings
        self.error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_SettingsServiceServicer_to_server(self, server)
        return NAME

    @answers
    def ListSettings(self, _request: settings_pb.ListSettingsRequest) -> settings_pb.ListSettingsResponse:
        return settings_pb.ListSettingsResponse(settings=map(_message, self._settings.shown()))

    @answers
    def GetSetting(self, request: settings_pb.GetSettingRequest) -> settings_pb.Setting:
        return _message(self._settings.show(given("key", request.key)))

    @answers
    def SetSetting(self, request: settings_pb.SetSettingRequest) -> settings_pb.Setting:
        return _message(self._settings.set(given("key", request.key), request.value))

    @answers
    def ResetSetting(self, request: settings_pb.ResetSettingRequest) -> settings_pb.Setting:
        return _message(self._settings.reset(given("key", request.key)))


def _message(shown: ShownSetting) -> settings_pb.Setting:
    return settings_pb.Setting(**shown._asdict())
