"""Administration by remoting: topics, groups, and the figures that RocketMQ's tools and clients ask for.

Fields of RocketMQ's settings that Quarry has no use for are answered with RocketMQ's defaults, and are not stored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import orjson

from quarry_mq.protocol.names import retry_topic_name
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.server.admin.administration import Administration, GroupChange, TopicChange
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.front.remoting import Handler, RemotingCall, RemotingConnection
from quarry_mq.server.remoting.bodies import group_config, keyed, queue_of, topic_config
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.fields import (
    INT32,
    Json,
    RemotingRefused,
    integer_of,
    json_object,
    member_integer,
    member_text,
    text_of,
)
from quarry_mq.server.remoting.sessions import ClientInfo, RemotingSessions
from quarry_mq.server.security.credentials import Access
from quarry_mq.server.tasks import Pacing, TimeSlice
from quarry_mq.store.errors import GroupNotFound, StoreDamaged, TopicNotFound
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.metadata import ConsumerOffsetTable, Permission, TopicType
from quarry_mq.store.security.model import Action, ResourceKind

TYPE_ATTRIBUTE: Final = "message.type"
QUEUES_MAX: Final = 100_000
"""Queues in one answer: more are refused, since the protocol has no pages."""

_TYPES: Final = {
    "NORMAL": TopicType.NORMAL,
    "FIFO": TopicType.FIFO,
    "DELAY": TopicType.DELAY,
    "TRANSACTION": TopicType.TRANSACTION,
    "PRIORITY": TopicType.PRIORITY,
    "LITE": TopicType.LITE,
    "MIXED": TopicType.MIXED,
    "UNSPECIFIED": TopicType.MIXED,
}


class RemotingAdministration:
    """Serves requests of operators."""

    def __init__(
        self,
        edge: RemotingEdge,
        administration: Callable[[], Administration],
        *,
        messages: MessageStore,
        offsets: ConsumerOffsetTable,
        delivery: Delivery,
        sessions: RemotingSessions,
        pacing: Pacing,
    ) -> None:
        """`administration` returns the broker's administration, which is there once the broker listens."""
        self._edge = edge
        self._administration = administration
        self._messages = messages
        self._offsets = offsets
        self._delivery = delivery
        self._sessions = sessions
        self._pacing = pacing

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        handler = self._edge.handler
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: handler(self._put_topic),
            RequestCode.DELETE_TOPIC_IN_BROKER: handler(self._delete_topic),
            RequestCode.GET_TOPIC_CONFIG: handler(self._topic),
            RequestCode.UPDATE_AND_CREATE_GROUP: handler(self._put_group),
            RequestCode.DELETE_GROUP: handler(self._delete_group),
            RequestCode.GET_GROUP_CONFIG: handler(self._group),
            RequestCode.GET_TOPIC_STATS: handler(self._topic_stats),
            RequestCode.GET_CONSUME_STATS: handler(self._consume_stats),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: handler(self._readers),
            RequestCode.GET_CONSUMER_CONNECTIONS: handler(self._consumers),
            RequestCode.GET_PRODUCER_CONNECTIONS: handler(self._producers),
        }

    # -- topics

    def _put_topic(self, call: RemotingCall) -> None:
        fields = call.fields
        name, admin = text_of(fields, "topic"), self._administration()
        change = TopicChange(
            type=_type_of(fields.get("attributes", "")),
            read_queues=integer_of(fields, "readQueueNums", within=INT32),
            write_queues=integer_of(fields, "writeQueueNums", within=INT32),
            permission=Permission(integer_of(fields, "perm", 6, within=INT32) & 6),
        )
        try:
            admin.topic(name)
        except TopicNotFound:
            self._require(call, ResourceKind.TOPIC, name, Action.CREATE)
            # RocketMQ's topics take any message unless a type is given
            admin.create_topic(name, change if change.type is not None else _mixed(change))
        else:
            self._require(call, ResourceKind.TOPIC, name, Action.UPDATE)
            admin.update_topic(name, change)
        call.answer()

    def _delete_topic(self, call: RemotingCall) -> None:
        """Delete a topic; one that does not exist is deleted already."""
        name = text_of(call.fields, "topic")
        self._require(call, ResourceKind.TOPIC, name, Action.DELETE)
        with contextlib.suppress(TopicNotFound):
            self._administration().delete_topic(name)
        call.answer()

    def _topic(self, call: RemotingCall) -> None:
        name = text_of(call.fields, "topic")
        self._require(call, ResourceKind.TOPIC, name, Action.GET)
        call.answer(body=orjson.dumps(topic_config(self._administration().topic(name))))

    # -- groups

    def _put_group(self, call: RemotingCall) -> None:
        body = json_object(call.command.body)
        name, admin = member_text(body, "groupName"), self._administration()
        if not name:
            raise RemotingRefused(ResponseCode.INVALID_PARAMETER, "groupName in the body is missing")
        change = GroupChange(
            fifo=body.get("consumeMessageOrderly") is True,
            max_attempts=max(member_integer(body, "retryMaxTimes", 16), 0) + 1,
            enabled=body.get("consumeEnable") is not False,
        )
        try:
            admin.group(name)
        except GroupNotFound:
            self._require(call, ResourceKind.GROUP, name, Action.CREATE)
            admin.create_group(name, change)
        else:
            self._require(call, ResourceKind.GROUP, name, Action.UPDATE)
            admin.update_group(name, change)
        call.answer()

    def _delete_group(self, call: RemotingCall) -> None:
        """Delete a group with its progress; one that does not exist is deleted already."""
        name = text_of(call.fields, "groupName")
        self._require(call, ResourceKind.GROUP, name, Action.DELETE)
        with contextlib.suppress(GroupNotFound):
            self._administration().delete_group(name)
        call.answer()

    def _group(self, call: RemotingCall) -> None:
        name = text_of(call.fields, "group")
        self._require(call, ResourceKind.GROUP, name, Action.GET)
        call.answer(body=orjson.dumps(group_config(self._administration().group(name))))

    # -- figures

    def _topic_stats(self, call: RemotingCall) -> None:
        topic = text_of(call.fields, "topic")
        self._require(call, ResourceKind.TOPIC, topic, Action.GET)
        queues = [queue for queue, _ in self._administration().queues(topic)]
        self._later(call, lambda time_slice: self._stats_of_topic(call, queues, time_slice))

    async def _stats_of_topic(self, call: RemotingCall, queues: Iterable[QueueId], time_slice: TimeSlice) -> None:
        broker, rows = self._administration().facts.name, []
        for queue in queues:
            bounds = self._messages.bounds(queue)
            rows.append(
                (
                    queue_of(broker, queue),
                    {
                        "lastUpdateTimestamp": self._stored_ms(queue, bounds.maximum - 1),
                        "maxOffset": bounds.maximum,
                        "minOffset": bounds.minimum,
                    },
                )
            )
            await time_slice.pause()
        call.answer(body=b'{"offsetTable":' + keyed(rows) + b',"topicPutTps":0.0}')

    def _consume_stats(self, call: RemotingCall) -> None:
        """Answer with the progress of a group in one topic, or in all that it reads, its retry topic among them."""
        group, topic = text_of(call.fields, "consumerGroup"), call.fields.get("topic", "")
        self._require(call, ResourceKind.GROUP, group, Action.GET)
        self._later(call, lambda time_slice: self._stats_of_group(call, group, topic, time_slice))

    async def _stats_of_group(self, call: RemotingCall, group: str, topic: str, time_slice: TimeSlice) -> None:
        admin = self._administration()
        rows: list[tuple[Json, Json]] = []
        self._delivery.writer.write_now()
        names = [topic] if topic else [*self._offsets.topics_of(group, light_queues=False), retry_topic_name(group)]
        for name in dict.fromkeys(names):
            try:
                queues = admin.queues(name)
            except TopicNotFound:
                continue
            for queue, bounds in queues:
                await time_slice.pause()
                next_offset = self._delivery.next_offset(group, queue)
                if next_offset is None and name != retry_topic_name(group):
                    continue
                if len(rows) == QUEUES_MAX:
                    raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"more than {QUEUES_MAX} queues: ask by topic")
                pulled = bounds.minimum if next_offset is None else min(next_offset, bounds.maximum)
                first = self._delivery.first_in_flight(group, queue, QueueOffset(0))
                done = pulled if first is None else min(first, pulled)
                rows.append(
                    (
                        queue_of(admin.facts.name, queue),
                        {
                            "brokerOffset": bounds.maximum,
                            "consumerOffset": done,
                            "lastTimestamp": self._stored_ms(queue, done - 1),
                            "pullOffset": pulled,
                        },
                    )
                )
        call.answer(body=b'{"consumeTps":0.0,"offsetTable":' + keyed(rows) + b"}")

    def _readers(self, call: RemotingCall) -> None:
        topic = text_of(call.fields, "topic")
        self._require(call, ResourceKind.TOPIC, topic, Action.GET)
        groups = sorted(self._offsets.groups_of(topic))
        call.answer(body=orjson.dumps({"groupList": groups}))

    def _consumers(self, call: RemotingCall) -> None:
        """Answer with the remoting consumers of a group, and what they subscribe to."""
        group = text_of(call.fields, "consumerGroup")
        self._require(call, ResourceKind.GROUP, group, Action.GET)
        known = self._sessions.consumers(group)
        if known is None:
            raise RemotingRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group {group} is not online")
        heartbeat = known.heartbeat
        subscriptions = {
            topic: {
                "classFilterMode": False,
                "expressionType": each.expression_type,
                "subString": each.expression,
                "subVersion": each.version,
                "topic": topic,
            }
            for topic, each in heartbeat.subscriptions.items()
        }
        answer = {
            "connectionSet": connections(known.members),
            "consumeFromWhere": heartbeat.consume_from_where,
            "consumeType": heartbeat.consume_type,
            "messageModel": heartbeat.message_model,
            "subscriptionTable": subscriptions,
        }
        call.answer(body=orjson.dumps(answer))

    def _producers(self, call: RemotingCall) -> None:
        """Answer with the remoting producers of a group."""
        group = text_of(call.fields, "producerGroup")
        self._require(call, ResourceKind.CLUSTER, self._administration().facts.cluster, Action.GET)
        members = self._sessions.producers(group)
        if not members:
            raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"the producer group [{group}] not exist")
        call.answer(body=orjson.dumps({"connectionSet": connections(members)}))

    def _stored_ms(self, queue: QueueId, offset: int) -> int:
        """Return when the message at an offset of a queue was stored; 0 if it is gone or damaged."""
        if offset < 0:
            return 0
        entries = self._messages.entries(queue, QueueOffset(offset), 1)
        if not entries or entries[0].queue_offset != offset:
            return 0
        if entries[0].store_timestamp_ms is not None:
            return entries[0].store_timestamp_ms
        try:
            return self._messages.read(entries[0]).store_timestamp_ms
        except StoreDamaged:
            return 0

    # -- common parts

    def _require(self, call: RemotingCall, kind: ResourceKind, name: str, action: Action) -> None:
        self._edge.require(call, (Access(kind, name, action),))

    def _later(self, call: RemotingCall, work: Callable[[TimeSlice], Awaitable[None]]) -> None:
        """Answer a call by work that takes a time slice after another."""

        async def run() -> None:
            async with self._pacing.turn() as time_slice:
                await work(time_slice)

        self._edge.later(call, run())


def connections(members: Mapping[RemotingConnection, ClientInfo]) -> list[dict[str, Json]]:
    """Return the clients of a group as RocketMQ writes them."""
    return [
        {
            "clientAddr": connection.peer,
            "clientId": client.client_id,
            "language": client.language.name,
            "version": client.version,
        }
        for connection, client in members.items()
    ]


def _mixed(change: TopicChange) -> TopicChange:
    return TopicChange(
        type=TopicType.MIXED,
        read_queues=change.read_queues,
        write_queues=change.write_queues,
        permission=change.permission,
    )


def _type_of(attributes: str) -> TopicType | None:
    """Return the type in changes of attributes, `+message.type=FIFO,-other`; None without one."""
    for each in attributes.split(","):
        name, _, value = each.strip().removeprefix("+").partition("=")
        if name == TYPE_ATTRIBUTE:
            if value not in _TYPES:
                raise RemotingRefused(ResponseCode.INVALID_PARAMETER, f"{TYPE_ATTRIBUTE} {value[:32]!r} is unknown")
            return _TYPES[value]
    return None
