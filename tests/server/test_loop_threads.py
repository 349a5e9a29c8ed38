"""Threads that block in place of the event loop: what they return, raise and leave behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from threading import Event, get_ident

import pytest

from quarry_mq.server.tasks import LoopThreads


class Thing:
    pass


def test_work_is_done_on_another_thread_and_its_result_comes_back() -> None:
    async def test(threads: LoopThreads) -> None:
        found = await asyncio.gather(*(threads.call(get_ident) for _ in range(20)))
        assert get_ident() not in found
        assert len(set(found)) <= 2

    _run(test)


def test_what_it_raises_is_raised_where_it_is_waited_for() -> None:
    class Cut(BaseException):
        pass

    def fail() -> None:
        raise Cut

    async def test(threads: LoopThreads) -> None:
        with pytest.raises(Cut):
            await threads.call(fail)
        assert await threads.call(lambda: 1) == 1, "the thread goes on"

    _run(test)


def test_one_that_hangs_leaves_the_other_free() -> None:
    async def test(threads: LoopThreads) -> None:
        holding = Event()
        running = threads.call(holding.wait)
        assert await threads.call(lambda: 7) == 7
        assert not running.done()
        holding.set()
        assert await running

    _run(test)


def test_work_that_is_given_up_goes_on_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def test(threads: LoopThreads) -> None:
        holding, done = Event(), Event()

        def work() -> None:
            holding.wait()
            done.set()

        given_up = threads.call(work)
        given_up.cancel()
        holding.set()
        await threads.call(done.wait)
        await asyncio.sleep(0.01)
        assert given_up.cancelled()

    _run(test)
    assert not caplog.records


def test_close_waits_for_what_was_asked_for() -> None:
    done: list[int] = []

    async def test() -> None:
        threads = LoopThreads(1, "test")
        for number in range(5):
            threads.call(partial(done.append, number))
        threads.close()

    asyncio.run(test())
    assert done == list(range(5))


def test_a_loop_that_is_closed_first_is_no_error() -> None:
    threads = LoopThreads(1, "test")
    holding = Event()

    async def test() -> None:
        threads.call(holding.wait)

    asyncio.run(test())
    holding.set()
    threads.close()


def test_nothing_is_kept_of_work_that_is_done() -> None:
    async def test(threads: LoopThreads) -> None:
        thing = Thing()
        gone = weakref.ref(thing)
        await threads.call(partial(id, thing))
        del thing
        gc.collect()
        await threads.call(lambda: None)
        assert gone() is None

    _run(test)


def _run(test: Callable[[LoopThreads], Awaitable[None]]) -> None:
    async def whole() -> None:
        with closing(LoopThreads(2, "test")) as threads:
            await asyncio.wait_for(test(threads), timeout=20)

    asyncio.run(whole())
