"""Shares of file descriptors, and what happens before the last ones are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from quarry_mq.kv import EngineStarved
from quarry_mq.server.process.descriptors import CONNECTIONS_MIN, DescriptorPlan, DescriptorWatch
from quarry_mq.server.tasks import LoopThreads
from quarry_mq.store.errors import DiskRefused, Invalid
from quarry_mq.store.settings import Durability
from tests.server.committing import Bench, run
from tests.store.assembly import message

SEGMENTS = 64


@pytest.mark.parametrize("limit", [1_024, 4_096, 20_000, 65_536, 1 << 20])
def test_what_a_process_may_have_open_is_enough_for_all(limit: int) -> None:
    plan = DescriptorPlan.of(limit, SEGMENTS)
    assert plan.connections >= CONNECTIONS_MIN
    assert plan.store + plan.admin_connections + plan.greeting + plan.reserve + plan.connections < limit


def test_what_the_units_and_images_allow_is_enough_for_the_default() -> None:
    assert DescriptorPlan.of(65_536, SEGMENTS).connections > 10_000


def test_too_few_are_refused_with_the_number_that_is_needed() -> None:
    with pytest.raises(Invalid, match=r"may open 256 files, but a broker needs at least (\d+)") as refused:
        DescriptorPlan.of(256, SEGMENTS)
    needed = int(str(refused.value).partition("at least ")[2].partition(":")[0])
    assert DescriptorPlan.of(needed, SEGMENTS).connections >= CONNECTIONS_MIN


def test_fewer_connections_than_the_settings_allow_are_told_of() -> None:
    plan = DescriptorPlan.of(4_096, SEGMENTS)
    assert DescriptorWatch(plan, lambda: plan.connections, _nobody).concern == ""
    concern = DescriptorWatch(plan, lambda: 10_000, _nobody).concern
    assert concern.startswith(f"limits.connections is 10000, but only {plan.connections} are accepted")
    assert "may open 4096 files" in concern


def _nobody(_reason: str, _cause: str) -> None:
    raise AssertionError("nothing is refused")


def test_sends_are_refused_while_descriptors_are_few() -> None:
    plan = DescriptorPlan.of(4_096, SEGMENTS)

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        watch = DescriptorWatch(plan, lambda: 1, bench.commit.refuse_sends)
        watch.look(plan.limit - plan.reserve)
        await bench.send(message())
        watch.look(plan.limit - 3)
        with pytest.raises(DiskRefused, match="3 of 4096 file descriptors are left"):
            await bench.send(message())
        bench.commit.refuse_sends("the disk is 91 % full")
        watch.look(plan.limit - plan.reserve // 2)
        with pytest.raises(DiskRefused):
            await bench.send(message())
        watch.look(0)
        with pytest.raises(DiskRefused, match="91 % full"):
            await bench.send(message())
        bench.commit.refuse_sends("")
        await bench.send(message())
        assert bench.sends_refused[-1] == ""
        assert bench.commit._refusals.first is None

    run(test)


def test_a_flush_of_the_queues_that_finds_no_descriptor_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        await bench.send(message())
        flush: Callable[[], None] = bench.store.flush_entries

        def starve() -> None:
            raise EngineStarved("/data: no file can be opened: Too many open files")

        monkeypatch.setattr(bench.store, "flush_entries", starve)
        await bench.commit.flush_queues()
        with pytest.raises(DiskRefused, match="too many files are open: /data"):
            await bench.send(message())
        monkeypatch.setattr(bench.store, "flush_entries", flush)
        while bench.sends_refused[-1]:
            await asyncio.sleep(0.01)
        await bench.send(message())

    with capture_logs() as logged:
        run(test)
    assert "store poisoned" not in {each["event"] for each in logged}
