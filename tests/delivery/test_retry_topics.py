"""Messages for one group alone, in RocketMQ's retry topics, come with those of the topic."""

from __future__ import annotations

import pytest

from quarry_mq.server.delivery import ReceiptHandle, ReceiveRequest, retry_topic_name
from quarry_mq.server.delivery.retry_topics import retry_topics
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.server.filters import TagFilter
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import QueueId, QueueOffset
from tests.delivery.broker import GROUP, TOPIC, DeliveryBench, Receive
from tests.handles import HANDLE_KEY

RETRY = f"%RETRY%{GROUP}_{TOPIC}"
RETRY_V2 = f"%RETRY%{GROUP}+{TOPIC}"


@pytest.fixture
def bench() -> DeliveryBench:
    """Both kinds hold a message from before the group's first receive."""
    bench = DeliveryBench(queues=1)
    bench.send(b"first", topic=RETRY)
    bench.send(b"second", topic=RETRY_V2)
    bench.send(b"new")
    return bench


def test_a_group_gets_them_with_the_topic_and_no_other_group_does(bench: DeliveryBench) -> None:
    assert sorted(bench.receive(batch=8).bodies) == [b"first", b"new", b"second"]
    assert bench.receive(batch=8, group="audit").bodies == [b"new"]
    assert bench.receive(batch=8).bodies == []


def test_they_come_back_and_are_acknowledged_as_all_others_over_restarts(bench: DeliveryBench) -> None:
    first = bench.receive(batch=8, invisible_s=10)
    bench.restart()
    bench.acknowledge(next(each for each in first.messages if bytes(each.record.body) == b"first"))
    waiting = bench.receive(batch=8, invisible_s=10, polling_s=20)
    assert not waiting.ended
    bench.advance(10)
    again = waiting.messages or bench.receive(batch=8).messages
    more = bench.receive(batch=8).messages
    assert sorted(bytes(each.record.body) for each in (*again, *more)) == [b"new", b"second"]
    assert {each.attempt for each in (*again, *more)} == {2}
    for each in (*again, *more):
        bench.acknowledge(each)
    assert bench.delivery.inflight_count == 0
    with pytest.raises(InvalidReceiptHandle):
        bench.acknowledge(again[0]._replace(receipt_handle=first.messages[0].receipt_handle[:-4] + "AAAA"))


def test_one_that_comes_while_somebody_waits_is_handed_out_at_once(bench: DeliveryBench) -> None:
    bench.receive(batch=8)
    waiting = bench.receive(batch=8, polling_s=20)
    bench.send(b"third", topic=RETRY)
    assert waiting.bodies == [b"third"]


def test_the_first_one_of_a_new_retry_topic_is_handed_out_at_once() -> None:
    bench = DeliveryBench(queues=1)
    waiting = bench.receive(polling_s=20)
    bench.send(b"first", topic=RETRY)
    assert waiting.bodies == [b"first"]


def test_neither_they_nor_new_messages_keep_the_others_waiting(bench: DeliveryBench) -> None:
    for number in range(20):
        bench.send(b"r%d" % number, topic=RETRY)
        bench.send(b"n%d" % number)
    got = [bench.receive(batch=1).bodies[0] for _ in range(3)]
    assert sorted(got) == [b"first", b"new", b"second"]


def test_a_stored_position_counts_and_without_one_all_of_them_are_for_the_group() -> None:
    """As RocketMQ's metadata brings it along: a queue that is larger than memory likes is no reason to pass over it."""
    bench = DeliveryBench(queues=1)
    for body in (b"done", b"left"):
        bench.send(body, topic=RETRY)
    bench.delivery.commit_offset(GROUP, QueueId(RETRY, 0), QueueOffset(1))
    bench.end_pass()
    bench.restart()
    assert bench.receive(batch=8).bodies == [b"left"]


def test_attempts_go_on_from_those_that_the_record_tells_of() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"first", topic=RETRY)
    ((entry, record),) = bench.source.queues[QueueId(RETRY, 0)]
    bench.source.queues[QueueId(RETRY, 0)] = [(entry, record._replace(reconsume_times=3))]
    assert [each.attempt for each in bench.receive().messages] == [4]


def test_in_order_they_block_their_own_queue_alone() -> None:
    bench = DeliveryBench(queues=1)
    for number in range(2):
        bench.send(b"r%d" % number, topic=RETRY)
        bench.send(b"n%d" % number)
    got = [bench.receive(batch=1, ordered=True) for _ in range(3)]
    assert sorted(body for each in got for body in each.bodies) == [b"n0", b"r0"]


def test_a_message_of_a_retry_topic_becomes_a_dead_letter_of_its_topic(bench: DeliveryBench) -> None:
    bench.receive(batch=8, invisible_s=1, attempts_max=1)
    bench.advance(1)
    assert bench.receive(batch=8, attempts_max=1).bodies == []
    assert sorted(bench.dead_letters.bodies) == [b"first", b"new", b"second"]


