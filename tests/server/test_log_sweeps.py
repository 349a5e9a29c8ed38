"""The log of a running broker is read sweep after sweep: when, how fast, and how far after a restart."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quarry_mq.server.maintenance.log_sweeps import BUSY_RATIO, IDLE_S, RATE_MIN, RETRY_S, START_DELAY_S, LogSweeps
from quarry_mq.server.settings.sections import VerificationSection
from quarry_mq.server.tasks import Worker
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.verify import LogCheck
from quarry_mq.store.verify.report import THE_BROKER, VERDICTS_KEPT, Verdict, Verdicts, VerdictState
from tests.server.test_backup_points import Bench

HOUR_S = 3_600
SEGMENT_SIZE = 64 * 1024


class Sweeps:
    """The sweeps of a store, in a time that the test moves: a pause passes at once."""

    def __init__(self, bench: Bench, interval_ms: int = 24 * HOUR_S * 1_000, rate: int = 32 << 20) -> None:
        self.bench = bench
        self.damage: list[StoreDamaged] = []
        self.verdicts = Verdicts(bench.store.state_engine)
        self.worker = Worker("verification")
        self.sweeps = LogSweeps(
            VerificationSection.model_validate({"interval_ms": interval_ms, "rate": rate}),
            segments=bench.store.segments,
            messages=bench.store.messages,
            verdicts=self.verdicts,
            worker=self.worker,
            report_damage=self.damage.append,
            clock=bench.clock,
        )

    async def work(self) -> float:
        """Do one piece of work; the pause after it passes."""
        pause_s = await self.sweeps.work()
        self.bench.clock.advance(pause_s)
        return pause_s

    async def until(self, reached: Callable[[], bool]) -> float:
        """Work until this is so; return the seconds that it took."""
        began_s = self.bench.clock.monotonic_s()
        while not reached():
            await self.work()
        return self.bench.clock.monotonic_s() - began_s

    async def finished(self) -> Verdict:
        before = self.sweeps.finished
        await self.until(lambda: self.sweeps.finished is not before)
        assert self.sweeps.finished is not None
        return self.sweeps.finished


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store")
    made.send(400)
    made.store.messages.flush()
    yield made
    made.store.close()


def flip(bench: Bench, at: int) -> None:
    path = bench.store.segments.path_of(PhysicalOffset(at))
    octets = bytearray(path.read_bytes())
    octets[at % SEGMENT_SIZE] ^= 1
    path.write_bytes(octets)


def test_a_sweep_begins_after_the_start_and_then_once_in_an_interval(bench: Bench) -> None:
    async def scenario() -> None:
        made = Sweeps(bench)
        assert made.sweeps.current is None
        assert await made.until(lambda: made.sweeps.current is not None) >= START_DELAY_S
        assert bench.clock.monotonic_s() < START_DELAY_S + 1
        first = await made.finished()
        assert (first.state, first.asked_by, first.checks) == (VerdictState.AGREE, THE_BROKER, {"log": [1_200, 0]})
        assert (first.log_begin, first.log_end) == (0, bench.store.messages.flushed_up_to)
        assert made.sweeps.progress is None
        second = await made.finished()
        assert second.id - first.id == pytest.approx(24 * HOUR_S * 1_000, abs=IDLE_S * 1_000)
        assert made.verdicts.all() == [second, first]
        assert made.sweeps.read_bytes >= 2 * (bench.store.messages.flushed_up_to - SEGMENT_SIZE)
        await made.worker.stop()

    asyncio.run(scenario())


def test_damage_that_nobody_reads_is_found_in_each_sweep_until_it_is_gone(bench: Bench) -> None:
    async def scenario() -> None:
        made = Sweeps(bench)
        flip(bench, SEGMENT_SIZE + 10_000)
        found = await made.finished()
        (damage,) = made.damage
        assert (found.state, found.checks) == (VerdictState.DIFFER, {"log": [1_199, 1]})
        assert found.first == [["log", str(damage)]]
        assert damage.record_at is not None
        assert 0 < SEGMENT_SIZE + 10_000 - damage.record_at < 400
        await made.finished()
        assert [each.record_at for each in made.damage] == 2 * [damage.record_at]
        flip(bench, SEGMENT_SIZE + 10_000)
        assert (await made.finished()).state is VerdictState.AGREE
        await made.worker.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("interval_s", "rate", "expected"),
    [
        (24 * HOUR_S, 32 << 20, RATE_MIN),  # small logs do not take half a day
        (0.2, 32 << 20, None),  # through within half of the interval
        (0.001, 2 << 20, 2 << 20),  # unless the largest rate forbids it
    ],
)
def test_the_rate(bench: Bench, interval_s: float, rate: int, expected: int | None) -> None:
    async def scenario() -> None:
        made = Sweeps(bench, interval_ms=int(interval_s * 1_000), rate=rate)
        size = bench.store.messages.flushed_up_to
        await made.until(lambda: made.sweeps.current is not None)
        took_s = await made.until(lambda: made.sweeps.finished is not None)
        assert took_s == pytest.approx(size / (expected or 2 * size / interval_s), rel=0.6)
        await made.worker.stop()

    asyncio.run(scenario())


def test_a_step_that_takes_long_is_followed_by_a_pause_in_proportion(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disk or processor are busy with other things: the check yields to them, whatever its rate is."""
    step = LogCheck.step

    def slow(check: LogCheck) -> object:
        bench.clock.advance(2)
        return step(check)

    monkeypatch.setattr(LogCheck, "step", slow)

    async def scenario() -> None:
        made = Sweeps(bench, interval_ms=1_000)
        await made.until(lambda: made.sweeps.current is not None)
        assert await made.work() == pytest.approx(2 / BUSY_RATIO - 2)
        await made.worker.stop()

    asyncio.run(scenario())


