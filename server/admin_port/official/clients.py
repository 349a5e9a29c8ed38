"""The official calls about connected clients and their subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.remoting.codes import CONSUME_ACTIVELY, CONSUME_PASSIVELY
from quarry_mq.protocol.times import fill_ms
from quarry_mq.server.addresses import host_of
from quarry_mq.server.admin_port.official.edge import ROWS_MAX, Names, cut
from quarry_mq.server.clients import Client, ClientRegistry
from quarry_mq.server.delivery import StateWriter
from quarry_mq.server.lag.group_progress import Budget, GroupProgress
from quarry_mq.server.tasks import Pacing, TimeSlice
from quarry_mq.server.wire.settings import LITE_CONSUMERS, ClientKind, Expression
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.metadata import ConsumerOffsetTable, Group
from quarry_mq.store.metadata.lite import ALL_OF_THEM, LiteGroup, LiteSubscriptionTable, is_lite_topic_name

FIELD: Final = "liteTopic"


class LiteReaders:
    """Reads the stored subscriptions of one client at a time: all clients of a group may subscribe to a lite topic."""

    def __init__(self, table: LiteSubscriptionTable, writer: StateWriter) -> None:
        self._table = table
        self._writer = writer

    def of(self, group: Group, topic: str | None, lite_topic: str) -> Callable[[Client], bool]:
        """Return a test whether a client of the group is subscribed to the lite topic, by name or with all of them.

        `topic` is the topic to which the lite topic is said to belong. Raises Refused.
        """
        if not is_lite_topic_name(lite_topic):
            raise Refused(
                definition.ILLEGAL_LITE_TOPIC, f"{FIELD}: a lite topic has letters, digits, underscores or hyphens"
            )
        terms = LiteGroup.of(group)
        if terms is None:
            reason = f"group: {group.name} is not bound to a topic, so it gets no lite topics"
            raise Refused(definition.ILLEGAL_CONSUMER_GROUP, reason)
        if topic not in (None, terms.bind_topic):
            raise Refused(
                definition.ILLEGAL_TOPIC, f"topic: group {group.name} is bound to topic {terms.bind_topic}, not {topic}"
            )
        names = [lite_topic]
        if terms.wildcard is not None and lite_topic.startswith(terms.wildcard):
            names.append(ALL_OF_THEM)
        self._writer.write_now()  # from here on the rows are complete
        return lambda client: any(self._table.is_subscribed(group.name, client.client_id, each) for each in names)


log = structlog.get_logger(__name__)

_CONSUME_TYPES: Final = {
    ClientKind.PUSH_CONSUMER: CONSUME_PASSIVELY,
    ClientKind.LITE_PUSH_CONSUMER: CONSUME_PASSIVELY,
}


@dataclass(slots=True)
class _Subscription:
    """A group's subscription to a topic, as its connected consumers declare it.

    `newest` is the consumer whose settings came last.
    """

    newest: Client | None = None
    expression: Expression | None = None
    expressions: set[Expression | None] = field(default_factory=set)


class ClientCalls:
    """Answers calls about the clients that are connected, without those that are considered lost but still kept."""

    def __init__(
        self,
        clients: ClientRegistry,
        names: Names,
        offsets: ConsumerOffsetTable,
        progress: GroupProgress,
        pacing: Pacing,
        *,
        lite_readers: LiteReaders,
        delete: Callable[[str, str], None],
    ) -> None:
        """`delete` removes a group's progress in a topic, durably."""
        self._clients = clients
        self._names = names
        self._offsets = offsets
        self._progress = progress
        self._pacing = pacing
        self._lite_readers = lite_readers
        self._delete = delete

    async def list_consumer_connection(
        self, request: pb.ListConsumerConnectionRequest
    ) -> pb.ListConsumerConnectionResponse:
        """List the consumers of a group; only those that subscribe to a topic or lite topic, if one is given.

        The lite topic is one of the group's parent topic.
        """
        group = self._group(request.group)
        topic = self._names.topic(request.topic).name if request.HasField("topic") else None
        if request.HasField("liteTopic"):
            is_wanted = self._lite_readers.of(group, topic, request.liteTopic)
        else:
            is_wanted = partial(_declares, topic)
        answer = pb.ListConsumerConnectionResponse()
        async with self._pacing.turn() as time_slice:
            for client in self._clients.consumers_of(group.name):
                await time_slice.pause()
                if client.is_lost or not is_wanted(client):
                    continue
                if len(answer.client_info) == ROWS_MAX:
                    cut(answer, "clients")
                    break
                _fill_client(answer.client_info.add(), client)
        return answer

    async def list_subscription(self, request: pb.ListSubscriptionRequest) -> pb.ListSubscriptionResponse:
        """List the subscriptions of a group, to a topic, or of one group to one topic: online or not."""
        if not request.HasField("topic") and not request.HasField("group"):
            raise Refused(definition.BAD_REQUEST, "topic, group: one of the two must be given")
        topic = self._names.topic(request.topic).name if request.HasField("topic") else None
        group = self._group(request.group).name if request.HasField("group") else None
        answer = pb.ListSubscriptionResponse()
        async with self._pacing.turn() as time_slice:
            found = await self._online(group, topic, time_slice)
            await self._add_offline(found, group, topic, time_slice)
            for (group_name, topic_name), subscription in sorted(found.items()):
                await time_slice.pause()
                if len(answer.subscription_info) == ROWS_MAX:
                    cut(answer, "subscriptions")
                    break
                info = answer.subscription_info.add()
                _fill_names(info, group_name, topic_name)
                newest = subscription.newest
                # consistency is judged among the connected consumers
                info.subscription_consistency = len(subscription.expressions) <= 1
                if newest is None:
                    continue
                info.online = True
                _fill_subscription(info, newest, subscription.expression)
        return answer

    async def delete_subscription(self, request: pb.DeleteSubscriptionRequest) -> pb.DeleteSubscriptionResponse:
        """Delete a subscription without connected consumers.

        The expression is not looked at: a group has one progress in a topic.
        """
        topic, group = self._names.topic(request.topic).name, self._group(request.group).name
        async with self._pacing.turn() as time_slice:
            if await self._online(group, topic, time_slice):
                raise Refused(definition.PRECONDITION_FAILED, f"group {group} has connected consumers of topic {topic}")
        if not self._progress.reads(group, topic):
            raise Refused(definition.OFFSET_NOT_FOUND, f"group {group} has never read topic {topic}")
        self._delete(group, topic)
        log.info("subscription deleted", group=group, topic=topic)
        return pb.DeleteSubscriptionResponse()

    async def _online(
        self, group: str | None, topic: str | None, time_slice: TimeSlice
    ) -> dict[tuple[str, str], _Subscription]:
        found: dict[tuple[str, str], _Subscription] = {}
        for client in self._consumers(group):
            await time_slice.pause()
            for each, expression in _wanted(client, topic):
                key = client.settings.group or "", each
                if len(found) > ROWS_MAX and key not in found:
                    continue  # there are more than an answer has already
                subscription = found.setdefault(key, _Subscription())
                subscription.expressions.add(expression)
                if subscription.newest is None or subscription.newest.settings_ms <= client.settings_ms:
                    subscription.newest, subscription.expression = client, expression
        return found

    async def _add_offline(
        self, found: dict[tuple[str, str], _Subscription], group: str | None, topic: str | None, time_slice: TimeSlice
    ) -> None:
        """Add the subscriptions without connected consumers, of which only the progress is stored."""
        pairs: list[tuple[str, str]] = []
        if group is not None and topic is not None:
            pairs = [(group, topic)] if self._progress.reads(group, topic) else []
        elif group is not None:
            read = await self._progress.read_topics(group, time_slice, Budget(), light_queues=False)
            pairs = [(group, each) for each in read.topics]
        elif topic is not None:
            for reader in self._offsets.readers_of(topic):
                await time_slice.pause()
                if len(pairs) > ROWS_MAX:
                    break
                if self._progress.reads(reader, topic):
                    pairs.append((reader, topic))
        for pair in pairs:
            found.setdefault(pair, _Subscription())

    async def describe_subscription(self, request: pb.DescribeSubscriptionRequest) -> pb.DescribeSubscriptionResponse:
        """Return a row for each consumer and topic, and one without a topic for a consumer that has declared none."""
        topic = self._names.topic(request.topic).name if request.HasField("topic") else None
        group = self._group(request.group).name if request.HasField("group") else None
        answer = pb.DescribeSubscriptionResponse()
        rows = answer.client_subscription_info
        async with self._pacing.turn() as time_slice:
            for client in self._consumers(group):
                await time_slice.pause()
                for each, expression in _wanted(client, topic) or ([] if topic is not None else [("", None)]):
                    if len(rows) == ROWS_MAX:
                        cut(answer, "subscriptions of clients")
                        return answer
                    row = rows.add()
                    _fill_client(row.client_info, client)
                    _fill_names(row.subscription_info, client.settings.group or "", each)
                    row.subscription_info.online = True
                    _fill_subscription(row.subscription_info, client, expression)
        return answer

    async def get_consumer_running_info(
        self, request: pb.GetConsumerRunningInfoRequest
    ) -> pb.GetConsumerRunningInfoResponse:
        """Return what the broker knows of a client. Fields that only the client could fill stay empty."""
        group = self._group(request.group)
        client = self.consumer(request.client_id, group.name)
        answer = pb.GetConsumerRunningInfoResponse()
        info = answer.consumer_running_info
        info.properties["PROP_CLIENT_VERSION"] = f"{client.settings.language} {client.settings.version}".strip()
        info.properties["PROP_CONSUME_TYPE"] = _CONSUME_TYPES.get(client.settings.kind, CONSUME_ACTIVELY)
        info.properties["PROP_CONSUMEORDERLY"] = str(group.fifo).lower()
        for topic, expression in _wanted(client, None):
            # a topic whose expression is too long to be kept is there without one
            info.subscriptions[topic].CopyFrom(_filter(expression) or definition.FilterExpression())
        return answer

    def consumer(self, client_id: str, group: str) -> Client:
        """Return a connected consumer of the group. Raises Refused."""
        if not client_id:
            raise Refused(definition.BAD_REQUEST, "client_id: must be given")
        client = self._clients.get(client_id)
        if client is None or client.is_lost or client.settings.group != group:
            raise Refused(definition.NOT_FOUND, f"client_id: group {group} has no such consumer on this broker")
        return client

    def _group(self, named: definition.Resource) -> Group:
        return self._names.group(named, is_connected=bool(self._clients.consumers_of(named.name)))

    def _consumers(self, group: str | None) -> Iterator[Client]:
        """Return the connected consumers of one group, or of all."""
        clients = iter(self._clients) if group is None else iter(self._clients.consumers_of(group))
        return (client for client in clients if client.settings.group is not None and not client.is_lost)


