from __future__ import annotations

import pytest
from pydantic import ByteSize

from quarry_mq.kv import KeyRange, WriteBatch
from quarry_mq.server.delivery import ReceiptHandle, fetch
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import DeliverySection, NewGroupStart
from quarry_mq.store.errors import Busy
from quarry_mq.store.message import QueueId, QueueOffset
from tests.delivery.broker import GROUP, TOPIC, DeliveryBench
from tests.handles import HANDLE_KEY

EARLIEST = BrokerSettings(delivery=DeliverySection(new_group_start=NewGroupStart.EARLIEST))
LATEST = BrokerSettings(delivery=DeliverySection(new_group_start=NewGroupStart.LATEST))


def test_messages_of_all_queues_are_handed_out_in_queue_order() -> None:
    bench = DeliveryBench()
    for number in range(12):
        bench.send(b"%d" % number, queue=number % 4)
    received = bench.receive()
    assert sorted(received.bodies) == sorted(b"%d" % number for number in range(12))
    for queue in range(4):
        of_queue = [int(body) for body in received.bodies if int(body) % 4 == queue]
        assert of_queue == sorted(of_queue)
    assert {each.attempt for each in received.messages} == {1}


def test_a_batch_holds_at_most_what_was_asked_for() -> None:
    bench = DeliveryBench(queues=1)
    for number in range(10):
        bench.send(b"%d" % number)
    assert bench.receive(batch=3).bodies == [b"0", b"1", b"2"]
    assert bench.receive(batch=3).bodies == [b"3", b"4", b"5"]


def test_an_answer_is_bounded_in_bytes_and_the_rest_is_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are 100 bytes each here. New ones and redelivered ones are bounded alike, over all queues together."""
    monkeypatch.setattr(fetch, "ANSWER_SIZE_MAX", 250)
    bench = DeliveryBench(queues=2)
    for number in range(6):
        bench.send(b"%d" % number, queue=number % 2)
    for _ in range(2):
        received = [bench.receive(invisible_s=10) for _ in range(4)]
        assert [len(each.messages) for each in received] == [2, 2, 2, 0]
        assert sorted(body for each in received for body in each.bodies) == [b"%d" % number for number in range(6)]
        bench.advance(10)
    waiting = [bench.receive(polling_s=5) for _ in range(3)]
    assert [len(each.messages) for each in waiting] == [2, 2, 2]


def test_a_message_larger_than_an_answer_may_be_comes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "ANSWER_SIZE_MAX", 50)
    bench = DeliveryBench(queues=1)
    for number in range(2):
        bench.send(b"%d" % number)
    assert [bench.receive().bodies for _ in range(3)] == [[b"0"], [b"1"], []]


def test_an_acknowledged_message_never_comes_back() -> None:
    bench = DeliveryBench()
    bench.send(b"once")
    bench.acknowledge(bench.receive(invisible_s=10).messages[0])
    bench.advance(60)
    assert bench.receive().bodies == []
    bench.restart()
    assert bench.receive().bodies == []


def test_acknowledging_twice_within_the_time_is_fine_and_after_it_is_refused() -> None:
    bench = DeliveryBench()
    bench.send(b"m")
    delivered = bench.receive(invisible_s=10).messages[0]
    bench.acknowledge(delivered)
    bench.acknowledge(delivered)
    bench.advance(10)
    with pytest.raises(InvalidReceiptHandle):
        bench.acknowledge(delivered)


def test_what_is_not_acknowledged_comes_back_with_the_next_attempt() -> None:
    """rocketmq-clients#1344: unacknowledged messages were not redelivered."""
    bench = DeliveryBench()
    bench.send(b"m")
    first = bench.receive(invisible_s=10).messages[0]
    bench.advance(9.9)
    assert bench.receive().bodies == []
    bench.advance(0.2)
    second = bench.receive(invisible_s=10).messages[0]
    assert (second.attempt, bytes(second.record.body)) == (2, b"m")
    with pytest.raises(InvalidReceiptHandle):
        bench.acknowledge(first)
    bench.acknowledge(second)
    bench.advance(20)
    assert bench.receive().bodies == []


def test_a_waiting_receive_gets_a_new_message_at_once() -> None:
    bench = DeliveryBench()
    waiting = bench.receive(polling_s=20)
    assert not waiting.ended
    bench.send(b"wake", queue=2)
    assert waiting.bodies == [b"wake"]
    assert bench.delivery.waiting_polls == 0


