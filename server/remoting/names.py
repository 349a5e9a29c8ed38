"""The role of the name server: which topics there are, and where.

Every listener answers these requests, too: the codes of name servers and of brokers do not overlap. So a client whose
list of name servers names this broker needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Final

import orjson

from quarry_mq.protocol.names import (
    DEFAULT_TOPIC,
    OPEN_TOPICS,
    RETRY_PREFIX,
    is_system_topic,
    reply_topic_name,
    retry_topic_name,
)
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.server.addresses import Address
from quarry_mq.server.cluster.membership import Members, MemberState
from quarry_mq.server.errors import NoSuchMember
from quarry_mq.server.front.remoting import Handler, RemotingCall
from quarry_mq.server.metadata import Directory
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.wire import (
    INHERIT,
    RemotingRefused,
    RoutedBroker,
    broker_topic,
    cluster_info,
    text_of,
    topic_route,
)
from quarry_mq.server.routing import BrokerIdentity
from quarry_mq.server.rpc.access import join, publish, read
from quarry_mq.server.security.credentials import Access
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.errors import Forbidden, Invalid
from quarry_mq.store.metadata import GroupTable, Topic, TopicTable, check_group_name
from quarry_mq.store.metadata.topics import group_topic
from quarry_mq.store.security.model import Action, ResourceKind

TOPICS_LISTED_MAX: Final = 200_000
"""Topics in one list: RocketMQ has no pages, and this many fit into a frame."""

_FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class NameService:
    """Answers requests for routes, brokers and lists of topics."""

    def __init__(
        self,
        edge: RemotingEdge,
        directory: Directory,
        *,
        topics: TopicTable,
        groups: GroupTable,
        members: Members | None,
        identity: BrokerIdentity,
        settings: BrokerSettings,
    ) -> None:
        """`members` are those of the cluster; None without one. `identity` is what clients by gRPC are told."""
        self._members = members
        self._identity = identity
        self._groups = groups
        self._edge = edge
        self._directory = directory
        self._topics = topics
        self._ports: Mapping[str, int] = {}
        self.configure(settings)

    def listens_at(self, listening: Mapping[str, str]) -> None:
        """Note the addresses of the ports, by the names of their settings."""
        self._ports = {name: Address.parse(address).port for name, address in listening.items()}

    def configure(self, settings: BrokerSettings) -> None:
        """Apply changed settings from now on."""
        self._settings = settings

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        handler, operators = self._edge.handler, self._edge.operators_handler
        return {
            RequestCode.GET_ROUTE_BY_TOPIC: handler(self._route),
            RequestCode.GET_CLUSTER_INFO: handler(self._cluster_info),
            RequestCode.GET_ALL_TOPICS_FROM_NAME_SERVER: handler(self._list_topics),
            RequestCode.GET_TOPICS_BY_CLUSTER: handler(self._list_topics_of_cluster),
            RequestCode.GET_SYSTEM_TOPICS_FROM_NAME_SERVER: handler(self._list_system_topics),
            RequestCode.GET_SYSTEM_TOPICS_FROM_BROKER: handler(self._list_system_topics),
            RequestCode.DELETE_TOPIC_IN_NAME_SERVER: handler(self._nothing_to_do),
            RequestCode.WIPE_WRITE_PERMISSION_OF_BROKER: operators(self._wipe_write_permission),
            RequestCode.ADD_WRITE_PERMISSION_OF_BROKER: operators(self._add_write_permission),
            RequestCode.PUT_KV_CONFIG: handler(self._refuse_config),
            RequestCode.GET_KV_CONFIG: handler(self._no_config),
            RequestCode.DELETE_KV_CONFIG: handler(self._nothing_to_do),
            RequestCode.GET_KV_LIST_BY_NAMESPACE: handler(self._no_config),
            RequestCode.UPDATE_NAME_SERVER_CONFIG: handler(self._refuse_config),
            RequestCode.GET_NAME_SERVER_CONFIG: handler(self._config),
        }

    def brokers(self, call: RemotingCall) -> list[RoutedBroker]:
        """Return this broker and all members of its cluster that can be reached, for the client of a call."""
        broker, members = self._settings.broker, self._members
        if members is None:
            return [RoutedBroker(broker.name, broker.cluster, self.address(call))]
        brokers = []
        for member in filter(None, (members.own, *members.routed())):
            # all members serve this protocol where they serve gRPC, and each names the same addresses for a broker
            reached_at = member.advertised_to(is_secure=call.connection.is_secure)
            if reached_at is not None:
                limit = members.limit_of(member.name)
                brokers.append(RoutedBroker(member.name, broker.cluster, str(reached_at), limit))
        return sorted(brokers)

    def address(self, call: RemotingCall) -> str:
        """Return the address of a broker that is alone.

        Without `remoting.advertise` clients stay at the address that they dialled; those of another port of this
        protocol get the broker's, and those of the messaging port what clients by gRPC get there.
        """
        if self._settings.remoting.advertise:
            return self._settings.remoting.advertise
        dialled = Address.parse(call.connection.local)
        if dialled.port in self._ports.values():
            return str(Address(dialled.host, self._ports.get("listen", dialled.port)))
        return str(self._identity.advertised_to(is_secure=call.connection.is_secure) or dialled)

    def _route(self, call: RemotingCall) -> None:
        name = text_of(call.fields, "topic")
        if name.startswith(RETRY_PREFIX):
            self._edge.require(call, join(name.removeprefix(RETRY_PREFIX)))
        elif name != DEFAULT_TOPIC:
            self._edge.require(call, (*publish(name), *read(name), Access(ResourceKind.TOPIC, name, Action.GET)))
        topic, inherited = self._topics.get(name) or self._retry_topic(name) or self._own_topic(name), 0
        if topic is None and name == DEFAULT_TOPIC and self._settings.topics.auto_create:
            topic, inherited = broker_topic(DEFAULT_TOPIC, self._settings.topics.default_queues), INHERIT
        if topic is None:
            raise RemotingRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {name}\n{_FAQ}"
            )
        call.answer(body=topic_route(topic, self.brokers(call), extra_permission=inherited))

    def _retry_topic(self, name: str) -> Topic | None:
        """Return the retry topic that a group's first heartbeat makes; None for other topics.

        A consumer asks for the route before it sends a heartbeat, and would ask again only half a minute later.
        """
        group = name.removeprefix(RETRY_PREFIX)
        if group == name:
            return None
        try:
            self._directory.group(group)
            check_group_name(group)
        except Invalid:
            return None
        return group_topic(name)

    def _own_topic(self, name: str) -> Topic | None:
        """Return a topic that exists on every broker of RocketMQ: those of replies and traces, and those for trials."""
        broker = self._settings.broker
        if name in OPEN_TOPICS:
            return broker_topic(name, self._settings.topics.default_queues)
        if name not in (reply_topic_name(broker.cluster), broker.cluster, broker.name):
            return None
        return broker_topic(name, 1)

    def _cluster_info(self, call: RemotingCall) -> None:
        call.answer(body=cluster_info(self.brokers(call)))

    def _list_topics(self, call: RemotingCall) -> None:
        """Answer with the topics, and with the retry topics of all groups: tools find the groups by these."""
        self._answer_names(call, has_groups=True)

    def _list_topics_of_cluster(self, call: RemotingCall) -> None:
        if text_of(call.fields, "cluster") == self._settings.broker.cluster:
            self._answer_names(call, has_groups=False)
        else:
            call.answer(body=orjson.dumps({"topicList": []}))

    def _answer_names(self, call: RemotingCall, *, has_groups: bool) -> None:
        self._edge.require(call, (Access(ResourceKind.TOPIC, "*", Action.LIST),))

        async def answer(time_slice: TimeSlice) -> None:
            names: dict[str, None] = {}
            groups = self._groups.list() if has_groups else ()
            topics = (each.name for each in self._topics.list() if not each.is_system)
            for name in chain(topics, (retry_topic_name(each.name) for each in groups)):
                names[name] = None
                if len(names) > TOPICS_LISTED_MAX:
                    raise RemotingRefused(
                        ResponseCode.SYSTEM_ERROR,
                        f"there are more than {TOPICS_LISTED_MAX} topics: too many for a list",
                    )
                await time_slice.pause()
            call.answer(body=orjson.dumps({"topicList": list(names)}))

        self._edge.paced(call, answer)

    def _list_system_topics(self, call: RemotingCall) -> None:
        async def answer(time_slice: TimeSlice) -> None:
            names = [self._settings.broker.cluster, self._settings.broker.name]
            for topic in self._topics.list():
                if is_system_topic(topic.name):
                    names.append(topic.name)
                await time_slice.pause()
            call.answer(body=orjson.dumps({"brokerAddr": self.address(call), "topicList": names}))

        self._edge.paced(call, answer)

    # -- administration of the name server

    def _nothing_to_do(self, call: RemotingCall) -> None:
        """Answer with success: a topic leaves all routes when the broker deletes it, and no other settings are kept."""
        call.answer()

    def _wipe_write_permission(self, call: RemotingCall) -> None:
        self._set_state(call, MemberState.DRAINING, "wipeTopicCount")

    def _add_write_permission(self, call: RemotingCall) -> None:
        self._set_state(call, MemberState.ACTIVE, "addTopicCount")

    def _set_state(self, call: RemotingCall, state: MemberState, count: str) -> None:
        """Let a member take no new messages, or take them again, as `quarry cluster drain` and `activate` do."""
        name = text_of(call.fields, "brokerName")
        self._edge.require(call, (Access(ResourceKind.CLUSTER, self._settings.broker.cluster, Action.UPDATE),))
        if self._members is not None:
            self._members.set_state(name, state)
        elif name != self._settings.broker.name:
            raise NoSuchMember(f"no broker {name[:80]!r}")
        elif state is not MemberState.ACTIVE:
            raise Forbidden("this broker is in no cluster: no other broker would take the messages")

        async def answer(time_slice: TimeSlice) -> None:
            topics = 0
            for topic in self._topics.list():
                topics += not topic.is_system
                await time_slice.pause()
            call.answer(fields={count: str(topics)})

        self._edge.paced(call, answer)

    def _refuse_config(self, _call: RemotingCall) -> None:
        raise Forbidden("this broker keeps no settings of a name server: see `quarry settings`")

    def _no_config(self, _call: RemotingCall) -> None:
        raise RemotingRefused(ResponseCode.QUERY_NOT_FOUND, "No config item: this broker keeps none")

    def _config(self, call: RemotingCall) -> None:
        self._edge.require(call, (Access(ResourceKind.CLUSTER, self._settings.broker.cluster, Action.GET),))
        call.answer(body=f"listenPort={Address.parse(call.connection.local).port}\n".encode())
