"""Flushes of the log with a thread of the native part: their ends, also those that nobody waits for."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from quarry_mq.server.append.group_commit import LogFlushes
from quarry_mq.server.tasks import LoopThreads
from quarry_mq.store.errors import StorePoisoned
from quarry_mq.store.message import Appended, QueueId
from quarry_mq.store.native import Native
from quarry_mq.store.settings import Durability
from tests.native.conftest import native
from tests.server.committing import Bench, run
from tests.store.assembly import message

__all__ = ["native"]


class BlockedThread:
    """Does as the disk is told to: a flush ends when `let_go` is called, with that error."""

    def __init__(self) -> None:
        self._wake = os.eventfd(0)
        self._results: deque[int] = deque()
        self.started: list[int] = []

    def fileno(self) -> int:
        return self._wake

    def start(self, file_number: int, /) -> None:
        os.fstat(file_number)  # it is open
        self.started.append(file_number)

    def finish(self) -> int:
        os.eventfd_read(self._wake)
        return self._results.popleft()

    def let_go(self, error: int = 0) -> None:
        self._results.append(error)
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        os.close(self._wake)


@pytest.fixture
def thread() -> Iterator[BlockedThread]:
    with closing(BlockedThread()) as thread:
        yield thread


async def until(done: Callable[[], object]) -> None:
    while not done():
        await asyncio.sleep(0.001)


async def flushing(
    threads: LoopThreads, thread: BlockedThread, directory: Path
) -> tuple[Bench, asyncio.Future[Sequence[Appended]]]:
    """A send whose flush is under way, and its answer."""
    bench = Bench(threads, Durability.SYNC, sync_thread=thread, directory=directory)
    answer = bench.send(message())
    await until(lambda: thread.started)
    return bench, answer


def test_sends_wait_for_the_thread_and_share_its_flushes(thread: BlockedThread, tmp_path: Path) -> None:
    async def test(threads: LoopThreads) -> None:
        bench, first = await flushing(threads, thread, tmp_path)
        others = [bench.send(message()) for _ in range(3)]
        await asyncio.sleep(0.02)
        assert not first.done()
        assert bench.store.bounds(QueueId("orders", 0)) == (0, 0)
        thread.let_go()
        await first
        assert not any(each.done() for each in others)
        await until(lambda: len(thread.started) == 2)
        thread.let_go()
        await asyncio.gather(*others)
        await bench.commit.drain()
        assert bench.stats.sends_per_flush == [1, 3]
        assert bench.store.flushed_up_to == bench.store.appended_up_to

    run(test)


def test_a_flush_that_fails_is_final(thread: BlockedThread, tmp_path: Path) -> None:
    async def test(threads: LoopThreads) -> None:
        bench, waiting = await flushing(threads, thread, tmp_path)
        later = bench.send(message())
        thread.let_go(errno.EIO)
        for each in (waiting, later, bench.send(message())):
            with pytest.raises(StorePoisoned, match=r"\[Errno 5\] Input/output error: '.*/commitlog/0{20}'"):
                await each
        assert len(bench.poisoned) == 1
        assert bench.store.flushed_up_to == 0
        assert len(thread.started) == 1, "the disk is not asked again"
        await bench.commit.drain()

    run(test)


def test_queues_are_flushed_between_two_flushes_of_the_log(thread: BlockedThread, tmp_path: Path) -> None:
    """Both ask the disk for the same file: one waits for the other, on a thread."""

    async def test(threads: LoopThreads) -> None:
        bench, answer = await flushing(threads, thread, tmp_path)
        before = bench.engine.watermarks_flushed
        bench.commit.flush_queues_soon()
        await asyncio.sleep(0.02)
        during = bench.engine.watermarks_flushed
        thread.let_go()
        await answer
        assert during == before
        assert await bench.commit.make_queues_durable()
        await bench.commit.drain()
        assert len(thread.started) == 1

    run(test)


def test_the_end_waits_for_a_flush_that_runs_also_where_nobody_does_any_more(
    thread: BlockedThread, tmp_path: Path
) -> None:
    """The store is closed next, which flushes once more."""

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC, sync_thread=thread, directory=tmp_path)
        flushes = LogFlushes(bench.store, threads, thread)
        bench.store.append([message()])
        flush = flushes.flush()
        flush.cancel()

        def let_go_later() -> None:
            time.sleep(0.05)
            thread.let_go()

        asyncio.get_running_loop().run_in_executor(None, let_go_later)
        flushes.close()
        assert bench.store.flushed_up_to == bench.store.appended_up_to
        assert bench.store.flush() == bench.store.appended_up_to
        flushes.close()

    run(test)


def test_records_are_durable_when_the_real_thread_says_so(native: Native, tmp_path: Path) -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC, sync_thread=native.SyncThread(), directory=tmp_path)
        # segments of 64 KiB: some flushes are of two
        for _ in range(30):
            await asyncio.gather(*(bench.send(message(body=bytes(5_000))) for _ in range(4)))
            assert bench.store.flushed_up_to == bench.store.appended_up_to
        await bench.commit.drain()
        assert sum(bench.stats.sends_per_flush) == 120

    run(test)