def test_a_sweep_goes_on_after_a_restart_with_what_it_had_found(bench: Bench) -> None:
    async def scenario() -> None:
        flip(bench, 10_000)
        made = Sweeps(bench)
        await made.until(lambda: made.sweeps.progress is not None and made.sweeps.progress.done_bytes > SEGMENT_SIZE)
        begun = made.sweeps.current
        assert begun is not None
        await made.sweeps.save()
        await made.worker.stop()
        again = Sweeps(bench)
        await again.work()
        left = again.sweeps.current
        assert left is not None
        assert (left.id, left.log_end % SEGMENT_SIZE) == (begun.id, 0)
        assert left.log_end > 0
        assert again.sweeps.progress is not None
        found = await again.finished()
        assert (found.id, found.checks, again.damage) == (begun.id, {"log": [1_199, 1]}, [])
        assert len(found.first) == 1
        await again.worker.stop()

    asyncio.run(scenario())


def test_zero_ends_the_sweeps_and_another_interval_goes_on(bench: Bench) -> None:
    async def scenario() -> None:
        made = Sweeps(bench)
        await made.until(lambda: made.sweeps.current is not None)
        made.sweeps.configure(VerificationSection(interval_ms=0))
        read = made.sweeps.read_bytes
        assert [await made.work() for _ in range(3)] == 3 * [IDLE_S]
        assert (made.sweeps.current, made.sweeps.progress, made.sweeps.read_bytes) == (None, None, read)
        made.sweeps.configure(VerificationSection())
        assert (await made.finished()).state is VerdictState.AGREE
        await made.worker.stop()

    asyncio.run(scenario())


def test_a_clock_that_was_set_back_does_not_put_a_sweep_off_for_long(bench: Bench) -> None:
    async def scenario() -> None:
        made = Sweeps(bench)
        await made.finished()
        bench.clock.jump(-1_000 * HOUR_S)
        assert await made.until(lambda: made.sweeps.current is not None) <= 24 * HOUR_S
        assert len({each.id for each in made.verdicts.all()}) == 2
        await made.worker.stop()

    asyncio.run(scenario())


def test_an_error_holds_it_up_and_is_told_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def starved(_: LogCheck) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def scenario() -> None:
        made = Sweeps(bench)
        with monkeypatch.context() as patched:
            patched.setattr(LogCheck, "step", starved)
            await made.until(lambda: made.sweeps.problem is not None)
            assert await made.work() == RETRY_S
            assert os.strerror(errno.EMFILE) in (made.sweeps.problem or "")
        assert (await made.finished()).state is VerdictState.AGREE
        assert made.sweeps.problem is None
        await made.worker.stop()

    asyncio.run(scenario())


def test_sweeps_push_no_other_verdicts_out(bench: Bench) -> None:
    async def scenario() -> None:
        made = Sweeps(bench, interval_ms=1_000)
        made.verdicts.save(Verdict(id=1, asked_by="operator", state=VerdictState.AGREE))
        for _ in range(VERDICTS_KEPT + 2):
            await made.finished()
        kept = made.verdicts.all()
        assert (len(kept), kept[-1].asked_by) == (VERDICTS_KEPT + 1, "operator")
        await made.worker.stop()

    asyncio.run(scenario())
