"""Counts of an owner's topics and groups: exact, over restarts, and gone with what they count."""

from __future__ import annotations

import pytest

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.metadata import Directory
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import LimitsSection
from quarry_mq.store.errors import AlreadyExists, TopicNotFound
from quarry_mq.store.metadata import Group, GroupTable, Topic, TopicTable, TopicType
from quarry_mq.store.metadata.owners import COUNTED_MAX, Owners
from quarry_mq.store.state.identity import FAMILIES, META
from tests.metadata.test_topics_and_groups import ALL


class World:
    def __init__(self, most: int = 3) -> None:
        self.engine = MemoryEngine(FAMILIES, write_ahead_log=True)
        self.most = most
        self.restart()

    def restart(self) -> None:
        self.topics = TopicTable(self.engine, owners=Owners(self.engine, "topic"))
        self.groups = GroupTable(self.engine, owners=Owners(self.engine, "group"))
        self.directory = Directory(
            self.topics,
            self.groups,
            BrokerSettings(limits=LimitsSection(topics_per_user=self.most, groups_per_user=self.most)),
        )

    @property
    def owner_rows(self) -> int:
        return len(self.engine.family(META).scan(ALL))


def test_each_owner_has_so_many_topics_and_no_more() -> None:
    world = World()
    for owner in ("ann", "bob", ""):
        for number in range(3):
            world.directory.topic_to_send(f"{owner}{number}", owner)
            world.directory.topic_to_send(f"{owner}{number}", owner)
        with pytest.raises(OverLimit) as refused:
            world.directory.topic_to_send(f"{owner}3", owner)
        assert refused.value.limit == "topics_per_user"
    assert world.directory.topic_to_send("bob1", "ann").name == "bob1"
    assert world.topics.count_of("ann") == 3


def test_groups_are_counted_by_themselves() -> None:
    world = World()
    for number in range(3):
        world.directory.topic_to_send(f"t{number}", "ann")
        world.directory.group_to_receive(f"g{number}", "ann")
    with pytest.raises(OverLimit) as refused:
        world.directory.group_to_receive("g3", "ann")
    assert refused.value.limit == "groups_per_user"
    world.groups.delete("g0")
    world.directory.group_to_receive("g3", "ann")


def test_the_count_is_the_same_after_a_restart() -> None:
    world = World()
    for number in range(3):
        world.directory.topic_to_send(f"t{number}", "ann")
    world.restart()
    with pytest.raises(OverLimit):
        world.directory.topic_to_send("t3", "ann")
    world.topics.delete("t1")
    world.restart()
    world.directory.topic_to_send("t3", "ann")


def test_what_is_deleted_leaves_no_row() -> None:
    world = World()
    world.directory.topic_to_send("made", "ann")
    world.directory.group_to_receive("made", "ann")
    assert world.owner_rows == 4
    world.topics.delete("made")
    world.groups.delete("made")
    assert world.owner_rows == 0


def test_what_operators_make_does_not_count() -> None:
    world = World()
    for number in range(10):
        world.topics.create(Topic(f"t{number}", TopicType.NORMAL, 1, 1))
        world.groups.create(Group(f"g{number}"))
    world.directory.topic_to_send("made", "ann")
    world.topics.delete("t1")
    assert world.topics.count_of("ann") == 1
    assert world.owner_rows == 2


def test_a_name_that_is_taken_is_not_counted_twice() -> None:
    world = World()
    world.directory.topic_to_send("made", "ann")
    with pytest.raises(AlreadyExists):
        world.topics.create(Topic("made", TopicType.NORMAL, 1, 1), owner="bob")
    assert (world.topics.count_of("ann"), world.topics.count_of("bob")) == (1, 0)
    with pytest.raises(TopicNotFound):
        world.topics.delete("never")


def test_names_that_begin_alike_are_different_owners() -> None:
    world = World(most=100)
    for owner in ("a", "ab", "a\u00e9", ""):
        world.directory.topic_to_send(f"of-{len(owner)}-{owner.encode().hex()}", owner)
    assert [world.topics.count_of(owner) for owner in ("a", "ab", "a\u00e9", "", "b")] == [1, 1, 1, 1, 0]


def test_owners_who_are_not_remembered_are_counted_again() -> None:
    world = World(most=2)
    world.directory.topic_to_send("first", "first")
    for number in range(COUNTED_MAX + 1):
        world.topics.count_of(str(number))
    world.directory.topic_to_send("second", "first")
    with pytest.raises(OverLimit):
        world.directory.topic_to_send("third", "first")
