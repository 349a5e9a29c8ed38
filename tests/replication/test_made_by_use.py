"""Topics and groups that were created by use give way to those that others have created on purpose. Real tables."""

from __future__ import annotations

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.replication import AHEAD_MAX_MS, SharedKind
from quarry_mq.store.replication.rows import COUNTER_MAX
from tests.replication.members import Member, gathered, member
from tests.replication.test_horizons import KEPT_DAYS, delete_tombstones, passed


def used(one: Member, name: str = "orders") -> None:
    """Somebody sends to it or asks for its route."""
    if one.tables.topics.get(name) is None:
        one.tables.topics.create(Topic(name, TopicType.MIXED, 8, 8), owner="anna")


def made(one: Member, name: str = "orders") -> None:
    one.tables.topics.create(Topic(name, TopicType.FIFO, 2, 2))


def type_at(one: Member, name: str = "orders") -> TopicType | None:
    found = one.tables.topics.get(name)
    return None if found is None else found.type


def test_a_use_that_has_not_heard_of_it_gives_way_to_what_was_made_on_purpose() -> None:
    here, there = member("here"), member("there")
    made(here)
    passed(1, there)
    used(there)
    (conflict,) = there.pull(here).conflicts  # it is told: whoever used it got another topic than there is now
    assert conflict.name == "orders"
    assert not here.pull(there).changed
    assert type_at(here) is type_at(there) is TopicType.FIFO


def test_the_same_topic_used_on_two_members_is_no_conflict() -> None:
    here, there = member("here"), member("there")
    used(here)
    used(there)
    assert not here.pull(there).conflicts
    assert not there.pull(here).conflicts
    assert here.content() == there.content()


def test_a_change_of_it_is_later_than_its_first_use_anywhere() -> None:
    here, there = member("here"), member("there")
    used(here)
    used(there)
    here.topic("orders", 3)
    gathered(here, there)
    found = there.tables.topics.get("orders")
    assert found is not None
    assert found.read_queues == 3


@pytest.mark.parametrize("ahead_s", [0, 1800])
def test_a_use_after_a_deletion_that_was_heard_of_makes_it_again(ahead_s: int) -> None:
    """Also when the clock of the member that has deleted it is ahead of the other's."""
    here, there = member("here", ManualClock()), member("there", ManualClock())
    here.clock.advance(ahead_s)
    made(here)
    here.tables.topics.delete("orders")
    gathered(here, there)
    used(there)
    gathered(here, there)
    assert type_at(here) is type_at(there) is TopicType.MIXED
    there.topic("orders", 3)  # a change is later than the use, whose version was by chance
    gathered(here, there)
    found = here.tables.topics.get("orders")
    assert found is not None
    assert found.read_queues == 3


def test_what_is_made_again_on_purpose_wins_over_a_use_after_the_deletion() -> None:
    here, there = member("here"), member("there")
    made(here)
    here.tables.topics.delete("orders")
    gathered(here, there)
    here.clock.advance(1)
    made(here)
    passed(1, there)
    used(there)
    gathered(here, there)
    assert type_at(here) is type_at(there) is TopicType.FIFO


def test_a_use_is_later_than_a_deletion_that_only_others_still_remember() -> None:
    """Otherwise they would keep to the deletion, and never ask for the topic again."""
    here, there = member("here"), member("there")
    made(here)
    here.tables.topics.delete("orders")
    there.clock.advance(1)
    there.pull(here)
    here.pull(there)
    passed(KEPT_DAYS, here, there)
    here.clock.advance(1)
    assert delete_tombstones(here, there) == 1
    used(here)
    gathered(here, there)
    assert type_at(here) is type_at(there) is TopicType.MIXED


def test_a_use_is_never_ahead_of_the_clock_because_of_what_was_forgotten() -> None:
    here = member("here")
    here.topic("other")
    here.tables.topics.delete("other")
    here.clock.advance(1)
    assert here.replicated.delete_tombstones(here.clock.wall_ms()) == 1
    used(here)
    version = here.stamp(SharedKind.TOPIC, "orders").version
    assert version.time_ms == here.clock.wall_ms() < version.time_ms + AHEAD_MAX_MS
    assert version.counter <= COUNTER_MAX
