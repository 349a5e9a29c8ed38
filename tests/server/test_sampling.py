"""Figures made in the background leave the event loop to others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from quarry_mq.protocol.clock import ManualClock, SystemClock
from quarry_mq.server.lag.measurement import RunningCount
from quarry_mq.server.observability.samples import PAUSES_PER_SLICE, PAUSES_WHILE_BUSY, Sampling
from quarry_mq.server.tasks import WORK_S
from quarry_mq.store.errors import StoreDamaged

TOOK_S = 2 * WORK_S
INTERVAL_S = 1_000.0


def test_rows_are_counted_once_and_changes_meanwhile_are_added() -> None:
    count = RunningCount(iter(range(10)), changes=5)
    assert not count.step(4)
    assert count.value(5) is None
    assert not count.step(4)
    assert count.step(4)
    assert count.step(4)
    assert (count.value(5), count.value(8), count.value(1)) == (10, 13, 6)


def test_a_sweep_never_holds_the_loop_for_long_and_sweeps_go_on_after_errors() -> None:
    ended: list[str] = []
    clock = SystemClock()

    def busy() -> Iterator[None]:
        for _ in range(200):
            until_s = clock.monotonic_s() + WORK_S / 5
            while clock.monotonic_s() < until_s:
                pass
            yield
        ended.append("busy")

    def broken() -> Iterator[None]:
        yield
        ended.append("broken")
        raise StoreDamaged(__file__, "on purpose")  # type: ignore[arg-type]

    async def test() -> None:
        sampling = Sampling((broken, busy), interval_s=0, clock=clock)
        assert sampling.age_s is None
        task = asyncio.create_task(sampling.run())
        began_s, turns = clock.monotonic_s(), 0
        while ended.count("busy") < 1:
            await asyncio.sleep(0)
            turns += 1
        took_s = clock.monotonic_s() - began_s
        task.cancel()
        await asyncio.wait([task])
        assert "broken" in ended
        assert took_s > 200 * WORK_S / 5 * PAUSES_PER_SLICE
        assert turns > 200
        assert sampling.age_s is not None

    asyncio.run(test())


@pytest.mark.parametrize(
    ("others_share", "paused"),
    [(0.4, [PAUSES_PER_SLICE]), (0.6, [PAUSES_PER_SLICE, PAUSES_WHILE_BUSY - PAUSES_PER_SLICE])],
)
def test_while_others_keep_the_loop_busy_it_is_left_to_them_for_longer(
    monkeypatch: pytest.MonkeyPatch, others_share: float, paused: list[int]
) -> None:
    clock, cpu_s, sleeps = ManualClock(), 0.0, list[float]()

    async def sleep(seconds: float) -> None:
        nonlocal cpu_s
        if seconds == INTERVAL_S:
            raise asyncio.CancelledError
        sleeps.append(seconds)
        clock.advance(seconds)
        cpu_s += others_share * seconds

    def one_step() -> Iterator[None]:
        clock.advance(TOOK_S)
        yield

    monkeypatch.setattr(asyncio, "sleep", sleep)
    sampling = Sampling((one_step,), interval_s=INTERVAL_S, clock=clock, cpu_s=lambda: cpu_s)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(sampling.run())
    assert sleeps == [pytest.approx(pauses * TOOK_S) for pauses in paused]
