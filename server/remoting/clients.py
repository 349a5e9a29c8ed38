"""Heartbeats, consumer lists and queue locks: what clients tell of themselves, and what they ask about each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import orjson

from quarry_mq.protocol.names import RETRY_PREFIX, retry_topic_name
from quarry_mq.protocol.remoting.codes import CONSUME_PASSIVELY, CONSUME_TYPES, RequestCode, ResponseCode
from quarry_mq.server.delivery.dead_letters import make_internal_topic
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.filters import MessageFilter, SqlFilter, TagFilter
from quarry_mq.server.front.remoting import Handler, RemotingCall
from quarry_mq.server.metadata import Directory, pop_topics
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.sessions import (
    ClientInfo,
    Heartbeat,
    QueueKey,
    QueueLocks,
    RemotingSessions,
    Subscription,
)
from quarry_mq.server.remoting.wire import (
    Json,
    RemotingRefused,
    RoutedBroker,
    invalid,
    json_object,
    member_choice,
    member_flag,
    member_integer,
    member_objects,
    member_text,
    text_of,
)
from quarry_mq.server.rpc.access import join, read
from quarry_mq.store.errors import GroupNotFound, Invalid
from quarry_mq.store.metadata import Permission, TopicTable

NAME_MAX: Final = 255
"""Characters of a client's id and of other names. Longer names by which nothing is found are cut."""

SUBSCRIPTIONS_MAX: Final = 4_096
"""Topics that a group may subscribe to, as by gRPC."""

MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
STARTS: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
"""RocketMQ's enumerations in the order of their numbers."""

TAG: Final = "TAG"
SQL: Final = "SQL92"


def filter_of(expression: str, expression_type: str) -> MessageFilter:
    """Return the filter of a subscription; without an expression all messages match. Raises IllegalExpression."""
    match expression_type or TAG:
        case "TAG":
            return TagFilter.parse(expression or "*")
        case "SQL92":
            return SqlFilter.parse(expression)
    raise RemotingRefused(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        f"expression type {expression_type[:32]!r} is not supported: TAG and SQL92 are",
    )


