"""Look up topics and groups for calls, and create them on first use where that is allowed.

A send creates a topic, a receive never does. A route request does not say what its caller is about to do, so the
client's settings decide: a known consumer gets TopicNotFound, and a topic that was deleted under its consumers
stays deleted (rmq#9792); a producer, and a client not known yet, is about to send and gets a new topic.
"""

from __future__ import annotations

from typing import Final, Protocol

from quarry_mq.protocol.lite_attributes import BIND_TOPIC
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.errors import AlreadyExists, GroupNotFound, TopicNotFound
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import (
    Group,
    GroupTable,
    IllegalGroupName,
    IllegalTopicName,
    Topic,
    TopicTable,
    TopicType,
    check_topic_name,
)
from quarry_mq.store.metadata.lite import LiteGroup


class StoredQueues(Protocol):
    """The message store, as far as it lists queues."""

    def iterate_queues(self, topic: str) -> list[QueueId]: ...


def queues_of_topic(stored: StoredQueues, topic: str, count: int) -> list[QueueId]:
    """Return the `count` queues that the topic has and those it had before that hold messages, in order of queue id."""
    numbers = {*range(count), *(queue.number for queue in stored.iterate_queues(topic))}
    return [QueueId(topic, number) for number in sorted(numbers)]


ANYBODY: Final = ""
"""Name of the caller where there are no users."""

INTERNAL_PREFIX: Final = "%"
"""Prefix of the names of retry and dead letter topics, which only the broker creates."""


POP_TOPICS: Final = "pop.topics"
"""Attribute of a group: the topics of which the broker chooses messages for remoting consumers, joined by commas."""


def pop_topics(group: Group | None) -> frozenset[str]:
    """Return the topics in mode POP of a group, see `POP_TOPICS`; other topics have their queues shared out."""
    text = "" if group is None else group.attributes.get(POP_TOPICS, "")
    return frozenset(text.split(",")) if text else frozenset()


def no_topic(name: str) -> str:
    """Return RocketMQ's text for a missing topic, which clients look for."""
    return f"No topic route info in name server for the topic: {name}: topic {name} does not exist"


class Directory:
    """Look up the topics and groups of a store, and create them on first use."""

    def __init__(self, topics: TopicTable, groups: GroupTable, settings: BrokerSettings) -> None:
        self._topics = topics
        self._groups = groups
        self._settings = settings

    def configure(self, settings: BrokerSettings) -> None:
        self._settings = settings

    def stored_topic(self, name: str) -> Topic | None:
        """Return the topic if it can hold messages now: a dead letter topic has no row before its first message."""
        return self._topics.stored(name)

    def topic(self, name: str) -> Topic:
        """Return the topic. Raises TopicNotFound."""
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(no_topic(name))
        return topic

    def topic_to_send(self, name: str, owner: str = ANYBODY) -> Topic:
        """Return the topic; one that is missing is created for the owner.

        Raises TopicNotFound where that is not allowed, IllegalTopicName, OverLimit.
        """
        topic = self._topics.stored(name)
        if topic is not None:
            return topic
        topic = self._topics.get(name)
        if topic is not None:
            self._topics.make_for_group(name)
            return topic
        auto, most = self._settings.topics, self._settings.limits.topics_per_user
        if not auto.auto_create or name.startswith(INTERNAL_PREFIX):
            raise TopicNotFound(no_topic(name))
        # MIXED takes messages of every common type
        topic = Topic(name, TopicType.MIXED, auto.default_queues, auto.default_queues)
        check_topic_name(name)
        if self._topics.count_of(owner) >= most:
            raise OverLimit("topics_per_user", f"{most} topics were already created by their use")
        try:
            self._topics.create(topic, owner=owner)
        except AlreadyExists:
            return self.topic(name)
        return topic

    def find_group(self, name: str) -> Group | None:
        return self._groups.get(name)

    def group(self, name: str) -> Group:
        """Return the group as it is, or as it will be once it receives. Raises GroupNotFound."""
        group = self._groups.get(name)
        if group is None:
            if not self._settings.groups.auto_create:
                raise GroupNotFound(f"subscription group [{name}] does not exist: consumer group {name} does not exist")
            group = Group(name)
        return group

    def group_to_receive(self, name: str, owner: str = ANYBODY) -> Group:
        """Return the group; one that is missing is created for the owner.

        Raises GroupNotFound where that is not allowed, IllegalGroupName, OverLimit.
        """
        group = self._groups.get(name)
        if group is not None:
            return group
        return self._make(self.group(name), owner)

    def group_of_whole_topics(self, name: str, owner: str = ANYBODY) -> Group:
        """Return a group that receives whole topics and not lite topics; otherwise as `group_to_receive`."""
        group = self.group_to_receive(name, owner)
        lite = LiteGroup.of(group)
        if lite is not None:
            raise IllegalGroupName(
                f"consumer group {name} receives lite topics of {lite.bind_topic}, which need lite clients"
            )
        return group

    def lite_group(self, name: str, topic: str, owner: str = ANYBODY) -> tuple[Group, LiteGroup]:
        """Return a group that receives lite topics of this topic; one that is missing is created, bound to the topic.

        Raises TopicNotFound, IllegalTopicName, IllegalGroupName, OverLimit.
        """
        found = self.topic(topic)
        if found.type is not TopicType.LITE:
            raise IllegalTopicName(f"topic {topic} is of type {found.type.value}, which has no lite topics")
        group = self._groups.get(name)
        if group is None:
            if not self._settings.groups.auto_create:
                raise IllegalGroupName(f"consumer group {name} does not exist")
            group = self._make(Group(name, attributes={BIND_TOPIC: topic}), owner)
        terms = LiteGroup.of(group)
        if terms is None:
            raise IllegalGroupName(f"consumer group {name} is not bound to a topic, so it gets no lite topics")
        if terms.bind_topic != topic:
            raise IllegalTopicName(f"consumer group {name} is bound to topic {terms.bind_topic}, not to {topic}")
        return group, terms

    def _make(self, group: Group, owner: str) -> Group:
        most = self._settings.limits.groups_per_user
        if self._groups.count_of(owner) >= most:
            raise OverLimit("groups_per_user", f"{most} groups were already created by their use")
        try:
            self._groups.create(group, owner=owner)
        except AlreadyExists:
            return self.group(group.name)
        return group
