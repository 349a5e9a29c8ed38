"""Messages that are hidden for as long as their clients live, and times that are up meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.errors import InvalidReceiptHandle
from tests.delivery.broker import GROUP, TOPIC, DeliveryBench


def test_a_lease_is_renewed_while_its_client_lives_and_released_when_it_is_lost() -> None:
    bench = DeliveryBench()
    bench.alive.add("worker")
    bench.send(b"long work")
    leased = bench.receive(invisible_s=None, client="worker").messages[0]
    for _ in range(10):
        bench.advance(45)
    assert bench.receive().bodies == []
    bench.alive.discard("worker")
    bench.delivery.client_lost("worker")
    bench.end_pass()
    bench.advance(0.9)
    assert bench.receive().bodies == []
    bench.advance(0.2)
    assert bench.receive().messages[0].attempt == 2
    with pytest.raises(InvalidReceiptHandle):
        bench.acknowledge(leased)


def test_a_client_is_lost_at_the_moment_at_which_the_time_of_a_message_is_up() -> None:
    """That one is ready by then, and the rest is given back all the same."""
    bench = DeliveryBench()
    bench.alive.add("worker")
    for body in (b"early", b"late"):
        bench.send(body)
        assert bench.receive(invisible_s=None, client="worker").bodies == [body]
        bench.advance(30)
    bench.alive.discard("worker")
    bench.delivery.client_lost("worker")
    bench.end_pass()
    bench.alive.add("worker")  # what was ready is not kept for it
    assert bench.receive().bodies == [b"early"]
    bench.advance(1)
    assert bench.receive().bodies == [b"late"]


def test_time_goes_on_while_what_a_lost_client_had_is_given_back() -> None:
    """A thousand are given back at a time. What is ready when its turn comes stays so."""
    bench = DeliveryBench()
    bench.alive.add("worker")
    for number in range(1_002):
        bench.send(b"%d" % number)
    received = 0
    while received < 1_000:
        received += len(bench.receive(batch=min(32, 1_000 - received), invisible_s=None, client="worker").bodies)
    bench.clock.advance(0.001)
    assert len(bench.receive(invisible_s=None, client="worker").bodies) == 2
    bench.clock.advance(59.998)
    bench.alive.discard("worker")
    bench.delivery.client_lost("worker")
    bench.advance(0.002)
    bench.alive.add("worker")
    bodies = [body for _ in range(40) for body in bench.receive().bodies]
    assert len(set(bodies)) == len(bodies) == 1_002


class TickingClock(ManualClock):
    """One that goes on when somebody looks at it."""

    tick_s = 0.0

    def monotonic_s(self) -> float:
        self.advance(self.tick_s)
        return super().monotonic_s()


ACTS: list[Callable[[DeliveryBench, str], object]] = [
    lambda bench, handle: bench.delivery.acknowledge(GROUP, TOPIC, handle),
    lambda bench, handle: bench.delivery.change_invisible(GROUP, TOPIC, handle, 5_000),
    lambda bench, handle: bench.delivery.dead_letter(GROUP, TOPIC, handle, lambda _error: None),
    lambda bench, handle: bench.delivery.undeliverable(GROUP, TOPIC, [handle], has_begun=True),
]


@pytest.mark.parametrize("left_ms", range(1, 6))
@pytest.mark.parametrize("act", ACTS, ids=["acknowledge", "change", "bury", "give back"])
def test_the_time_of_a_message_is_up_while_something_is_done_with_it(
    act: Callable[[DeliveryBench, str], object], left_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A millisecond goes by with each look at the clock. What was found in time is done, the rest refused."""
    monkeypatch.setattr("tests.delivery.broker.ManualClock", TickingClock)
    bench = DeliveryBench()
    bench.send(b"m")
    handle = bench.receive(invisible_s=10).messages[0].receipt_handle
    bench.advance(10 - left_ms / 1_000)
    monkeypatch.setattr(TickingClock, "tick_s", 0.001)
    with suppress(InvalidReceiptHandle):
        act(bench, handle)
    bench.end_pass()
    assert bench.reported == []


def test_a_lease_ends_after_its_total_time_although_the_client_lives() -> None:
    bench = DeliveryBench()
    bench.alive.add("worker")
    bench.send(b"stuck")
    bench.receive(invisible_s=None, client="worker")
    for _ in range(3 * 60 + 2):
        bench.advance(60)
    assert bench.receive().messages[0].attempt == 2


def test_a_leased_handle_is_good_after_a_restart_before_its_client_has_come_back() -> None:
    bench = DeliveryBench()
    bench.alive.add("worker")
    bench.send(b"m")
    leased = bench.receive(invisible_s=None, client="worker").messages[0]
    bench.alive.clear()
    bench.advance(50)
    bench.restart()
    bench.advance(20)
    bench.acknowledge(leased)
    bench.advance(100)
    assert bench.receive().bodies == []


@pytest.mark.parametrize("after_crash", [True, False])
def test_after_a_crash_a_lease_ends_although_its_client_lives(after_crash: bool) -> None:
    """The answer may never have left. After a stop in good order the client has got it, or it was given back."""
    bench = DeliveryBench()
    bench.alive.add("worker")
    bench.send(b"m")
    bench.receive(invisible_s=None, client="worker")
    bench.restart(after_crash=after_crash)
    bench.advance(59)
    assert bench.receive().bodies == []
    bench.advance(59)
    bench.restart()
    bench.advance(60)
    assert bench.receive().bodies == ([b"m"] if after_crash else [])


@pytest.mark.parametrize("invisible_s", [None, 30.0])
def test_what_a_clock_that_was_years_ahead_has_hidden_comes_back_at_the_next_start(invisible_s: float | None) -> None:
    bench = DeliveryBench()
    bench.alive.add("worker")
    bench.clock.jump(10 * 365 * 86_400)
    bench.restart()
    bench.send(b"hidden")
    assert bench.receive(invisible_s=invisible_s, client="worker").bodies == [b"hidden"]
    bench.send(b"acknowledged")
    bench.acknowledge(bench.receive(invisible_s=invisible_s, client="worker").messages[0])
    bench.clock.jump(-10 * 365 * 86_400)
    bench.alive.clear()
    bench.restart()
    bench.advance(1)
    (again,) = bench.receive().messages
    assert (bytes(again.record.body), again.attempt) == (b"hidden", 2)
    bench.acknowledge(again)
    assert bench.delivery.inflight_count == 0
    bench.restart()
    assert bench.receive().bodies == []


def test_what_is_hidden_for_as_long_as_may_be_stays_so_over_a_restart() -> None:
    """Also where the clock is set back by some days meanwhile."""
    bench = DeliveryBench()
    bench.send(b"hidden")
    bench.receive(invisible_s=12 * 3600.0)
    bench.clock.jump(-6 * 86_400)
    bench.restart()
    bench.advance(1)
    assert bench.receive().bodies == []
