"""Operations of an operator on topics, groups and offsets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quarry_mq.server.admin.administration import GroupChange, QueueReset, TopicChange
from quarry_mq.server.delivery.model import Place, ResetTarget, StoredSince
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.errors import AlreadyExists, Forbidden, GroupNotFound, Invalid, TopicNotFound
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import (
    ExponentialBackoff,
    Group,
    IllegalGroupName,
    IllegalTopicName,
    Permission,
    Topic,
    TopicType,
)
from tests.admin.broker import AdminBench
from tests.delivery.broker import GROUP, TOPIC


@pytest.fixture
def bench() -> AdminBench:
    return AdminBench()


# Topics.


def test_a_topic_is_made_with_defaults(bench: AdminBench) -> None:
    topic = bench.administration.create_topic("orders", TopicChange())
    assert topic == Topic("orders", TopicType.NORMAL, 8, 8)
    assert bench.topics.get("orders") == topic
    assert bench.administration.topic("orders") == topic


@pytest.mark.parametrize(("reading", "writing", "made"), [(3, None, (3, 3)), (None, 5, (5, 5)), (2, 4, (2, 4))])
def test_one_number_of_queues_stands_for_both(
    bench: AdminBench, reading: int | None, writing: int | None, made: tuple[int, int]
) -> None:
    topic = bench.administration.create_topic("orders", TopicChange(read_queues=reading, write_queues=writing))
    assert (topic.read_queues, topic.write_queues) == made


def test_a_topic_is_made_once(bench: AdminBench) -> None:
    bench.administration.create_topic("orders", TopicChange(type=TopicType.FIFO))
    with pytest.raises(AlreadyExists, match="orders"):
        bench.administration.create_topic("orders", TopicChange())
    assert bench.administration.topic("orders").type is TopicType.FIFO


@pytest.mark.parametrize("name", ["", "a b", "x" * 128, "TBW102", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"])
def test_illegal_topic_names_are_refused(bench: AdminBench, name: str) -> None:
    with pytest.raises(IllegalTopicName):
        bench.administration.create_topic(name, TopicChange())
    assert bench.topics.get(name) is None


def test_an_update_changes_what_is_given(bench: AdminBench) -> None:
    bench.administration.create_topic("orders", TopicChange(attributes={"a": "1", "b": "2"}))
    changed = bench.administration.update_topic(
        "orders", TopicChange(permission=Permission.READ, attributes={"a": "", "c": "3"})
    )
    assert changed == Topic("orders", TopicType.NORMAL, 8, 8, Permission.READ, {"b": "2", "c": "3"})
    assert bench.topics.get("orders") == changed


def test_a_topic_can_be_closed_for_everything(bench: AdminBench) -> None:
    bench.administration.create_topic("orders", TopicChange())
    assert bench.administration.update_topic("orders", TopicChange(permission=Permission(0))).permission == Permission(
        0
    )


def test_reading_an_unknown_topic_makes_nothing(bench: AdminBench) -> None:
    """rmq#9792: a read-only query brought a deleted topic back."""
    administration = bench.administration
    for ask in (administration.topic, administration.queues, administration.delete_topic):
        with pytest.raises(TopicNotFound, match="ghost"):
            ask("ghost")
    with pytest.raises(TopicNotFound):
        administration.update_topic("ghost", TopicChange(read_queues=1))
    assert list(administration.topics()) == []


def test_a_deleted_topic_takes_queues_and_progress_with_it(bench: AdminBench) -> None:
    """rmq#9454: entries of queues not touched since the start stayed behind."""
    administration = bench.administration
    administration.create_topic(TOPIC, TopicChange(read_queues=4))
    bench.delivery.send(b"old", queue=3)
    bench.delivery.receive()
    administration.delete_topic(TOPIC)
    bench.delivery.end_pass()
    assert bench.deletions == 1, "it was asked to be made durable"
    assert bench.store.iterate_queues(TOPIC) == []
    assert bench.delivery.delivery.inflight_count == 0

    administration.create_topic(TOPIC, TopicChange(read_queues=4))
    assert bench.delivery.receive().bodies == []
    bench.delivery.send(b"new")
    assert bench.delivery.receive().bodies == [b"new"]


