"""Jobs run one after the other, are cancelled, wait for what passes, and go on where a crash has left them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from quarry_mq.kv import EngineFull
from quarry_mq.server import jobs as jobs_module
from quarry_mq.server.errors import NoSuchJob
from quarry_mq.server.jobs import OPEN_MAX, UNEXPECTED, DeadLetterResend
from quarry_mq.store.errors import Busy, Invalid, Unavailable
from quarry_mq.store.state.jobs import Job, JobState, JobTable
from tests.jobs.bench import Bench


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_a_job_is_done_and_kept() -> None:
    async def test() -> None:
        bench = Bench()
        async with bench.running():
            begun = bench.begin(10)
            assert (begun.state, begun.done, begun.total) == (JobState.WAITING, 0, None)
            found = await bench.ended(begun)
            assert (found.state, found.done, found.total) == (JobState.DONE, 10, 10)
            assert (found.asked_by, found.asked, found.counts) == (
                "operator",
                {"group": "10", "offsets": []},
                {"sent": 10},
            )
        bench.begin_again()
        assert bench.jobs.get(begun.id) == found
        assert bench.stats.open == 0
        with pytest.raises(NoSuchJob, match="no job 7"):
            bench.jobs.get(7)

    run(test())


def test_one_runs_at_a_time_and_a_bounded_number_waits() -> None:
    async def test() -> None:
        bench = Bench()
        bench.work.may_go_on.clear()
        jobs = [bench.begin(2) for _ in range(OPEN_MAX)]
        assert len({job.id for job in jobs}) == OPEN_MAX
        with pytest.raises(Busy, match="wait for one to end"):
            bench.begin()
        async with bench.running():
            await bench.until(jobs[0], lambda found: found.done == 1)
            assert {bench.jobs.get(job.id).state for job in jobs[1:]} == {JobState.WAITING}
            bench.work.may_go_on.set()
            for job in jobs:
                assert (await bench.ended(job)).state is JobState.DONE
        assert bench.work.counted == [0, 1] * OPEN_MAX
        assert bench.stats.did == {"resend-dead-letters": 2 * OPEN_MAX}
        assert bench.stats.ended == [("resend-dead-letters", JobState.DONE)] * OPEN_MAX
        assert [job.id for job in bench.jobs.all()] == sorted((job.id for job in jobs), reverse=True)

    run(test())


def test_what_cannot_be_done_is_refused_and_nothing_is_kept() -> None:
    async def test() -> None:
        bench = Bench()
        with pytest.raises(ValueError, match="invalid literal"):
            bench.jobs.begin(DeadLetterResend(group="no number"), "operator")
        assert bench.jobs.all() == []

    run(test())


def test_a_running_job_ends_at_its_next_step_and_a_waiting_one_at_once() -> None:
    async def test() -> None:
        bench = Bench()
        bench.work.may_go_on.clear()
        async with bench.running():
            running, waiting = bench.begin(10), bench.begin(10)
            await bench.until(running, lambda _: bench.work.rested == 1)
            assert bench.jobs.cancel(waiting.id).state is JobState.CANCELLED
            assert bench.jobs.cancel(running.id).state is JobState.RUNNING
            bench.work.may_go_on.set()
            found = await bench.ended(running)
            assert (found.state, found.done, bench.written()) == (JobState.CANCELLED, 2, 2)
            with pytest.raises(Invalid, match=f"job {running.id} has ended: it is cancelled"):
                bench.jobs.cancel(running.id)
            with pytest.raises(NoSuchJob):
                bench.jobs.cancel(7)
            after = bench.begin(1)
            assert (await bench.ended(after)).state is JobState.DONE

    run(test())


@pytest.mark.parametrize("surviving", range(12))
def test_after_a_crash_it_goes_on_with_what_was_written(surviving: int) -> None:
    """Whatever prefix of the writes is left: numbers and cursor are of the same moment."""

    async def test() -> None:
        bench = Bench()
        bench.work.before_each = lambda number: bench.work.may_go_on.clear() if number == 8 else None
        async with bench.running():
            begun = bench.begin(20)
            await bench.until(begun, lambda found: found.done == 9)
        bench.engine.crash(surviving, power_loss=True)
        bench.begin_again()
        written = bench.written()
        found = bench.jobs.get(begun.id)
        assert (found.done, found.cursor.get("next", 0)) == (written, written)
        async with bench.running():
            ended = await bench.ended(begun)
        assert bench.work.counted == list(range(written, 20))
        assert (ended.state, ended.done, ended.counts) == (JobState.DONE, 20, {"sent": 20})

    run(test())


def test_what_waited_goes_on_in_its_order_after_a_restart() -> None:
    async def test() -> None:
        bench = Bench()
        bench.work.may_go_on.clear()
        jobs = [bench.begin(number) for number in (3, 2, 1)]
        async with bench.running():
            await bench.until(jobs[0], lambda found: found.done == 1)
        bench.begin_again()
        assert bench.stats.open == 3
        assert bench.begin(4).id > jobs[-1].id
        async with bench.running():
            for job in jobs:
                await bench.ended(job)
        assert bench.work.counted[:5] == [1, 2, 0, 1, 0]

    run(test())


@pytest.mark.parametrize("error", [Unavailable("not now"), EngineFull("no space")])
def test_what_passes_is_waited_for_and_told_meanwhile(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def test() -> None:
        monkeypatch.setattr(jobs_module, "RETRY_S", 0.01)
        bench = Bench()
        refusals = [error] * 3

        def refuse(number: int) -> None:
            if number == 5 and refusals:
                raise refusals.pop()
            if number == 8:
                bench.work.may_go_on.clear()

        bench.work.before_each = refuse
        async with bench.running():
            found = await bench.until(bench.begin(10), lambda found: found.remark is not None)
            assert (found.state, found.done, found.remark) == (JobState.RUNNING, 5, str(error))
            assert (await bench.until(found, lambda found: found.done == 9)).remark is None
            bench.work.may_go_on.set()
            ended = await bench.ended(found)
        assert (ended.state, ended.done, ended.remark) == (JobState.DONE, 10, None)
        assert bench.work.counted == list(range(10))

    run(test())


def test_who_waits_for_a_full_disk_can_be_cancelled_and_is_kept_so_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        bench = Bench()
        bench.work.before_each = lambda number: setattr(bench.engine, "is_full", number >= 5)
        async with bench.running():
            begun = bench.begin(10)
            await bench.until(begun, lambda found: found.remark is not None)
            with pytest.raises(EngineFull):
                bench.begin(1)
            bench.jobs.cancel(begun.id)
            monkeypatch.setattr(jobs_module, "RETRY_S", 0.01)
            await asyncio.sleep(0.05)
            assert not bench.jobs.get(begun.id).state.is_end
            bench.engine.is_full = False
            found = await bench.ended(begun)
        assert (found.state, found.done) == (JobState.CANCELLED, 5)

    run(test())


@pytest.mark.parametrize(
    ("error", "remark"),
    [(Invalid("it is gone"), "it is gone"), (OSError("broken"), "broken"), (RuntimeError("secret"), UNEXPECTED)],
)
def test_what_does_not_pass_ends_the_job_and_not_the_broker(error: Exception, remark: str) -> None:
    async def test() -> None:
        bench = Bench()

        def fail(number: int) -> None:
            if number == 3:
                raise error

        bench.work.before_each = fail
        async with bench.running():
            found = await bench.ended(bench.begin(10))
            assert (found.state, found.done, found.remark) == (JobState.FAILED, 3, remark)
            bench.work.before_each = lambda _: None
            assert (await bench.ended(bench.begin(1))).state is JobState.DONE

    run(test())


def test_a_job_that_a_newer_version_has_begun_fails() -> None:
    async def test() -> None:
        bench = Bench()
        batch = bench.engine.batch()
        JobTable(bench.engine).stage(batch, Job(id=5, kind="reticulate", asked_by="a", asked={"splines": 3}))
        bench.engine.write(batch)
        bench.begin_again()
        async with bench.running():
            found = await bench.ended(bench.jobs.get(5))
        assert found.state is JobState.FAILED
        assert found.remark == "this version of the broker does not support job 5 (reticulate)"

    run(test())
