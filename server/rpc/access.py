"""Defines the rights that each call of the protocol needs: RocketMQ's table (docs/security.md).

A request without a row in the table is for super users only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from google.protobuf.message import Message

from quarry_mq.protocol.limits import ENTRIES_MAX
from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES
from quarry_mq.protocol.names import DEAD_LETTER_PREFIX, LIGHT_QUEUE_PREFIX, RETRY_PREFIX
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.delivery.retry_topics import is_retry_topic_of
from quarry_mq.server.security.authorization import SUPER_USERS_ONLY, Need
from quarry_mq.server.security.credentials import Access
from quarry_mq.server.wire.validate import check_count
from quarry_mq.store.metadata.lite import parse_light_queue_name
from quarry_mq.store.security.model import Action, ResourceKind

Needs = Callable[[Any], Iterable[Need]]
"""Returns the rights that a request needs. Raises Refused for a request that names more than allowed."""


NOBODY: Final[Need] = ()
"""A need that no rule grants, so that only super users have it."""


def publish(topic: str) -> Need:
    return (Access(ResourceKind.TOPIC, topic, Action.PUB),)


def read(topic: str, group: str | None = None) -> Need:
    """Return the need for reading a topic; a group's own retry and dead letter topics need no grant (rmq#10370).

    A client that may join the group may read what was set aside for it. The authorizer finds out which group a retry
    topic belongs to. `group` is the reading group; only its own group reads a retry topic.
    """
    if topic.startswith(DEAD_LETTER_PREFIX):
        return join(topic.removeprefix(DEAD_LETTER_PREFIX))
    if group is not None and topic.startswith(RETRY_PREFIX) and not is_retry_topic_of(group, topic):
        return NOBODY
    return (Access(ResourceKind.TOPIC, topic, Action.SUB),)


def join(group: str) -> Need:
    return (Access(ResourceKind.GROUP, group, Action.SUB),)


def settings_needs(group: str | None, topics: Iterable[str]) -> list[Need]:
    """Return the needs of a client that sends its settings; a producer has no group."""
    if group is None:
        return [publish(topic) for topic in topics]
    return [join(group), *(read(topic, group) for topic in topics)]


def _send(request: service.SendMessageRequest) -> list[Need]:
    """Return the needs for every topic and light queue that a message names: consumers know light queues by name, too.

    A light queue that is a lite topic needs the right to its topic as well, whose consumers get the message.
    """
    check_count(request.messages, "messages")
    names: dict[str, None] = {}
    for message in request.messages:
        names[message.topic.name] = None
        if LIGHT_QUEUES in message.user_properties:
            queues = message.user_properties[LIGHT_QUEUES].split(",", ENTRIES_MAX)
            check_count(queues, "light queues")
            for name in queues:
                if name.startswith(LIGHT_QUEUE_PREFIX):
                    lite = parse_light_queue_name(name)
                    names.update(dict.fromkeys((name,) if lite is None else (name, lite[0])))
            check_count(names, "light queues")
    return [publish(name) for name in names]


def _publish(request: Any) -> list[Need]:
    return [publish(request.topic.name)]


def _route(request: service.QueryRouteRequest) -> list[Need]:
    topic = request.topic.name
    return [(*publish(topic), *read(topic), Access(ResourceKind.TOPIC, topic, Action.GET))]


def _read(request: Any) -> list[Need]:
    return [read(request.topic.name, request.group.name), join(request.group.name)]


def _read_queue(request: Any) -> list[Need]:
    return [read(request.message_queue.topic.name, request.group.name), join(request.group.name)]


def _look_at_queue(request: service.QueryOffsetRequest) -> list[Need]:
    return [read(request.message_queue.topic.name)]


def _group(request: Any) -> list[Need]:
    return [join(request.group.name)]


def _group_if_any(request: Any) -> list[Need]:
    """Return the need for the group, if the request names one; a producer names none."""
    return [join(request.group.name)] if request.group.name else []


def _telemetry(command: service.TelemetryCommand) -> list[Need]:
    if command.WhichOneof("command") != "settings":
        return []
    settings = command.settings
    if settings.HasField("subscription"):
        check_count(settings.subscription.subscriptions, "subscriptions")
        topics = dict.fromkeys(entry.topic.name for entry in settings.subscription.subscriptions)
        return settings_needs(settings.subscription.group.name, topics)
    check_count(settings.publishing.topics, "topics")
    return settings_needs(None, dict.fromkeys(topic.name for topic in settings.publishing.topics))


NEEDS: Final[Mapping[type[Message], Needs]] = {
    service.QueryRouteRequest: _route,
    service.HeartbeatRequest: _group_if_any,
    service.SendMessageRequest: _send,
    service.QueryAssignmentRequest: _read,
    service.ReceiveMessageRequest: _read_queue,
    service.AckMessageRequest: _read,
    service.ForwardMessageToDeadLetterQueueRequest: _read,
    service.PullMessageRequest: _read_queue,
    service.UpdateOffsetRequest: _read_queue,
    service.GetOffsetRequest: _read_queue,
    service.QueryOffsetRequest: _look_at_queue,
    service.EndTransactionRequest: _publish,
    service.TelemetryCommand: _telemetry,
    service.NotifyClientTerminationRequest: _group_if_any,
    service.ChangeInvisibleDurationRequest: _group,
    service.RecallMessageRequest: _publish,
    service.SyncLiteSubscriptionRequest: _read,
}


def needs_of(request_type: type[Message]) -> Needs:
    return NEEDS.get(request_type, lambda _request: SUPER_USERS_ONLY)
