"""Rules for the begin of a flush, for its counts, and for the refusal of sends before one."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from quarry_mq.server.tasks import LoopThreads
from quarry_mq.store.errors import DiskRefused
from quarry_mq.store.settings import Durability
from tests.server.committing import Bench, run
from tests.store.assembly import message


def test_under_async_a_flush_begins_half_an_interval_after_the_oldest_send() -> None:
    """A power cut takes back at most what came in during one interval: the other half is for the fdatasync."""

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.ASYNC, flush_interval_s=0.4)
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        await bench.send(message())
        assert bench.store.flushed_up_to < bench.store.appended_up_to
        while bench.store.flushed_up_to < bench.store.appended_up_to:
            await asyncio.sleep(0.001)
        assert loop.time() - sent_s >= 0.2
        await bench.commit.drain()
        assert bench.stats.sends_per_flush == [1]

    run(test)


def test_a_send_that_a_running_flush_takes_along_is_counted_with_it() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.ASYNC, flush_interval_s=0.1)
        holding: Future[None] = Future()
        threads.call(holding.result)
        threads.call(holding.result)
        await bench.send(message())
        await asyncio.sleep(0.06)
        await bench.send(message())
        holding.set_result(None)
        await bench.commit.drain()
        assert bench.stats.sends_per_flush == [2]

    run(test)


def test_sends_of_one_flush_are_counted() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        await asyncio.gather(*(bench.send(message()) for _ in range(7)))
        await asyncio.gather(*(bench.send(message(), message()) for _ in range(3)))
        assert bench.stats.sends_per_flush == [7, 3]

    run(test)


def test_a_disk_that_is_too_full_refuses_sends_until_it_is_not() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        await bench.send(message())
        bench.commit.refuse_sends("the disk is 91 % full")
        bench.commit.refuse_sends("the disk is 92 % full")
        with pytest.raises(DiskRefused, match="92 % full"):
            await bench.send(message())
        bench.commit.refuse_sends("")
        await bench.send(message())
        assert bench.sends_refused == ["the disk is 91 % full", "the disk is 92 % full", ""]

    run(test)


def test_two_reasons_to_refuse_sends_end_one_by_one() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        bench.engine.is_full = True
        await bench.send(message())
        bench.commit.refuse_sends("the disk is 91 % full")
        bench.engine.is_full = False
        while len(bench.sends_refused) < 3:
            await asyncio.sleep(0.01)
        assert bench.sends_refused[-1] == "the disk is 91 % full"
        with pytest.raises(DiskRefused):
            await bench.send(message())
        bench.commit.refuse_sends("")
        await bench.send(message())
        assert bench.sends_refused[-1] == ""

    run(test)