def test_a_waiting_receive_gets_a_redelivery_at_once() -> None:
    bench = DeliveryBench()
    bench.send(b"again")
    bench.receive(invisible_s=5)
    waiting = bench.receive(polling_s=20)
    bench.advance(5)
    assert waiting.bodies == [b"again"]


def test_a_waiting_receive_ends_empty_when_its_time_is_up() -> None:
    bench = DeliveryBench()
    waiting = bench.receive(polling_s=5)
    bench.advance(4.9)
    assert not waiting.ended
    bench.advance(0.2)
    assert waiting.messages == ()
    assert waiting.error is None


def test_each_message_wakes_one_of_many_waiting_receives() -> None:
    bench = DeliveryBench()
    waiting = [bench.receive(polling_s=20, batch=1) for _ in range(5)]
    for number in range(3):
        bench.send(b"%d" % number, queue=number)
    assert [each.bodies for each in waiting] == [[b"0"], [b"1"], [b"2"], [], []]
    assert bench.delivery.waiting_polls == 2


def test_receives_of_a_client_that_says_goodbye_end_at_once_and_others_go_on() -> None:
    bench = DeliveryBench()
    leaving, staying = bench.receive(polling_s=20, client="a"), bench.receive(polling_s=20, client="b")
    bench.delivery.end_waiting("a")
    assert (leaving.ended, staying.ended) == (True, False)
    bench.delivery.end_waiting("b")
    assert staying.ended
    assert bench.delivery.waiting_polls == 0


def test_a_broker_that_drains_hands_out_nothing_and_lets_nobody_wait() -> None:
    """An answer given now might not get through; the message would be hidden from everybody else."""
    bench = DeliveryBench()
    waiting = bench.receive(polling_s=20)
    bench.delivery.drain()
    assert (waiting.ended, waiting.bodies) == (True, [])
    bench.send(b"late")
    asking = bench.receive(polling_s=20)
    assert (asking.ended, asking.bodies) == (True, [])
    assert bench.delivery.waiting_polls == 0
    assert bench.delivery.inflight_count == 0


def test_too_many_waiting_receives_are_refused() -> None:
    """rmq#3277: waiting work must be bounded."""
    bench = DeliveryBench(settings=BrokerSettings(delivery=DeliverySection(waiting_polls_max=2)))
    bench.receive(polling_s=20)
    bench.receive(polling_s=20)
    with pytest.raises(Busy):
        bench.receive(polling_s=20)


def test_a_filter_hands_out_its_tags_and_passes_over_the_rest() -> None:
    bench = DeliveryBench(queues=1)
    for tag in ("A", "B", None, "C", "A"):
        bench.send(str(tag).encode(), tag=tag)
    assert bench.receive(tags="A || C").bodies == [b"A", b"C", b"A"]
    assert bench.receive().bodies == []


def test_tags_whose_hashes_collide_are_told_apart() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"wanted", tag="AaAa")
    bench.send(b"collides", tag="BBBB")
    assert bench.receive(tags="AaAa").bodies == [b"wanted"]


def test_a_filter_that_matches_nothing_reads_a_bounded_number_of_entries_per_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch, "ENTRIES_SCANNED_MAX", 64)
    bench = DeliveryBench(queues=1, settings=EARLIEST)
    for number in range(500):
        bench.source.add(QueueId(TOPIC, 0), b"%d" % number, "other")
    bench.source.add(QueueId(TOPIC, 0), b"wanted", "A")
    received = bench.receive(tags="A", polling_s=1)
    assert received.bodies == [b"wanted"]


def test_in_flight_messages_and_positions_survive_a_restart() -> None:
    """rmq#10278: a crash of the server must not make the clients' acknowledgements invalid."""
    bench = DeliveryBench(queues=1)
    for body in (b"a", b"b", b"c"):
        bench.send(body)
    first, second = bench.receive(batch=2, invisible_s=30).messages
    bench.restart()
    bench.acknowledge(first)
    assert bench.receive().bodies == [b"c"]
    bench.advance(30)
    again = bench.receive(batch=1).messages[0]
    assert (bytes(again.record.body), again.attempt) == (b"b", 2)
    with pytest.raises(InvalidReceiptHandle):
        bench.acknowledge(second)