def _declares(topic: str | None, client: Client) -> bool:
    return topic is None or topic in client.settings.topics


def _wanted(client: Client, topic: str | None) -> Sequence[tuple[str, Expression | None]]:
    """Return the client's subscriptions, or only that to one topic if it is given."""
    wanted = zip(client.settings.topics, client.settings.expressions, strict=True)
    return [pair for pair in wanted if topic is None or pair[0] == topic]


def _filter(expression: Expression | None) -> definition.FilterExpression | None:
    if expression is None:
        return None
    kind = definition.SQL if expression.is_sql else definition.TAG
    return definition.FilterExpression(type=kind, expression=expression.text)


def _model(client: Client) -> pb.MessageModel:
    return pb.LITE_SELECTIVE if client.settings.kind in LITE_CONSUMERS else pb.CLUSTERING


def _fill_client(info: pb.ClientInfo, client: Client) -> None:
    info.client_id = client.client_id
    info.version = client.settings.version
    info.language = client.settings.language
    info.hostname = client.settings.hostname
    info.egress_ip = host_of(client.peer)
    info.message_model = _model(client)


def _fill_names(info: pb.SubscriptionInfo, group: str, topic: str) -> None:
    info.group.name = group
    if topic:
        info.topic.name = topic


def _fill_subscription(info: pb.SubscriptionInfo, client: Client, expression: Expression | None) -> None:
    """Fill in the subscription as one consumer has declared it."""
    wanted = _filter(expression)
    if wanted is not None:
        info.expression.CopyFrom(wanted)
    fill_ms(info.last_update_timestamp, client.settings_ms)
    info.message_model = _model(client)
