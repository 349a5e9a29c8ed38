"""Progress by remoting: offsets of topics, progress of groups, who is connected, entries of queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import orjson

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.names import retry_topic_name
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.server.admin.administration import Administration
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.front.remoting import Handler, RemotingCall, RemotingConnection
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.sessions import ClientInfo, ConsumerGroup, RemotingSessions, Subscription
from quarry_mq.server.remoting.wire import INT32, Json, RemotingRefused, integer_of, is_true, keyed, queue_of, text_of
from quarry_mq.server.security.credentials import Access
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.errors import StoreDamaged, TopicNotFound
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.metadata import ConsumerOffsetTable
from quarry_mq.store.security.model import Action, ResourceKind

QUEUES_MAX: Final = 100_000
"""Queues in one answer: more are refused, since the protocol has no pages."""

ENTRIES_MAX: Final = 1_024
"""Entries of a queue in one answer."""


class _QueueProgress(NamedTuple):
    """The progress of a group in a queue: all below `done` is consumed, and all below `pulled` was delivered."""

    queue: QueueId
    minimum: int
    maximum: int
    done: int
    pulled: int


class RemotingProgress:
    """Serves requests for progress."""

    def __init__(
        self,
        edge: RemotingEdge,
        administration: Callable[[], Administration],
        *,
        messages: MessageStore,
        offsets: ConsumerOffsetTable,
        delivery: Delivery,
        sessions: RemotingSessions,
        clock: Clock,
    ) -> None:
        """`administration` returns the broker's administration, which is there once the broker listens."""
        self._edge = edge
        self._administration = administration
        self._messages = messages
        self._offsets = offsets
        self._delivery = delivery
        self._sessions = sessions
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        handler = self._edge.operators_handler
        return {
            RequestCode.GET_TOPIC_STATS: handler(self._topic_stats),
            RequestCode.GET_CONSUME_STATS: handler(self._consume_stats),
            RequestCode.GET_BROKER_CONSUME_STATS: handler(self._all_consume_stats),
            RequestCode.QUERY_CONSUME_TIME_SPAN: handler(self._time_span),
            RequestCode.QUERY_CONSUME_QUEUE: handler(self._queue_entries),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: handler(self._readers),
            RequestCode.QUERY_TOPICS_BY_CONSUMER: handler(self._topics_read),
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: handler(self._subscription),
            RequestCode.GET_CONSUMER_CONNECTIONS: handler(self._consumers),
            RequestCode.GET_PRODUCER_CONNECTIONS: handler(self._producers),
            RequestCode.GET_ALL_PRODUCERS: handler(self._all_producers),
        }

    # -- offsets and progress

    def _topic_stats(self, call: RemotingCall) -> None:
        topic = text_of(call.fields, "topic")
        self._require(call, ResourceKind.TOPIC, topic)
        queues = [queue for queue, _ in self._administration().queues(topic)]
        self._edge.paced(call, lambda time_slice: self._stats_of_topic(call, queues, time_slice))

    async def _stats_of_topic(self, call: RemotingCall, queues: Iterable[QueueId], time_slice: TimeSlice) -> None:
        rows: list[tuple[Json, Json]] = []
        for queue in queues:
            bounds = self._messages.bounds(queue)
            row = {
                "lastUpdateTimestamp": self._stored_ms(queue, bounds.maximum - 1),
                "maxOffset": bounds.maximum,
                "minOffset": bounds.minimum,
            }
            rows.append((self._named(queue), row))
            await time_slice.pause()
        call.answer(body=b'{"offsetTable":' + keyed(rows) + b',"topicPutTps":0.0}')

    def _consume_stats(self, call: RemotingCall) -> None:
        """Answer with the progress of a group in some topics, or in all that it reads, its retry topic among them."""
        group = text_of(call.fields, "consumerGroup")
        self._require(call, ResourceKind.GROUP, group)
        named = [call.fields.get("topic", ""), *call.fields.get("topicList", "").split(";")]
        topics = [each for each in named if each]

        async def answer(time_slice: TimeSlice) -> None:
            stats, _, _ = await self._stats_of_group(group, topics, time_slice)
            call.answer(body=stats)

        self._edge.paced(call, answer)

    async def _stats_of_group(self, group: str, topics: Iterable[str], time_slice: TimeSlice) -> tuple[bytes, int, int]:
        """Return the progress of a group as RocketMQ writes it, its lag, and its messages in flight."""
        rows: list[tuple[Json, Json]] = []
        lag = in_flight = 0
        for each in self._progress(group, topics):
            await time_slice.pause()
            if each is None:
                continue
            if len(rows) == QUEUES_MAX:
                raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"more than {QUEUES_MAX} queues: ask by topic")
            row = {
                "brokerOffset": each.maximum,
                "consumerOffset": each.done,
                "lastTimestamp": self._stored_ms(each.queue, each.done - 1),
                "pullOffset": each.pulled,
            }
            rows.append((self._named(each.queue), row))
            lag += each.maximum - each.done
            in_flight += each.pulled - each.done
        return b'{"consumeTps":0.0,"offsetTable":' + keyed(rows) + b"}", lag, in_flight

    def _progress(
        self, group: str, topics: Iterable[str], *, with_unread: bool = False
    ) -> Iterator[_QueueProgress | None]:
        """Yield the progress in all queues of the topics, or of all topics that the group reads.

        A queue that the group has never read is None, unless it is of the retry topic, which RocketMQ's tools look for,
        or `with_unread`.
        """
        self._delivery.writer.write_now()
        retry_topic = retry_topic_name(group)
        names = topics or [*self._offsets.topics_of(group, light_queues=False), retry_topic]
        for name in dict.fromkeys(names):
            try:
                queues = self._administration().queues(name)
            except TopicNotFound:
                continue
            for queue, bounds in queues:
                next_offset = self._delivery.next_offset(group, queue)
                if next_offset is None and name != retry_topic and not with_unread:
                    yield None
                    continue
                pulled = bounds.minimum if next_offset is None else min(next_offset, bounds.maximum)
                first = self._delivery.first_in_flight(group, queue, QueueOffset(0))
                done = pulled if first is None else min(first, pulled)
                yield _QueueProgress(queue, bounds.minimum, bounds.maximum, done, pulled)

    def _all_consume_stats(self, call: RemotingCall) -> None:
        """Answer with the progress of all groups. No topic is `order` here: those that are have no groups."""
        self._require(call, ResourceKind.GROUP, "*")
        is_ordered = is_true(call.fields, "isOrder")

        async def answer(time_slice: TimeSlice) -> None:
            found: list[bytes] = []
            lag = in_flight = 0
            groups = [] if is_ordered else list(self._administration().groups())
            for group in groups:
                stats, of_group, in_flight_of_group = await self._stats_of_group(group.name, (), time_slice)
                lag, in_flight = lag + of_group, in_flight + in_flight_of_group
                found.append(b"{" + orjson.dumps(group.name) + b":[" + stats + b"]}")
            heads = f'"totalDiff":{lag},"totalInflightDiff":{in_flight},"consumeStatsList":['
            own = orjson.dumps(call.connection.local)
            call.answer(body=b'{"brokerAddr":' + own + b"," + heads.encode() + b",".join(found) + b"]}")

        self._edge.paced(call, answer)

    def _time_span(self, call: RemotingCall) -> None:
        """Answer with the times of each queue's first and last message, and of the one that the group consumed last."""
        topic, group = text_of(call.fields, "topic"), text_of(call.fields, "group")
        self._require(call, ResourceKind.TOPIC, topic)
        self._require(call, ResourceKind.GROUP, group)
        self._administration().topic(topic)

        async def answer(time_slice: TimeSlice) -> None:
            spans = []
            for each in self._progress(group, [topic], with_unread=True):
                await time_slice.pause()
                if each is None or each.minimum == each.maximum:
                    continue
                first_ms = self._stored_ms(each.queue, each.minimum)
                waits_since_ms = self._stored_ms(each.queue, each.done) if each.done < each.maximum else 0
                spans.append(
                    {
                        "consumeTimeStamp": self._stored_ms(each.queue, each.done - 1) or first_ms,
                        "delayTime": max(0, self._clock.wall_ms() - waits_since_ms) if waits_since_ms else 0,
                        "maxTimeStamp": self._stored_ms(each.queue, each.maximum - 1),
                        "messageQueue": self._named(each.queue),
                        "minTimeStamp": first_ms,
                    }
                )
            call.answer(body=orjson.dumps({"consumeTimeSpanSet": spans}))

        self._edge.paced(call, answer)

    def _queue_entries(self, call: RemotingCall) -> None:
        """Answer with entries of a consume queue, and with the subscription of a group if one is named."""
        fields = call.fields
        topic, number = text_of(fields, "topic"), integer_of(fields, "queueId", within=INT32)
        self._require(call, ResourceKind.TOPIC, topic)
        bounds = next(
            (bounds for queue, bounds in self._administration().queues(topic) if queue.number == number), None
        )
        if bounds is None:
            raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"topic {topic} has no queue {number}")
        count = min(max(integer_of(fields, "count", within=INT32), 0), ENTRIES_MAX)
        start = QueueOffset(max(integer_of(fields, "index"), bounds.minimum))
        answer: dict[str, Json] = {
            "maxQueueIndex": bounds.maximum,
            "minQueueIndex": bounds.minimum,
            "queueData": [
                {
                    "eval": False,
                    "physicOffset": each.physical_offset,
                    "physicSize": each.size,
                    "tagsCode": each.tags_code,
                }
                for each in self._messages.entries(QueueId(topic, number), start, count)
            ],
        }
        known = self._sessions.consumers(fields.get("consumerGroup", ""))
        subscription = None if known is None else known.heartbeat.subscriptions.get(topic)
        if subscription is not None:
            answer["subscriptionData"] = _subscription_data(topic, subscription)
        call.answer(body=orjson.dumps(answer))

    # -- who reads what

    def _readers(self, call: RemotingCall) -> None:
        topic = text_of(call.fields, "topic")
        self._require(call, ResourceKind.TOPIC, topic)
        groups = {*self._offsets.groups_of(topic), *self._sessions.groups_of(topic)}
        call.answer(body=orjson.dumps({"groupList": sorted(groups)}))

    def _topics_read(self, call: RemotingCall) -> None:
        group = text_of(call.fields, "group")
        self._require(call, ResourceKind.GROUP, group)
        topics = dict.fromkeys(self._offsets.topics_of(group, light_queues=False))
        call.answer(body=orjson.dumps({"topicList": list(topics)}))

    def _subscription(self, call: RemotingCall) -> None:
        group, topic = text_of(call.fields, "group"), text_of(call.fields, "topic")
        self._require(call, ResourceKind.GROUP, group)
        subscription = self._online(group).heartbeat.subscriptions.get(topic)
        data = None if subscription is None else _subscription_data(topic, subscription)
        call.answer(body=orjson.dumps({"group": group, "subscriptionData": data, "topic": topic}))

    # -- who is connected

    def _consumers(self, call: RemotingCall) -> None:
        """Answer with the remoting consumers of a group, and what they subscribe to."""
        group = text_of(call.fields, "consumerGroup")
        self._require(call, ResourceKind.GROUP, group)
        known = self._online(group)
        heartbeat = known.heartbeat
        answer = {
            "connectionSet": _connections(known.members),
            "consumeFromWhere": heartbeat.consume_from_where,
            "consumeType": heartbeat.consume_type,
            "messageModel": heartbeat.message_model,
            "subscriptionTable": {
                topic: _subscription_data(topic, each) for topic, each in heartbeat.subscriptions.items()
            },
        }
        call.answer(body=orjson.dumps(answer))

    def _producers(self, call: RemotingCall) -> None:
        """Answer with the remoting producers of a group."""
        group = text_of(call.fields, "producerGroup")
        self._require_cluster(call)
        members = self._sessions.producers(group)
        if not members:
            raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"the producer group [{group}] not exist")
        call.answer(body=orjson.dumps({"connectionSet": _connections(members)}))

    def _all_producers(self, call: RemotingCall) -> None:
        self._require_cluster(call)
        groups: dict[str, list[Json]] = {}
        for each in self._sessions.listed():
            if each.is_producer:
                row = {
                    "clientId": each.client.client_id,
                    "language": each.client.language.name,
                    "lastUpdateTimestamp": each.client.seen_ms,
                    "remoteIP": each.peer,
                    "version": each.client.version,
                }
                groups.setdefault(each.group, []).append(row)
        call.answer(body=orjson.dumps({"data": groups}))

    # -- common parts

    def _online(self, group: str) -> ConsumerGroup:
        known = self._sessions.consumers(group)
        if known is None:
            raise RemotingRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group {group} is not online")
        return known

    def _named(self, queue: QueueId) -> Json:
        return queue_of(self._administration().facts.name, queue)

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

    def _require(self, call: RemotingCall, kind: ResourceKind, name: str) -> None:
        self._edge.require(call, (Access(kind, name, Action.GET),))

    def _require_cluster(self, call: RemotingCall) -> None:
        self._require(call, ResourceKind.CLUSTER, self._administration().facts.cluster)


def _connections(members: Mapping[RemotingConnection, ClientInfo]) -> list[dict[str, Json]]:
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


def _subscription_data(topic: str, subscription: Subscription) -> dict[str, Json]:
    return {
        "classFilterMode": False,
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "topic": topic,
    }