def test_the_brokers_own_topics_stay(bench: AdminBench) -> None:
    bench.topics.create(Topic("RMQ_SYS_TRACE_TOPIC", TopicType.NORMAL, 1, 1), internal=True)
    with pytest.raises(Forbidden, match="RMQ_SYS_TRACE_TOPIC"):
        bench.administration.delete_topic("RMQ_SYS_TRACE_TOPIC")
    with pytest.raises(Forbidden):
        bench.administration.update_topic("RMQ_SYS_TRACE_TOPIC", TopicChange(read_queues=2))
    assert bench.topics.get("RMQ_SYS_TRACE_TOPIC") is not None


def test_queues_are_those_of_now_and_those_that_hold_messages(bench: AdminBench) -> None:
    bench.administration.create_topic(TOPIC, TopicChange(read_queues=2))
    bench.delivery.send(b"1", queue=1)
    bench.delivery.send(b"2", queue=5)
    bench.delivery.send(b"3", queue=5)
    bounds = {queue.number: tuple(found) for queue, found in bench.administration.queues(TOPIC)}
    assert bounds == {0: (0, 0), 1: (0, 1), 5: (0, 2)}


# Groups.


def test_a_group_is_made_changed_and_deleted(bench: AdminBench) -> None:
    administration = bench.administration
    assert administration.create_group("billing", GroupChange()) == Group("billing")
    with pytest.raises(AlreadyExists):
        administration.create_group("billing", GroupChange())
    changed = administration.update_group(
        "billing", GroupChange(fifo=True, max_attempts=3, enabled=False, backoff=ExponentialBackoff())
    )
    assert changed == Group("billing", fifo=True, max_attempts=3, enabled=False, backoff=ExponentialBackoff())
    assert administration.group("billing") == changed
    assert list(administration.groups()) == [changed]
    administration.delete_group("billing")
    for ask in (administration.group, administration.delete_group):
        with pytest.raises(GroupNotFound, match="billing"):
            ask("billing")


def bound_to(topic: str) -> GroupChange:
    return GroupChange(attributes={"lite.bind.topic": topic})


def test_a_group_stays_bound_to_one_topic(bench: AdminBench) -> None:
    administration = bench.administration
    administration.create_group("readers", GroupChange())
    administration.update_group("readers", bound_to("Sessions"))
    for other in ("Others", ""):
        with pytest.raises(Invalid, match=r"lite\.bind\.topic is Sessions and cannot change while the group exists"):
            administration.update_group("readers", bound_to(other))
    administration.update_group("readers", bound_to("Sessions"))
    administration.update_group("readers", GroupChange(attributes={"lite.sub.model": "Exclusive"}))
    assert dict(administration.group("readers").attributes) == {
        "lite.bind.topic": "Sessions",
        "lite.sub.model": "Exclusive",
    }


def test_a_group_is_bound_to_no_topic_of_another_type(bench: AdminBench) -> None:
    administration = bench.administration
    administration.create_topic("Orders", TopicChange(type=TopicType.FIFO))
    with pytest.raises(Invalid, match="topic Orders is of type fifo"):
        administration.create_group("readers", bound_to("Orders"))
    administration.create_group("readers", GroupChange())
    with pytest.raises(Invalid, match="topic Orders is of type fifo"):
        administration.update_group("readers", bound_to("Orders"))
    administration.create_topic("Sessions", TopicChange(type=TopicType.LITE))
    administration.update_group("readers", bound_to("Sessions"))


def test_illegal_groups_are_refused(bench: AdminBench) -> None:
    with pytest.raises(IllegalGroupName):
        bench.administration.create_group("CID_RMQ_SYS_x", GroupChange())
    with pytest.raises(Invalid, match="max_attempts"):
        bench.administration.create_group("billing", GroupChange(max_attempts=0))
    assert list(bench.administration.groups()) == []