def test_the_stat_of_messages_in_flight_is_right_through_all_that_happens_to_them() -> None:
    bench = DeliveryBench(queues=1)
    for number in range(6):
        bench.send(b"%d" % number)
    messages = bench.receive(batch=4, invisible_s=10).messages
    assert bench.delivery.inflight_count == 4
    bench.acknowledge(messages[0])
    bench.advance(10)
    bench.receive(batch=1)
    assert bench.delivery.inflight_count == 3, "a redelivery is no further message"
    bench.restart()
    assert bench.delivery.inflight_count == 3
    bench.delivery.reset_offset(GROUP, QueueId(TOPIC, 0), QueueOffset(0))
    assert bench.delivery.inflight_count == 0


def test_changing_the_invisible_time_replaces_the_handle() -> None:
    bench = DeliveryBench()
    bench.send(b"m")
    delivered = bench.receive(invisible_s=10).messages[0]
    new_handle = bench.delivery.change_invisible(GROUP, TOPIC, delivered.receipt_handle, 60_000).receipt_handle
    bench.end_pass()
    assert new_handle != delivered.receipt_handle
    with pytest.raises(InvalidReceiptHandle):
        bench.acknowledge(delivered)
    bench.advance(59)
    assert bench.receive().bodies == []
    bench.advance(1)
    assert bench.receive().messages[0].attempt == 2


def test_an_invisible_time_of_zero_makes_the_message_visible_at_once() -> None:
    bench = DeliveryBench()
    bench.send(b"m")
    delivered = bench.receive(invisible_s=10).messages[0]
    bench.delivery.change_invisible(GROUP, TOPIC, delivered.receipt_handle, 0)
    bench.advance(0)
    assert bench.receive().messages[0].attempt == 2


def test_a_message_hidden_for_no_time_is_there_for_the_next_receive() -> None:
    """Within one millisecond its new place in the index of times is that of the delivery before."""
    bench = DeliveryBench(queues=1)
    bench.send(b"a")
    assert [bench.receive(invisible_s=0).bodies for _ in range(3)] == [[b"a"]] * 3


@pytest.mark.parametrize("damage", ["", "x", "!!!", "AAAA", "é"])
def test_a_handle_that_is_none_is_refused(damage: str) -> None:
    bench = DeliveryBench()
    with pytest.raises(InvalidReceiptHandle):
        bench.delivery.acknowledge(GROUP, TOPIC, damage)


def test_a_handle_of_another_group_or_a_made_up_one_is_refused_and_creates_nothing() -> None:
    bench = DeliveryBench()
    far = ReceiptHandle(7, 3, 1, 1 << 60)
    for handle in (far.encode("other", TOPIC, HANDLE_KEY), far.encode(GROUP, TOPIC, HANDLE_KEY)):
        with pytest.raises(InvalidReceiptHandle):
            bench.delivery.acknowledge(GROUP, TOPIC, handle)
    assert bench.delivery.subscription_count == 0


def test_a_new_group_sees_what_is_sent_after_it_was_started() -> None:
    bench = DeliveryBench(settings=LATEST)
    bench.send(b"before")
    bench.delivery.start_group(GROUP, TOPIC, range(4))
    bench.end_pass()
    bench.send(b"after")
    assert bench.receive().bodies == [b"after"]


def test_a_new_group_starts_alike_in_queues_that_the_topic_has_no_longer() -> None:
    bench = DeliveryBench(queues=2, settings=LATEST)
    for queue in range(4):
        bench.send(b"before", queue=queue)
    bench.delivery.start_group(GROUP, TOPIC, range(2))
    bench.end_pass()
    assert bench.receive().bodies == []


@pytest.mark.parametrize(
    ("start", "expected"),
    [(NewGroupStart.EARLIEST, [b"old"]), (NewGroupStart.LATEST, []), (NewGroupStart.AUTO, [b"old"])],
)
def test_where_a_new_group_starts_is_a_setting(start: NewGroupStart, expected: list[bytes]) -> None:
    bench = DeliveryBench(settings=BrokerSettings(delivery=DeliverySection(new_group_start=start)))
    bench.send(b"old")
    assert bench.receive().bodies == expected


def test_auto_starts_a_new_group_at_the_end_of_a_queue_that_has_lost_its_beginning_or_is_large() -> None:
    bench = DeliveryBench(queues=2, settings=BrokerSettings(delivery=DeliverySection(auto_start_size=ByteSize(300))))
    for _ in range(3):
        bench.send(b"in a short queue", queue=1)
    bench.source.minimum[QueueId(TOPIC, 1)] = 1
    assert bench.receive().bodies == []
    large = DeliveryBench(queues=1, settings=BrokerSettings(delivery=DeliverySection(auto_start_size=ByteSize(250))))
    for _ in range(3):
        large.send(b"m")
    assert large.receive().bodies == []


