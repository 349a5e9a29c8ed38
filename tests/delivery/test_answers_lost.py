"""An answer of which nothing left is no attempt: its messages are there at once, as if they had not been handed out."""

from __future__ import annotations

from typing import Any

import pytest

from quarry_mq.kv import EngineFull
from tests.delivery.broker import GROUP, TOPIC, DeliveryBench, Receive


def nothing_left(bench: DeliveryBench, lost: Receive) -> None:
    handles = [each.receipt_handle for each in lost.messages]
    bench.delivery.undeliverable(GROUP, TOPIC, handles, has_begun=False)
    bench.end_pass()


def attempts(receive: Receive) -> list[tuple[bytes, int]]:
    return [(bytes(each.record.body), each.attempt) for each in receive.messages]


@pytest.mark.parametrize("invisible_s", [60, None], ids=["hidden", "leased"])
@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
def test_a_group_with_one_attempt_has_no_dead_letters_that_nobody_saw(invisible_s: float | None, ordered: bool) -> None:
    bench = DeliveryBench(queues=1)
    bench.alive.add("client")
    for body in (b"1", b"2"):
        bench.send(body)
    for _ in range(20):
        lost = bench.receive(invisible_s=invisible_s, ordered=ordered, attempts_max=1)
        assert attempts(lost) == [(b"1", 1), (b"2", 1)]
        nothing_left(bench, lost)
    assert bench.delivery.inflight_count == 2
    got = bench.receive(invisible_s=invisible_s, ordered=ordered, attempts_max=1)
    for each in got.messages:
        bench.acknowledge(each)
    assert bench.dead_letters.bodies == []
    assert bench.delivery.inflight_count == 0


def test_who_waits_gets_it_at_once() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"m")
    lost = bench.receive()
    waiting = bench.receive(polling_s=20)
    nothing_left(bench, lost)
    assert attempts(waiting) == [(b"m", 1)]


def test_attempts_that_were_seen_stay_counted() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"m")
    bench.receive(invisible_s=1)
    bench.advance(1)
    lost = bench.receive()
    assert attempts(lost) == [(b"m", 2)]
    nothing_left(bench, lost)
    assert attempts(bench.receive()) == [(b"m", 2)]


def test_a_client_that_did_not_read_until_its_time_was_up_has_not_seen_it() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"m")
    lost = bench.receive(invisible_s=10, attempts_max=1)
    bench.advance(11)
    nothing_left(bench, lost)
    assert attempts(bench.receive(attempts_max=1)) == [(b"m", 1)]


def test_a_later_delivery_is_not_touched() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"m")
    lost = bench.receive(invisible_s=10)
    bench.advance(11)
    again = bench.receive()
    nothing_left(bench, lost)
    assert bench.receive().bodies == []
    bench.acknowledge(again.messages[0])
    nothing_left(bench, lost)
    assert bench.delivery.inflight_count == 0
    assert bench.receive().bodies == []


def test_what_comes_again_of_an_ordered_group_keeps_its_order() -> None:
    bench = DeliveryBench(queues=1)
    for body in (b"1", b"2", b"3"):
        bench.send(body)
    lost = bench.receive(batch=2, ordered=True, attempt_id="a")
    waiting = bench.receive(batch=2, ordered=True, attempt_id="b", polling_s=20)
    nothing_left(bench, lost)
    assert attempts(waiting) == [(b"1", 1), (b"2", 1)]
    for each in waiting.messages:
        bench.acknowledge(each)
    assert bench.receive(ordered=True).bodies == [b"3"]


def test_it_stays_so_over_a_restart_and_a_hand_out_before_a_crash_counts() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"m")
    nothing_left(bench, bench.receive(invisible_s=10))
    bench.restart(after_crash=True)
    assert attempts(bench.receive(invisible_s=10)) == [(b"m", 1)]
    bench.restart(after_crash=True)
    bench.advance(11)
    assert attempts(bench.receive()) == [(b"m", 2)], "nobody knows what became of the answer"


@pytest.mark.parametrize("is_waiting", [False, True])
def test_what_could_not_be_written_as_handed_out_is_no_attempt(is_waiting: bool) -> None:
    bench = DeliveryBench(queues=1)
    bench.receive()
    write, is_full = bench.engine.write, True

    def write_or_not(batch: Any, *, sync: bool = False) -> None:
        if is_full:
            raise EngineFull("no space left on device")
        write(batch, sync=sync)

    bench.engine.write = write_or_not  # type: ignore[method-assign]
    if is_waiting:
        refused = bench.receive(attempts_max=1, polling_s=20)
        bench.send(b"m")
    else:
        bench.send(b"m")
        refused = bench.receive(attempts_max=1)
    assert isinstance(refused.error, EngineFull)
    is_full = False
    bench.delivery.drop_idle_subscriptions()
    bench.end_pass()
    bench.end_pass()
    assert attempts(bench.receive(attempts_max=1)) == [(b"m", 1)]
    assert bench.dead_letters.bodies == []
