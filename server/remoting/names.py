"""The role of the name server: which topics there are, and where.

Every listener answers these requests, too: the codes of name servers and of brokers do not overlap. So a client whose
list of name servers names this broker needs nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import orjson

from quarry_mq.protocol.names import RETRY_PREFIX, is_system_topic
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.server.addresses import Address
from quarry_mq.server.front.remoting import Handler, RemotingCall
from quarry_mq.server.metadata import Directory
from quarry_mq.server.remoting.bodies import INHERIT, cluster_info, default_topic, topic_route
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.fields import RemotingRefused, text_of
from quarry_mq.server.rpc.access import join, publish, read
from quarry_mq.server.security.credentials import Access
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.errors import Invalid
from quarry_mq.store.metadata import Topic, TopicTable, check_group_name
from quarry_mq.store.metadata.topics import group_topic
from quarry_mq.store.security.model import Action, ResourceKind

DEFAULT_TOPIC: Final = "TBW102"
PAGE: Final = 1_000
TOPICS_LISTED_MAX: Final = 200_000
"""Topics in one list: RocketMQ has no pages, and this many fit into a frame."""

_FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class NameService:
    """Answers requests for routes, brokers and lists of topics."""

    def __init__(self, edge: RemotingEdge, directory: Directory, topics: TopicTable, settings: BrokerSettings) -> None:
        self._edge = edge
        self._directory = directory
        self._topics = topics
        self._ports: tuple[int, int] | None = None
        self.configure(settings)

    def listens_at(self, names: str, broker: str) -> None:
        """Note the addresses of the name server's role and of the broker's, where these are different ports."""
        self._ports = Address.parse(names).port, Address.parse(broker).port

    def configure(self, settings: BrokerSettings) -> None:
        """Apply changed settings from now on."""
        self._settings = settings

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        handler = self._edge.handler
        return {
            RequestCode.GET_ROUTE_BY_TOPIC: handler(self._route),
            RequestCode.GET_CLUSTER_INFO: handler(self._cluster_info),
            RequestCode.GET_ALL_TOPICS_FROM_NAME_SERVER: handler(self._list_topics),
            RequestCode.GET_TOPICS_BY_CLUSTER: handler(self._list_topics_of_cluster),
            RequestCode.GET_SYSTEM_TOPICS_FROM_NAME_SERVER: handler(self._list_system_topics),
            RequestCode.DELETE_TOPIC_IN_NAME_SERVER: handler(self._delete_topic),
        }

    def brokers(self, call: RemotingCall) -> dict[str, tuple[str, str]]:
        """Return cluster and address of each broker by name, for the client of a call.

        Without `remoting.advertise` clients stay at the address that they dialled; those of the name server's port get
        the broker's.
        """
        broker, address = self._settings.broker, self._settings.remoting.advertise or call.connection.local
        if self._ports is not None and not self._settings.remoting.advertise:
            names_port, broker_port = self._ports
            dialled = Address.parse(address)
            if dialled.port == names_port:
                address = str(Address(dialled.host, broker_port))
        return {broker.name: (broker.cluster, address)}

    def _route(self, call: RemotingCall) -> None:
        name = text_of(call.fields, "topic")
        if name.startswith(RETRY_PREFIX):
            self._edge.require(call, join(name.removeprefix(RETRY_PREFIX)))
        elif name != DEFAULT_TOPIC:
            self._edge.require(call, (*publish(name), *read(name), Access(ResourceKind.TOPIC, name, Action.GET)))
        topic, inherited = self._topics.get(name) or self._retry_topic(name), 0
        if topic is None and name == DEFAULT_TOPIC and self._settings.topics.auto_create:
            topic, inherited = default_topic(self._settings.topics.default_queues), INHERIT
        if topic is None:
            raise RemotingRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {name}\n{_FAQ}"
            )
        call.answer(body=topic_route(topic, topic.permission.value | inherited, self.brokers(call)))

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

    def _cluster_info(self, call: RemotingCall) -> None:
        call.answer(body=cluster_info(self.brokers(call)))

    def _list_topics(self, call: RemotingCall) -> None:
        call.answer(body=orjson.dumps({"topicList": [each.name for each in self._visible(call)]}))

    def _list_topics_of_cluster(self, call: RemotingCall) -> None:
        cluster = text_of(call.fields, "cluster")
        names = [each.name for each in self._visible(call)] if cluster == self._settings.broker.cluster else []
        call.answer(body=orjson.dumps({"topicList": names}))

    def _list_system_topics(self, call: RemotingCall) -> None:
        broker = self._settings.broker
        system = [each.name for each in self._topics.list() if is_system_topic(each.name)]
        (_, address), *_ = self.brokers(call).values()
        call.answer(body=orjson.dumps({"brokerAddr": address, "topicList": [broker.cluster, broker.name, *system]}))

    def _delete_topic(self, call: RemotingCall) -> None:
        """Do nothing: the topic leaves all routes when the broker deletes it."""
        call.answer()

    def _visible(self, call: RemotingCall) -> Iterator[Topic]:
        """Yield the topics, without the broker's own."""
        self._edge.require(call, (Access(ResourceKind.TOPIC, "*", Action.LIST),))
        count = 0
        for topic in self._topics.list():
            if not topic.is_system:
                count += 1
                if count > TOPICS_LISTED_MAX:
                    raise RemotingRefused(
                        ResponseCode.SYSTEM_ERROR,
                        f"there are more than {TOPICS_LISTED_MAX} topics: too many for a list",
                    )
                yield topic
