"""Messages that were delivered as often as their group allows (points 46 and 47)."""

from __future__ import annotations

import pytest

from quarry_mq.server.delivery.deliveries import FORWARDING_MS
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.store.errors import DiskRefused
from tests.delivery.broker import GROUP, TOPIC, DeliveryBench


def test_after_the_last_delivery_a_message_goes_to_the_dead_letters() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"bad")
    for attempt in (1, 2, 3):
        [delivered] = bench.receive(invisible_s=10, attempts_max=3).messages
        assert delivered.attempt == attempt
        bench.advance(10)
    assert bench.receive(attempts_max=3).bodies == []
    assert bench.dead_letters.bodies == [b"bad"]
    assert bench.delivery.inflight_count == 0
    bench.advance(100)
    assert bench.receive(attempts_max=3).bodies == []
    assert bench.dead_letters.bodies == [b"bad"]


def test_the_others_are_delivered_beside_it() -> None:
    bench = DeliveryBench(queues=1)
    for body in (b"bad", b"good"):
        bench.send(body)
    bench.receive(batch=1, invisible_s=10)
    bench.advance(10)
    assert bench.receive(attempts_max=1).bodies == [b"good"]
    assert bench.dead_letters.bodies == [b"bad"]


def test_what_could_not_be_stored_is_tried_again() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"bad")
    bench.receive(invisible_s=10)
    bench.advance(10)
    bench.dead_letters.error = DiskRefused("no room")
    assert bench.receive(attempts_max=1).bodies == []
    assert bench.delivery.inflight_count == 1
    bench.dead_letters.error = None
    assert bench.receive(attempts_max=1).bodies == []
    assert bench.dead_letters.bodies == [], "not at once again"
    bench.advance(FORWARDING_MS / 1000)
    bench.receive(attempts_max=1)
    assert bench.dead_letters.bodies == [b"bad"]
    assert bench.delivery.inflight_count == 0


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("by_client", [False, True])
def test_a_dead_letter_is_stored_once_however_long_its_append_lasts(*, ordered: bool, by_client: bool) -> None:
    bench = DeliveryBench(queues=1)
    for body in (b"bad", b"good"):
        bench.send(body)
    bench.dead_letters.is_slow = True
    [delivered] = bench.receive(batch=1, invisible_s=10, ordered=ordered).messages
    if by_client:
        bench.delivery.dead_letter(GROUP, TOPIC, delivered.receipt_handle, lambda _: None)
        bench.end_pass()
    got = list[bytes]()
    for _ in range(5):
        bench.advance(FORWARDING_MS / 1000 + 1)
        got += bench.receive(attempts_max=1, invisible_s=3600, ordered=ordered).bodies
    assert got == ([] if ordered else [b"good"]), "an ordered queue waits for the message before"
    bench.dead_letters.append_pending()
    bench.end_pass()
    assert bench.dead_letters.bodies == [b"bad"]
    bench.advance(3600)
    assert bench.receive(attempts_max=2, ordered=ordered).bodies == [b"good"]
    assert bench.dead_letters.bodies == [b"bad"]
    assert bench.delivery.inflight_count == 1


def test_a_slow_append_that_is_refused_in_the_end_is_tried_again() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"bad")
    bench.receive(invisible_s=10)
    bench.dead_letters.is_slow = True
    for _ in range(3):
        bench.advance(FORWARDING_MS / 1000 + 1)
        assert bench.receive(attempts_max=1).bodies == []
    bench.dead_letters.error = DiskRefused("no room")
    bench.dead_letters.append_pending()
    assert bench.delivery.inflight_count == 1
    bench.dead_letters.error, bench.dead_letters.is_slow = None, False
    bench.advance(FORWARDING_MS / 1000 + 1)
    assert bench.receive(attempts_max=1).bodies == []
    assert bench.dead_letters.bodies == [b"bad"]
    assert bench.delivery.inflight_count == 0


def test_a_client_may_bury_a_message_that_it_holds() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"bad")
    [delivered] = bench.receive().messages
    ended: list[Exception | None] = []
    bench.delivery.dead_letter(GROUP, TOPIC, delivered.receipt_handle, ended.append)
    bench.end_pass()
    assert ended == [None]
    assert bench.dead_letters.bodies == [b"bad"]
    with pytest.raises(InvalidReceiptHandle):
        bench.delivery.dead_letter(GROUP, TOPIC, delivered.receipt_handle, ended.append)
    bench.advance(100)
    assert bench.receive().bodies == []


def test_without_a_limit_a_message_comes_for_ever() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"again")
    for attempt in range(1, 40):
        [delivered] = bench.receive(invisible_s=1).messages
        assert delivered.attempt == attempt
        bench.advance(1)
    assert not bench.dead_letters.bodies


def test_messages_of_higher_priority_come_first() -> None:
    bench = DeliveryBench(queues=4)
    for queue in (1, 3, 0, 2, 3):
        bench.send(b"%d" % queue, queue=queue)
    assert bench.receive(batch=3, highest_first=True).bodies == [b"3", b"3", b"2"]
    bench.send(b"3", queue=3)
    assert bench.receive(highest_first=True).bodies == [b"3", b"1", b"0"]
