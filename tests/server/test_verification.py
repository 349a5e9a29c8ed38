"""Verification of the running store: one at a time, cancelled at once, and known of after the broker is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quarry_mq.kv.keys import prefix_range
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.maintenance.verification import OnlineVerification
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import StoreSection, VerificationSection
from quarry_mq.store.errors import Busy, Invalid, StoreDamaged
from quarry_mq.store.state.identity import META
from quarry_mq.store.verify.report import THE_BROKER, VERDICTS_KEPT, Verdict, Verdicts, VerdictState
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
    made.store.messages.flush()
    yield made
    made.store.close()


def verification(
    bench: Bench,
    clock: ManualClock | None = None,
    *,
    interval_ms: int = 0,
    report_damage: Callable[[StoreDamaged], None] = lambda _: None,
) -> OnlineVerification:
    return OnlineVerification(
        bench.store,
        settings_of(bench, interval_ms=interval_ms),
        points=bench.points,
        report_damage=report_damage,
        disk=bench.disk,
        clock=clock or bench.clock,
    )


def settings_of(bench: Bench, *, interval_ms: int) -> BrokerSettings:
    return BrokerSettings(
        store=StoreSection(directory=bench.store.segments.directory.parent),
        verification=VerificationSection(interval_ms=interval_ms),
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


def test_damage_of_the_log_that_it_finds_is_reported_like_that_of_a_read(bench: Bench) -> None:
    path = bench.store.segments.path_of(bench.store.segments.minimum)
    octets = bytearray(path.read_bytes())
    octets[100] ^= 1
    path.write_bytes(octets)
    met: list[StoreDamaged] = []

    async def scenario() -> None:
        work = verification(bench, report_damage=met.append)
        async with running(work):
            found = await ended(work, work.begin("operator", 100))
        assert found.state is VerdictState.DIFFER
        assert dict(found.first)["log"].startswith(str(path))

    asyncio.run(scenario())
    assert [each.record_at for each in met] == [0]
    assert str(met[0]).startswith(f"{path}: the record at offset 0 is damaged: the ")


def test_sweeps_over_the_log_are_listed_and_go_on_between_verifications(bench: Bench) -> None:
    async def scenario() -> None:
        work = verification(bench, interval_ms=1_000)
        async with running(work):
            bench.clock.advance(1)
            work.configure(settings_of(bench, interval_ms=1_000))
            while work.sweeps.finished is None:
                await asyncio.sleep(0.01)
            sweep = work.get(None)
            assert (sweep.asked_by, sweep.checks) == (THE_BROKER, {"log": [150, 0]})
            found = await ended(work, work.begin("operator", 100))
            assert work.get(None) == found, "what somebody asked for comes first"
            assert [each.id for each in work.requested()] == [found.id]
            assert work.all() == [found, sweep]
            bench.clock.advance(1)
            work.configure(settings_of(bench, interval_ms=1_000))
            while work.sweeps.finished.id == sweep.id:
                await asyncio.sleep(0.01)
        assert len(work.all()) == 3

    asyncio.run(scenario())


def test_a_sweep_is_nobodys_to_begin_or_to_cancel(bench: Bench) -> None:
    async def scenario() -> None:
        work = verification(bench, interval_ms=1_000)
        with pytest.raises(Invalid, match="asked_by must not be 'the broker'"):
            work.begin(THE_BROKER)
        await work.sweeps.work()
        bench.clock.advance(1)
        await work.sweeps.work()
        current = work.sweeps.current
        assert current is not None
        progress = work.progress_of(current)
        assert progress is not None
        assert (progress.phase, progress.total_bytes) == ("reading the log", bench.store.messages.flushed_up_to)
        with pytest.raises(Invalid, match=r"is a sweep of the broker over its log: verification\.interval_ms = 0"):
            work.cancel(current.id)
        work.configure(settings_of(bench, interval_ms=0))
        assert work.all() == []
        await work.stop()

    asyncio.run(scenario())


def test_a_verdict_of_a_later_version_is_read(bench: Bench) -> None:
    engine = bench.store.state_engine
    family = engine.family(META)
    Verdicts(engine).save(Verdict(id=7, asked_by="operator", state=VerdictState.AGREE))
    ((key, value),) = family.scan(prefix_range(b"verification/"))
    batch = engine.batch()
    batch.put(family, key, value.replace(b"{", b'{"a_later_field": 1, ', 1))
    engine.write(batch)
    assert [each.id for each in Verdicts(engine).all()] == [7]


def test_the_newest_verdicts_stay(bench: Bench) -> None:
    verdicts = Verdicts(bench.store.state_engine)
    for number in range(VERDICTS_KEPT + 3):
        verdicts.save(Verdict(id=number, asked_by="operator", state=VerdictState.AGREE))
    assert [each.id for each in verdicts.all()] == list(range(VERDICTS_KEPT + 2, 2, -1))
