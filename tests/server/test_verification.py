"""Verification of the running store: one at a time, cancelled at once, and known of after the broker is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.maintenance.verification import OnlineVerification
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import StoreSection, VerificationSection
from quarry_mq.store.errors import Busy, Invalid
from quarry_mq.store.verify.report import VERDICTS_KEPT, Verdict, Verdicts, VerdictState
from tests.server.test_backup_points import Bench


class SlowClock(ManualClock):
    """Time flies: whatever was done took long, so that every pause is as long as it may be."""

    def monotonic_s(self) -> float:
        self.advance(60)
        return super().monotonic_s()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store")
    made.send(50)
    yield made
    made.store.close()


def verification(bench: Bench, clock: ManualClock | None = None) -> OnlineVerification:
    return OnlineVerification(
        bench.store,
        BrokerSettings(
            store=StoreSection(directory=bench.store.segments.directory.parent),
            verification=VerificationSection(interval_ms=0),
        ),
        points=bench.points,
        report_damage=lambda _: None,
        disk=bench.disk,
        clock=clock or bench.clock,
    )


@asynccontextmanager
async def running(work: OnlineVerification) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(work.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        await asyncio.wait_for(work.stop(), 30)


async def ended(work: OnlineVerification, verdict: Verdict) -> Verdict:
    while work.get(verdict.id).state is VerdictState.RUNNING or work.progress_of(verdict) is not None:
        await asyncio.sleep(0.01)
    return work.get(verdict.id)


async def under_way(work: OnlineVerification, verdict: Verdict) -> None:
    while (progress := work.progress_of(verdict)) is not None and progress.phase == "waiting":
        await asyncio.sleep(0.01)


def test_a_verdict_is_kept(bench: Bench) -> None:
    async def scenario() -> None:
        work = verification(bench)
        async with running(work):
            found = await ended(work, work.begin("operator", 100))
            assert (found.state, found.first, found.asked_by) == (VerdictState.AGREE, [], "operator")
            assert found.checks["records"] == [200, 0]
            assert work.progress_of(found) is None
            assert verification(bench).all() == [found]
        assert bench.pinned() == []

    asyncio.run(scenario())


def test_one_at_a_time_and_cancelled_within_a_pause(bench: Bench) -> None:
    """rocketmq-dashboard#4451: it is throttled, polled and cancelled; a pause does not delay that."""

    async def scenario() -> None:
        work = verification(bench, SlowClock())
        async with running(work):
            begun = work.begin("operator", 1)
            with pytest.raises(Busy, match=f"verification {begun.id} is already running"):
                work.begin("somebody else")
            await under_way(work, begun)
            assert work.cancel(begun.id) == begun
            found = await asyncio.wait_for(ended(work, begun), 30)
            assert found.state is VerdictState.CANCELLED
            with pytest.raises(Invalid, match="is not running"):
                work.cancel(begun.id)
        assert bench.pinned() == []

    asyncio.run(scenario())


def test_a_broker_that_stops_does_not_wait_for_it(bench: Bench) -> None:
    async def scenario() -> None:
        work = verification(bench, SlowClock())
        async with running(work):
            begun = work.begin("operator", 1)
            await under_way(work, begun)
        (left,) = verification(bench).all()
        assert (left.id, left.state) == (begun.id, VerdictState.FAILED)
        assert left.remark == "the broker stopped before the verification was complete"

    asyncio.run(scenario())
    assert bench.pinned() == []


def test_what_cannot_be_read_is_told(bench: Bench) -> None:
    async def scenario() -> None:
        work = verification(bench)
        points = [await bench.points.begin() for _ in range(4)]
        async with running(work):
            found = await ended(work, work.begin("operator"))
            assert (found.state, found.remark) == (VerdictState.FAILED, "4 backups are already being made")
        for point in points:
            bench.points.end(point.name)

    asyncio.run(scenario())


def test_what_it_refuses(bench: Bench) -> None:
    work = verification(bench)
    with pytest.raises(Invalid, match="there is no verification"):
        work.get(None)
    with pytest.raises(Invalid, match="there is no verification 7"):
        work.get(7)
    with pytest.raises(Invalid, match="busy_percent"):
        work.begin("operator", 101)
    asyncio.run(work.stop())


def test_the_newest_verdicts_stay(bench: Bench) -> None:
    verdicts = Verdicts(bench.store.state_engine)
    for number in range(VERDICTS_KEPT + 3):
        verdicts.save(Verdict(id=number, asked_by="operator", state=VerdictState.AGREE))
    assert [each.id for each in verdicts.all()] == list(range(VERDICTS_KEPT + 2, 2, -1))