def test_a_deleted_group_forgets_its_progress(bench: AdminBench) -> None:
    bench.administration.create_topic(TOPIC, TopicChange())
    bench.administration.create_group(GROUP, GroupChange())
    bench.delivery.send(b"1")
    assert len(bench.delivery.receive().messages) == 1
    bench.administration.delete_group(GROUP)
    bench.delivery.end_pass()
    assert bench.delivery.delivery.position(GROUP, QueueId(TOPIC, 0)) == (None, 0)


# Offsets.


@pytest.fixture
def read(bench: AdminBench) -> AdminBench:
    """Four messages in queue 0, two of them received and one of those acknowledged."""
    bench.administration.create_topic(TOPIC, TopicChange(read_queues=2))
    bench.administration.create_group(GROUP, GroupChange())
    for number in range(4):
        bench.delivery.send(b"%d" % number)
    received = bench.delivery.receive(batch=2)
    bench.delivery.acknowledge(received.messages[0])
    return bench


def reset(bench: AdminBench, group: str, topic: str, to: ResetTarget, **terms: Any) -> list[QueueReset]:
    time_slice = TimeSlice(bench.delivery.clock)
    return asyncio.run(bench.administration.reset_offset(group, topic, to, time_slice, **terms))


def test_back_to_the_first_message(read: AdminBench) -> None:
    resets = reset(read, GROUP, TOPIC, Place.EARLIEST)
    assert [(reset.queue.number, reset.previous, reset.new) for reset in resets] == [(0, 2, 0), (1, 0, 0)]
    read.delivery.end_pass()
    assert read.delivery.receive().bodies == [b"0", b"1", b"2", b"3"]


def test_on_to_after_the_last_message(read: AdminBench) -> None:
    reset(read, GROUP, TOPIC, Place.LATEST)
    read.delivery.end_pass()
    assert read.delivery.receive().bodies == []
    read.delivery.send(b"next")
    assert read.delivery.receive().bodies == [b"next"]


@pytest.mark.parametrize(("asked", "bodies"), [(3, [b"3"]), (99, []), (-1, [b"0", b"1", b"2", b"3"])])
def test_to_an_offset_within_the_queue(read: AdminBench, asked: int, bodies: list[bytes]) -> None:
    reset(read, GROUP, TOPIC, QueueOffset(asked), queue_number=0)
    read.delivery.end_pass()
    assert read.delivery.receive().bodies == bodies


def test_to_a_time(read: AdminBench) -> None:
    resets = reset(read, GROUP, TOPIC, StoredSince(2_500))
    assert [(reset.queue.number, reset.new) for reset in resets] == [(0, 3), (1, 0)]
    read.delivery.end_pass()
    assert read.delivery.receive().bodies == [b"3"]


def test_a_reset_survives_a_restart(read: AdminBench) -> None:
    reset(read, GROUP, TOPIC, Place.EARLIEST)
    read.delivery.end_pass()
    read.delivery.restart()
    assert read.delivery.receive().bodies == [b"0", b"1", b"2", b"3"]


def test_a_dry_run_only_tells(read: AdminBench) -> None:
    resets = reset(read, GROUP, TOPIC, Place.EARLIEST, queue_number=0, dry_run=True)
    assert [(reset.previous, reset.new) for reset in resets] == [(2, 0)]
    read.delivery.end_pass()
    assert read.delivery.receive().bodies == [b"2", b"3"]


def test_a_reset_names_what_does_not_exist(read: AdminBench) -> None:
    with pytest.raises(GroupNotFound, match="ghost"):
        reset(read, "ghost", TOPIC, Place.LATEST)
    with pytest.raises(TopicNotFound, match="ghost"):
        reset(read, GROUP, "ghost", Place.LATEST)
    with pytest.raises(Invalid, match="no queue 2"):
        reset(read, GROUP, TOPIC, Place.LATEST, queue_number=2)
