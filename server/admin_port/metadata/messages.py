"""Translate topics, groups, queues and reports to messages of the admin protocol, and back."""

from __future__ import annotations

from typing import Final, TypeVar

from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2
from quarry_mq.server.admin.administration import Administration, GroupChange, QueueReset, TopicChange
from quarry_mq.server.admin_port.calls.fields import not_negative
from quarry_mq.server.delivery.model import Place, ResetTarget, StoredSince
from quarry_mq.server.maintenance.retention import ExpiryReport
from quarry_mq.store.consumequeue.queue_summary import QueueSummary
from quarry_mq.store.errors import Invalid
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
from quarry_mq.store.offsets import QueueBounds, QueueId, QueueOffset

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
    facts, figures = administration.facts, administration.log_figures()
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
        rocksdb=summary.figures,
    )