def test_entries_that_expired_below_the_position_are_passed_over() -> None:
    bench = DeliveryBench(queues=1, settings=EARLIEST)
    for number in range(5):
        bench.send(b"%d" % number)
    assert bench.receive(batch=1).bodies == [b"0"]
    bench.source.minimum[QueueId(TOPIC, 0)] = 3
    assert bench.receive().bodies == [b"3", b"4"]
    bench.advance(30)
    assert sorted(bench.receive().bodies) == [b"3", b"4"], "the expired message is not redelivered"


def test_resetting_the_position_forgets_what_was_in_flight() -> None:
    bench = DeliveryBench(queues=1)
    for number in range(3):
        bench.send(b"%d" % number)
    bench.receive()
    bench.delivery.reset_offset(GROUP, QueueId(TOPIC, 0), QueueOffset(1))
    bench.end_pass()
    again = bench.receive()
    assert again.bodies == [b"1", b"2"]
    assert {each.attempt for each in again.messages} == {1}


def test_deleting_a_group_or_a_topic_leaves_no_row() -> None:
    for delete in ("group", "topic"):
        bench = DeliveryBench()
        bench.send(b"m")
        bench.receive()
        if delete == "group":
            bench.delivery.delete_group(GROUP)
        else:
            bench.delivery.delete_topic(TOPIC)
        bench.end_pass()
        bench.restart()
        assert bench.delivery.inflight_count == 0
        assert bench.delivery.position(GROUP, QueueId(TOPIC, 0)) == (None, 0)


@pytest.mark.parametrize("by_key_max", [0, 2, 64])
def test_deleting_topics_leaves_nothing_of_what_is_in_flight(monkeypatch: pytest.MonkeyPatch, by_key_max: int) -> None:
    monkeypatch.setattr("quarry_mq.server.delivery.state.inflight.ROWS_BY_KEY_MAX", by_key_max)
    bench = DeliveryBench()
    for number in range(5):
        bench.send(b"m", queue=number % 4)
    assert len(bench.receive().messages) == 5
    assert len(bench.receive(group="other").messages) == 5
    bench.delivery.delete_topics([TOPIC, "never read"], durably=False)
    bench.delivery.store_durably()
    assert bench.delivery.inflight_count == 0
    for family in ("inflight", "offsets"):
        assert bench.engine.family(family).scan(KeyRange(b"", None)) == []


def test_deletions_that_need_not_be_durable_sync_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lite topics go by the hundred thousand: one flush of the disk for each would hold everybody up."""
    bench = DeliveryBench()
    bench.send(b"m")
    bench.receive()
    syncs: list[bool] = []
    write = bench.engine.write

    def noted(batch: WriteBatch, *, sync: bool = False) -> None:
        syncs.append(sync)
        write(batch, sync=sync)

    monkeypatch.setattr(bench.engine, "write", noted)
    bench.delivery.delete_topics([TOPIC], durably=False)
    assert syncs == [False]
    bench.delivery.store_durably()
    assert syncs == [False, True]


def test_an_idle_subscription_is_dropped_from_memory_and_comes_back() -> None:
    """rmq#8956: no object is kept per idle queue."""
    bench = DeliveryBench()
    bench.send(b"m")
    bench.acknowledge(bench.receive().messages[0])
    bench.advance(301)
    bench.delivery.drop_idle_subscriptions()
    assert bench.delivery.subscription_count == 0
    bench.send(b"n")
    assert bench.receive().bodies == [b"n"]


def test_with_very_many_queues_those_not_used_lately_are_dropped_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """rmq#8956: groups that read a million queues within minutes keep a bounded number of them in memory."""
    monkeypatch.setattr("quarry_mq.server.delivery.open_subscriptions.QUEUES_KEPT_MAX", 12)
    bench = DeliveryBench(queues=4, settings=EARLIEST)
    bench.send(b"m")
    for number in range(8):
        received = bench.receive(group=f"group-{number}", invisible_s=10)
        assert received.bodies == [b"m"]
        if number != 0:  # of what is in flight nothing is dropped
            bench.delivery.acknowledge(f"group-{number}", TOPIC, received.messages[0].receipt_handle)
            bench.end_pass()
        bench.advance(0.1)
    bench.delivery.drop_idle_subscriptions()
    assert bench.delivery.subscription_count == 3
    for number in range(1, 8):
        assert bench.receive(group=f"group-{number}").bodies == []
    bench.advance(10)
    assert bench.receive(group="group-0").bodies == [b"m"]
