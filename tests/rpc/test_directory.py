"""Topics and groups on first use."""

from __future__ import annotations

import pytest

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.server.metadata import Directory
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.errors import GroupNotFound, TopicNotFound
from quarry_mq.store.metadata import Group, GroupTable, IllegalGroupName, IllegalTopicName, Topic, TopicTable, TopicType
from tests.rpc.broker import STRICT


class World:
    def __init__(self, settings: BrokerSettings | None = None) -> None:
        engine = MemoryEngine(["topics", "groups"], write_ahead_log=True)
        self.topics, self.groups = TopicTable(engine), GroupTable(engine)
        self.directory = Directory(self.topics, self.groups, settings or BrokerSettings())


def test_a_topic_comes_into_being_by_being_sent_to() -> None:
    world = World()
    with pytest.raises(TopicNotFound, match="orders"):
        world.directory.topic("orders")
    topic = world.directory.topic_to_send("orders")
    assert topic == Topic("orders", TopicType.MIXED, 8, 8)
    assert world.directory.topic("orders") == topic
    assert world.directory.topic_to_send("orders") == topic


def test_an_existing_topic_is_taken_as_it_is() -> None:
    world = World()
    world.topics.create(Topic("orders", TopicType.FIFO, 2, 2))
    assert world.directory.topic_to_send("orders").type is TopicType.FIFO


def test_a_group_comes_into_being_by_receiving() -> None:
    world = World()
    assert world.directory.group("workers") == Group("workers")
    assert world.directory.find_group("workers") is None
    assert world.directory.group_to_receive("workers") == Group("workers")
    assert world.directory.find_group("workers") == Group("workers")
    assert world.directory.group_to_receive("workers") == Group("workers")


def test_nothing_is_made_when_that_is_switched_off() -> None:
    world = World(STRICT)
    with pytest.raises(TopicNotFound):
        world.directory.topic_to_send("orders")
    with pytest.raises(GroupNotFound):
        world.directory.group_to_receive("workers")
    with pytest.raises(GroupNotFound):
        world.directory.group("workers")
    assert list(world.topics.list()) == []
    assert list(world.groups.list()) == []


def test_illegal_names_are_not_made() -> None:
    world = World()
    with pytest.raises(IllegalTopicName):
        world.directory.topic_to_send("a b")
    with pytest.raises(IllegalGroupName):
        world.directory.group_to_receive("a b")
    with pytest.raises(TopicNotFound):
        world.directory.topic_to_send("%DLQ%workers")
