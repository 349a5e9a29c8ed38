"""Ordered groups: a queue is blocked while one of its messages is hidden (points 50 to 52)."""

from __future__ import annotations

import pytest

from quarry_mq.server.delivery import fetch
from tests.delivery.broker import DeliveryBench, Receive


def bench_with(*bodies: bytes, queues: int = 1) -> DeliveryBench:
    bench = DeliveryBench(queues=queues)
    for body in bodies:
        bench.send(body)
    return bench


def test_the_next_message_comes_when_the_one_before_is_acknowledged() -> None:
    bench = bench_with(b"1", b"2", b"3")
    bodies = []
    for _ in range(3):
        received = bench.receive(batch=1, ordered=True)
        assert bench.receive(batch=1, ordered=True, client="other").bodies == [], "the queue is blocked"
        bodies += received.bodies
        bench.acknowledge(received.messages[0])
    assert bodies == [b"1", b"2", b"3"]


def test_who_waits_gets_the_next_message_as_soon_as_the_queue_is_free() -> None:
    bench = bench_with(b"1", b"2")
    first = bench.receive(batch=1, ordered=True)
    waiting = bench.receive(batch=1, ordered=True, polling_s=20)
    assert not waiting.ended
    bench.acknowledge(first.messages[0])
    assert waiting.bodies == [b"2"]


def test_other_queues_are_not_blocked() -> None:
    bench = DeliveryBench(queues=2)
    for queue in (0, 1):
        for number in range(2):
            bench.send(b"%d%d" % (queue, number), queue=queue)
    received = [bench.receive(batch=1, ordered=True).bodies for _ in range(3)]
    assert sorted(body for bodies in received for body in bodies) == [b"00", b"10"]


def test_what_was_not_acknowledged_comes_again_in_order_before_all_that_follows() -> None:
    """Point 52: of a batch of three the second is missing."""
    bench = bench_with(b"1", b"2", b"3", b"4")
    batch = bench.receive(batch=3, ordered=True, invisible_s=10).messages
    bench.acknowledge(batch[0])
    bench.acknowledge(batch[2])
    assert bench.receive(ordered=True).bodies == []
    bench.advance(10)
    again = bench.receive(ordered=True).messages
    assert [(bytes(each.record.body), each.attempt) for each in again] == [(b"2", 2)]
    assert bench.receive(ordered=True).bodies == []
    bench.acknowledge(again[0])
    assert bench.receive(ordered=True).bodies == [b"4"]


def test_nothing_new_of_a_queue_comes_before_the_first_is_done_however_often_that_comes() -> None:
    """RocketMQ's own end-to-end suite counts three different messages; the other queue goes on."""
    bench = DeliveryBench(queues=2)
    for number in range(12):
        bench.send(b"%d" % number)
    for body in (b"x", b"y"):
        bench.send(body, queue=1)
    seen: list[bytes] = []
    for _ in range(5):
        for received in [bench.receive(batch=3, ordered=True, invisible_s=10) for _ in range(2)]:
            seen += received.bodies
            for each in received.messages:
                if bytes(each.record.body) != b"0":
                    bench.acknowledge(each)
        bench.advance(10)
    assert sorted(set(seen)) == [b"0", b"1", b"2", b"x", b"y"]
    assert [seen.count(body) for body in (b"0", b"1", b"2")] == [5, 1, 1]
    bench.acknowledge(bench.receive(batch=3, ordered=True).messages[0])
    assert bench.receive(batch=3, ordered=True).bodies == [b"3", b"4", b"5"]


@pytest.mark.parametrize("acknowledged", [(), (0,), (1,), (2,), (0, 1), (1, 2), (0, 2)])
def test_of_several_that_are_missing_all_come_alone_whatever_was_asked_for(acknowledged: tuple[int, ...]) -> None:
    bench = bench_with(*[b"%d" % number for number in range(9)])
    first = bench.receive(batch=3, ordered=True, invisible_s=10).messages
    for at in acknowledged:
        bench.acknowledge(first[at])
    bench.advance(10)
    missing = [b"%d" % at for at in range(3) if at not in acknowledged]
    again = bench.receive(batch=9, ordered=True, invisible_s=10)
    assert again.bodies == missing
    waiting = bench.receive(batch=9, ordered=True, polling_s=60)
    for each in again.messages[:-1]:
        bench.acknowledge(each)
        assert not waiting.ended
    bench.acknowledge(again.messages[-1])
    assert waiting.bodies == [b"%d" % number for number in range(3, 9)]