class ClientService:
    """Serves what clients tell of themselves and ask about each other."""

    def __init__(
        self,
        edge: RemotingEdge,
        sessions: RemotingSessions,
        locks: QueueLocks,
        *,
        directory: Directory,
        topics: TopicTable,
        brokers: Callable[[RemotingCall], Sequence[RoutedBroker]],
    ) -> None:
        """`brokers` returns those that the client of a call is sent to."""
        self._edge = edge
        self._sessions = sessions
        self._locks = locks
        self._directory = directory
        self._topics = topics
        self._brokers = brokers

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        handler = self._edge.handler
        return {
            RequestCode.HEART_BEAT: handler(self._heartbeat),
            RequestCode.UNREGISTER_CLIENT: handler(self._unregister),
            RequestCode.CHECK_CLIENT_CONFIG: handler(self._check_config),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: handler(self._list_consumers),
            RequestCode.QUERY_ASSIGNMENT: handler(self._assign),
            RequestCode.LOCK_BATCH_QUEUES: handler(self._lock),
            RequestCode.UNLOCK_BATCH_QUEUES: handler(self._unlock),
        }

    def _heartbeat(self, call: RemotingCall) -> None:
        """Register the client in all groups that it names.

        A group that does not exist and may not be made is passed over, as by RocketMQ: the client's other groups go on.
        The answer says that the broker wants whole heartbeats: then no state of earlier ones is needed.
        """
        body = json_object(call.command.body)
        client_id = member_text(body, "clientID")
        if not 0 < len(client_id) <= NAME_MAX:
            raise invalid(f"clientID in the body has {len(client_id)} characters; 1 to {NAME_MAX} are allowed")
        client = self._sessions.info(client_id, call.command.language, call.command.version)
        keeps_subscriptions = member_flag(body, "withoutSub", default=False)
        consumers = [
            (member_text(each, "groupName"), None if keeps_subscriptions else _heartbeat_of(each))
            for each in member_objects(body, "consumerDataSet")
        ]
        for group, heartbeat in consumers:
            topics = () if heartbeat is None else heartbeat.subscriptions
            own = [topic for topic in topics if not topic.startswith(RETRY_PREFIX)]
            self._edge.require(call, join(group), *(read(topic, group) for topic in own))
        for group, heartbeat in consumers:
            self._register(call, group, client, heartbeat)
        for each in member_objects(body, "producerDataSet"):
            if group := member_text(each, "groupName")[:NAME_MAX]:
                self._sessions.register_producer(call.connection, group, client)
        call.answer(fields={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"})

    def _register(self, call: RemotingCall, group: str, client: ClientInfo, heartbeat: Heartbeat | None) -> None:
        try:
            self._directory.group_to_receive(group, self._edge.user)
        except GroupNotFound:
            return
        if heartbeat is not None and heartbeat.message_model != "BROADCASTING":
            make_internal_topic(self._topics, retry_topic_name(group))
        self._sessions.register_consumer(call.connection, group, client, heartbeat)

    def _unregister(self, call: RemotingCall) -> None:
        producer_group, consumer_group = call.fields.get("producerGroup"), call.fields.get("consumerGroup")
        if producer_group:
            self._sessions.unregister_producer(call.connection, producer_group)
        if consumer_group:
            self._edge.require(call, join(consumer_group))
            self._sessions.unregister_consumer(call.connection, consumer_group)
        call.answer()

    def _check_config(self, call: RemotingCall) -> None:
        """Check the filter of a consumer that is about to start."""
        subscription = json_object(call.command.body).get("subscriptionData")
        if isinstance(subscription, dict):
            try:
                filter_of(member_text(subscription, "subString"), member_text(subscription, "expressionType"))
            except Invalid as error:
                raise RemotingRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        call.answer()

    def _list_consumers(self, call: RemotingCall) -> None:
        group = text_of(call.fields, "consumerGroup")
        self._edge.require(call, join(group))
        known = self._sessions.consumers(group)
        if known is None:
            raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        call.answer(body=orjson.dumps({"consumerIdList": known.client_ids}))

    def _assign(self, call: RemotingCall) -> None:
        """Answer with what a consumer is to read of a topic: its share of the queues, or for POP all brokers.

        An answer without a list lets the consumer go on as before.
        """
        body = json_object(call.command.body)
        group, topic_name = member_text(body, "consumerGroup"), member_text(body, "topic")
        if not group or not topic_name:
            raise invalid("consumerGroup or topic in the body is missing")
        is_retry = topic_name.startswith(RETRY_PREFIX)
        self._edge.require(call, join(group), *([] if is_retry else [read(topic_name, group)]))
        topic, known = self._topics.get(topic_name), self._sessions.consumers(group)
        is_broadcasting = member_choice(body, "messageModel", MESSAGE_MODELS, "") == "BROADCASTING"
        share = SHARES.get(member_text(body, "strategyName", "AVG"))
        if topic is None or share is None or (known is None and not is_broadcasting):
            call.answer(body=b"{}")
            return
        brokers = sorted(each.name for each in self._brokers(call))
        count = topic.read_queues if Permission.READ in topic.permission else 0
        queues, mode = [(name, number) for name in brokers for number in range(count)], "PULL"
        if known is not None and not is_broadcasting:
            if topic_name in pop_topics(self._directory.find_group(group)):
                queues, mode = [(name, ANY_QUEUE) for name in brokers if count], "POP"
            else:
                queues = share(queues, known.client_ids, member_text(body, "clientId"))
        found = [
            {"messageQueue": {"brokerName": name, "queueId": number, "topic": topic_name}, "mode": mode}
            for name, number in queues
        ]
        call.answer(body=orjson.dumps({"messageQueueAssignments": found}))

    def _lock(self, call: RemotingCall) -> None:
        group, client_id, queues, names = self._locked_queues(call)
        owned = self._locks.lock(group, client_id, queues)
        found = [{"brokerName": names[each], "queueId": each[1], "topic": each[0]} for each in owned]
        call.answer(body=orjson.dumps({"lockOKMQSet": found}))

    def _unlock(self, call: RemotingCall) -> None:
        group, client_id, queues, _ = self._locked_queues(call)
        self._locks.unlock(group, client_id, queues)
        call.answer()

    def _locked_queues(self, call: RemotingCall) -> tuple[str, str, list[QueueKey], dict[QueueKey, str]]:
        body = json_object(call.command.body)
        group, client_id = member_text(body, "consumerGroup"), member_text(body, "clientId")
        if not 0 < len(group) <= NAME_MAX or not 0 < len(client_id) <= NAME_MAX:
            raise invalid(f"consumerGroup and clientId in the body have 1 to {NAME_MAX} characters")
        self._edge.require(call, join(group))
        names = {
            (member_text(each, "topic"), member_integer(each, "queueId")): member_text(each, "brokerName")
            for each in member_objects(body, "mqSet")
        }
        if any(len(topic) > NAME_MAX for topic, _ in names):
            raise invalid(f"a topic in the body has more than {NAME_MAX} characters")
        return group, client_id, list(names), names


BrokerQueue = tuple[str, int]
"""The name of a broker and the number of a queue."""

ANY_QUEUE: Final = -1
"""Stands for any queue of a broker."""


def consecutive_share(queues: Sequence[BrokerQueue], client_ids: Sequence[str], client_id: str) -> list[BrokerQueue]:
    """Return the queues of one client if each gets a part without gaps; the first clients get one more.

    If there are more clients than queues, the last ones get none.
    """
    if client_id not in client_ids:
        return []
    at, (each, more) = client_ids.index(client_id), divmod(len(queues), len(client_ids))
    start = at * each + min(at, more)
    return list(queues[start : start + each + (at < more)])


def circular_share(queues: Sequence[BrokerQueue], client_ids: Sequence[str], client_id: str) -> list[BrokerQueue]:
    """Return the queues of one client if they are dealt out one by one."""
    return list(queues[client_ids.index(client_id) :: len(client_ids)]) if client_id in client_ids else []


SHARES: Final = {"AVG": consecutive_share, "AVG_BY_CIRCLE": circular_share}
"""Rules to share queues out, by RocketMQ's names. Clients with another rule have to do it themselves."""


def _heartbeat_of(members: dict[str, Json]) -> Heartbeat:
    """Return what a client says of one of its consumer groups. Raises RemotingRefused, OverLimit."""
    subscriptions: dict[str, Subscription] = {}
    for each in member_objects(members, "subscriptionDataSet"):
        topic = member_text(each, "topic")
        subscriptions[topic] = Subscription(
            member_text(each, "subString", "*"),
            member_text(each, "expressionType", TAG),
            member_integer(each, "subVersion"),
        )
    if len(subscriptions) > SUBSCRIPTIONS_MAX:
        raise OverLimit("client_topics", f"{len(subscriptions)} subscriptions; {SUBSCRIPTIONS_MAX} are allowed")
    return Heartbeat(
        member_choice(members, "consumeType", CONSUME_TYPES, CONSUME_PASSIVELY)[:NAME_MAX],
        member_choice(members, "messageModel", MESSAGE_MODELS, "CLUSTERING")[:NAME_MAX],
        member_choice(members, "consumeFromWhere", STARTS, "CONSUME_FROM_LAST_OFFSET")[:NAME_MAX],
        subscriptions,
    )