def test_deleting_the_group_leaves_nothing_of_it(bench: DeliveryBench) -> None:
    bench.receive(batch=8)
    bench.delivery.delete_group(GROUP)
    bench.end_pass()
    assert bench.delivery.inflight_count == 0
    assert bench.delivery.subscription_count == 0


def test_an_idle_group_is_dropped_from_memory_as_a_whole(bench: DeliveryBench) -> None:
    for each in bench.receive(batch=8).messages:
        bench.acknowledge(each)
    assert bench.delivery.subscription_count == 3
    bench.advance(1_000)
    bench.delivery.drop_idle_subscriptions()
    assert bench.delivery.subscription_count == 0
    bench.send(b"third", topic=RETRY)
    assert bench.receive(batch=8).bodies == [b"third"]


def test_a_retry_topic_is_not_received_beside_its_topic(bench: DeliveryBench) -> None:
    """Two readers of one position would take each other's messages."""
    bench.receive()
    request = ReceiveRequest(GROUP, RETRY, range(1), TagFilter.parse("*"), 1, 1_000, "client")
    with pytest.raises(Invalid, match=f"receives topic {RETRY} together with topic {TOPIC}"):
        bench.delivery.receive(request, 0, Receive())


def test_made_up_queue_numbers_name_no_queue() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"new")
    bench.receive()
    for number in (1 << 30, (1 << 30) + (1 << 29), (1 << 31) + 5, (1 << 32) - 1):
        handle = ReceiptHandle(number, 0, 1, 2**60).encode(GROUP, TOPIC, HANDLE_KEY)
        with pytest.raises(InvalidReceiptHandle):
            bench.delivery.acknowledge(GROUP, TOPIC, handle)


def test_the_name_that_is_written_is_one_that_is_read() -> None:
    assert retry_topic_name(GROUP, TOPIC) == RETRY


@pytest.mark.parametrize(
    ("group", "topic", "name"),
    [
        ("billing", "orders", "%RETRY%billing_orders"),
        ("a", "b_c", "%RETRY%a+b_c"),
        ("a_b", "c", "%RETRY%a_b+c"),
        ("a_b", "c_d", "%RETRY%a_b+c_d"),
    ],
)
def test_no_two_pairs_of_group_and_topic_write_to_one_retry_topic(group: str, topic: str, name: str) -> None:
    assert retry_topic_name(group, topic) == name
    assert name in [each.name for each in retry_topics(group, topic)]


SHARED = "%RETRY%a_b_c"


@pytest.mark.parametrize(
    ("properties", "group", "topic"),
    [
        ({"ORIGIN_GROUP": "a"}, "a", "b_c"),
        ({"ORIGIN_GROUP": "a_b"}, "a_b", "c"),
        ({"RETRY_TOPIC": "b_c"}, "a", "b_c"),
        ({"RETRY_TOPIC": "c"}, "a_b", "c"),
        ({"ORIGIN_GROUP": "no owner", "RETRY_TOPIC": "c"}, "a_b", "c"),
        ({"ORIGIN_GROUP": "a_b", "RETRY_TOPIC": "b_c"}, "a_b", "c"),
    ],
)
def test_of_a_retry_topic_that_pairs_share_each_gets_what_was_meant_for_it(
    properties: dict[str, str], group: str, topic: str
) -> None:
    bench = DeliveryBench(queues=1)
    for name in ("b_c", "c"):
        bench.send(b"new", topic=name)
    bench.send(b"again", topic=SHARED, properties=properties)
    pairs = [("a", "b_c"), ("a_b", "c")]
    got = {each: sorted(bench.receive(batch=8, group=each[0], topic=each[1]).bodies) for each in pairs}
    assert got.pop((group, topic)) == [b"again", b"new"]
    assert list(got.values()) == [[b"new"]]
    assert bench.receive(batch=8, group=group, topic=topic).bodies == []


def test_who_reads_a_shared_retry_topic_by_its_name_gets_what_is_for_its_group() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"of a", topic=SHARED, properties={"ORIGIN_GROUP": "a"})
    bench.send(b"of a_b_c", topic=SHARED, properties={"ORIGIN_GROUP": "a_b_c"})
    assert bench.receive(batch=8, group="a_b_c", topic=SHARED).bodies == [b"of a_b_c"]
    assert bench.receive(batch=8, group="a", topic=SHARED).bodies == [b"of a"]


def test_a_message_that_tells_nothing_goes_to_all_that_its_retry_topic_may_be_of() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"again", topic=SHARED)
    for group, topic in (("a", "b_c"), ("a_b", "c")):
        bench.send(b"new", topic=topic)
        assert sorted(bench.receive(batch=8, group=group, topic=topic).bodies) == [b"again", b"new"]