def test_what_is_given_back_at_once_comes_alone_too() -> None:
    bench = bench_with(b"1", b"2", b"3")
    [first] = bench.receive(batch=1, ordered=True).messages
    bench.delivery.change_invisible("billing", "orders", first.receipt_handle, 0)
    bench.end_pass()
    assert bench.receive(batch=3, ordered=True).bodies == [b"1"]


def test_new_ones_come_once_the_first_became_a_dead_letter() -> None:
    bench = bench_with(b"1", b"2", b"3", b"4")
    for _ in range(2):
        for each in bench.receive(batch=2, ordered=True, invisible_s=10, attempts_max=2).messages:
            if bytes(each.record.body) != b"1":
                bench.acknowledge(each)
        bench.advance(10)
    assert bench.receive(batch=2, ordered=True, attempts_max=2).bodies == [b"3", b"4"]
    assert bench.dead_letters.bodies == [b"1"]


def test_the_whole_remainder_comes_again_once_all_of_it_is_visible() -> None:
    bench = bench_with(b"1", b"2", b"3")
    batch = bench.receive(batch=3, ordered=True, invisible_s=10).messages
    bench.delivery.change_invisible("billing", "orders", batch[1].receipt_handle, 60_000)
    bench.end_pass()
    bench.advance(10)
    assert bench.receive(ordered=True).bodies == [], "one postponed message holds the rest back"
    bench.advance(50)
    assert bench.receive(batch=2, ordered=True).bodies == [b"1", b"2"]
    assert bench.receive(ordered=True).bodies == []


def test_who_repeats_a_receive_gets_the_same_messages_and_no_count_goes_up() -> None:
    """Point 51: its client did not get the answer."""
    bench = bench_with(b"1", b"2", b"3")
    first = bench.receive(batch=2, ordered=True, attempt_id="a").messages
    again = bench.receive(batch=2, ordered=True, attempt_id="a").messages
    assert [bytes(each.record.body) for each in again] == [b"1", b"2"]
    assert [each.attempt for each in again] == [1, 1]
    assert [each.receipt_handle for each in again] == [each.receipt_handle for each in first], "either may be used"
    assert bench.receive(batch=2, ordered=True, attempt_id="b").bodies == []
    bench.acknowledge(again[0])
    assert bench.receive(batch=2, ordered=True, attempt_id="a").bodies == [b"2"]


def test_who_repeats_a_receive_gets_what_was_given_back_before_what_was_not() -> None:
    bench = bench_with(b"1", b"2", b"3")
    first = bench.receive(batch=2, ordered=True, attempt_id="a").messages
    bench.delivery.change_invisible("billing", "orders", first[0].receipt_handle, 0)
    bench.end_pass()
    again = bench.receive(batch=2, ordered=True, attempt_id="a").messages
    assert [(bytes(each.record.body), each.attempt) for each in again] == [(b"1", 2), (b"2", 1)]
    bench.delivery.change_invisible("billing", "orders", again[0].receipt_handle, 0)
    bench.end_pass()
    assert bench.receive(batch=1, ordered=True, attempt_id="a").bodies == [b"1"]


def test_who_repeats_a_receive_with_less_room_gets_the_first_of_them() -> None:
    bench = bench_with(b"1", b"2", b"3")
    bench.receive(batch=3, ordered=True, attempt_id="a")
    assert bench.receive(batch=1, ordered=True, attempt_id="a").bodies == [b"1"]


