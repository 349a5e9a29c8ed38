"""Operators' requests are computed a little at a time, and their figures are right."""

from __future__ import annotations

import asyncio

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.counters import Rates, RecentRates, Traffic
from quarry_mq.server.lag.group_progress import NOTHING, Accumulation, Budget
from quarry_mq.server.tasks import PAUSES_PER_SLICE, TURNS, WORK_S, Pacing
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import Appended, PhysicalOffset, QueueOffset


def test_long_work_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slept = ManualClock(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def test() -> None:
        async with Pacing(clock).turn() as time_slice:
            await time_slice.pause()
            assert not slept
            for _ in range(3):
                clock.advance(WORK_S)
                await time_slice.pause()
                await time_slice.pause()

    monkeypatch.setattr("quarry_mq.server.tasks.asyncio.sleep", sleep)
    asyncio.run(test())
    assert slept == [pytest.approx(PAUSES_PER_SLICE * WORK_S)] * 3


def test_not_much_long_work_is_done_at_once() -> None:
    async def test() -> None:
        pacing, at_work, most = Pacing(ManualClock()), 0, 0

        async def work() -> None:
            nonlocal at_work, most
            async with pacing.turn():
                at_work += 1
                most = max(most, at_work)
                await asyncio.sleep(0)
                at_work -= 1

        await asyncio.gather(*(work() for _ in range(10)))
        assert most == TURNS

    asyncio.run(test())


def test_rates_are_those_of_the_last_seconds() -> None:
    clock, traffic = ManualClock(), Traffic(topics_max=10, groups_max=10)
    rates = RecentRates(traffic, clock)
    assert rates.totals() == Rates(0, 0)
    appended = [Appended(QueueOffset(0), PhysicalOffset(0), 100, 0)] * 20
    traffic.sent("orders", "normal", appended)
    traffic.received("billing", "orders", 10, 1000, is_retry=False)
    clock.advance(2)
    assert rates.totals() == Rates(10, 5)
    for _ in range(30):
        rates.sample()
        clock.advance(0.5)
    assert rates.totals() == Rates(0, 0)


def test_a_delay_that_is_not_known_is_not_known_of_the_whole() -> None:
    """dashboard#4516."""
    known, unknown = Accumulation(1, 2, 3_000, 50), Accumulation(0, 1, None, None)
    assert known.with_more(known._replace(delay_ms=9, passed_ms=70)) == Accumulation(2, 4, 3_000, 70)
    assert known.with_more(unknown) == unknown.with_more(known) == Accumulation(1, 3, None, 50)
    assert NOTHING.with_more(known) == known
    assert NOTHING.with_more(unknown).with_more(known).delay_ms is None


def test_a_request_looks_at_so_many_queues_and_no_more() -> None:
    budget = Budget(2)
    budget.take()
    budget.take()
    with pytest.raises(Invalid, match="topics"):
        budget.take()