def test_who_repeats_a_receive_does_not_get_what_is_on_its_way_to_the_dead_letters() -> None:
    bench = bench_with(b"1", b"2")
    [first] = bench.receive(batch=1, ordered=True, attempt_id="a").messages
    bench.dead_letters.error = OSError("no room")
    bench.delivery.dead_letter("billing", "orders", first.receipt_handle, lambda _: None)
    bench.end_pass()
    assert bench.receive(batch=1, ordered=True, attempt_id="a").bodies == []


def test_what_goes_to_the_dead_letters_at_once_disturbs_nobody_who_waits() -> None:
    bench = bench_with(b"1", b"2", b"3")
    bench.receive(batch=1, ordered=True, invisible_s=10, attempts_max=1)
    waiting = [bench.receive(batch=1, ordered=True, polling_s=30, attempts_max=1) for _ in range(2)]
    bench.advance(10)
    assert bench.dead_letters.bodies == [b"1"]
    assert [each.bodies for each in waiting if each.ended] == [[b"2"]]
    assert bench.reported == []
    bench.acknowledge(waiting[0].messages[0])
    assert waiting[1].bodies == [b"3"]
    assert bench.delivery.inflight_count == 1


def test_blocking_and_attempts_survive_a_restart() -> None:
    bench = bench_with(b"1", b"2")
    first = bench.receive(batch=1, ordered=True, invisible_s=10, attempt_id="a").messages
    bench.restart()
    assert bench.receive(batch=1, ordered=True).bodies == []
    assert bench.receive(batch=1, ordered=True, attempt_id="a").bodies == [b"1"]
    bench.acknowledge(first[0])
    assert bench.receive(batch=1, ordered=True, invisible_s=10).bodies == [b"2"]
    bench.restart()
    waiting = bench.receive(batch=1, ordered=True, polling_s=30)
    bench.advance(10)
    assert waiting.bodies == [b"2"]
    assert waiting.messages[0].attempt == 2


def test_a_lease_blocks_as_long_as_its_client_lives() -> None:
    bench = bench_with(b"1", b"2")
    bench.alive.add("push")
    bench.receive(batch=1, ordered=True, invisible_s=None, client="push")
    for _ in range(5):
        bench.advance(50)
        assert bench.receive(batch=1, ordered=True).bodies == []
    bench.alive.discard("push")
    bench.delivery.client_lost("push")
    bench.end_pass()
    waiting = bench.receive(batch=1, ordered=True, polling_s=20)
    bench.advance(1.1)
    assert waiting.bodies == [b"1"]


def test_a_message_that_was_delivered_too_often_makes_room_for_the_next() -> None:
    bench = bench_with(b"1", b"2")
    for attempt in (1, 2):
        received = bench.receive(batch=1, ordered=True, invisible_s=10, attempts_max=2)
        assert [(bytes(each.record.body), each.attempt) for each in received.messages] == [(b"1", attempt)]
        bench.advance(10)
    assert bench.receive(batch=1, ordered=True, attempts_max=2, polling_s=1).bodies == [b"2"]
    assert bench.dead_letters.bodies == [b"1"]


def test_a_damaged_message_blocks_its_queue_alone() -> None:
    bench = DeliveryBench(queues=2)
    bench.send(b"a1")
    bench.send(b"b1", queue=1)
    bench.source.unreadable.add(0)
    first = bench.receive(ordered=True)
    assert first.bodies == [b"b1"]
    with pytest.raises(OSError, match="cannot read"):
        bench.receive(ordered=True)
    bench.source.unreadable.clear()
    assert bench.receive(ordered=True).bodies == [b"a1"]


def test_an_answer_that_has_no_room_for_all_blocks_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "ANSWER_SIZE_MAX", 150)
    bench = DeliveryBench(queues=1)
    for body in (b"1", b"2"):
        bench.send(body)

    def bodies(receive: Receive) -> list[bytes]:
        return receive.bodies

    received = bench.receive(ordered=True)
    assert bodies(received) == [b"1"]
    assert bodies(bench.receive(ordered=True)) == []
    bench.acknowledge(received.messages[0])
    assert bodies(bench.receive(ordered=True)) == [b"2"]
