"""Group commit over a real store on a disk that can fail."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Event

import pytest

from quarry_mq.kv import EngineCorrupt, EngineFull, Family
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.server.append import group_commit
from quarry_mq.server.tasks import LoopThreads
from quarry_mq.store.consumequeue.rocks_layout import OFFSET_FAMILY
from quarry_mq.store.errors import DiskRefused, Invalid, StorePoisoned
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.settings import Durability
from tests.server.committing import Bench, run
from tests.store.assembly import assemble, message


def test_sends_of_one_pass_are_one_batch_and_each_learns_its_own_places() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        answers = [bench.send(message(body=b"%d" % n), message(number=1)) for n in range(5)]
        places = await asyncio.gather(*answers)
        assert [[place.queue_offset for place in each] for each in places] == [[n, n] for n in range(5)]
        assert bench.stats.batches == [10]
        assert len(bench.arrived) == 10

    run(test)


def test_under_sync_an_answer_comes_after_the_flush_and_visibility_too() -> None:
    """rmq#8239: what a consumer sees, a crash must not take back."""

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        holding: Future[None] = Future()
        threads.call(holding.result)
        threads.call(holding.result)
        answer = bench.send(message())
        await asyncio.sleep(0.02)
        assert bench.store.appended_up_to > 0
        assert not answer.done()
        assert bench.store.bounds(QueueId("orders", 0)) == (0, 0)
        holding.set_result(None)
        await answer
        assert bench.store.flushed_up_to == bench.store.appended_up_to
        assert bench.store.bounds(QueueId("orders", 0)) == (0, 1)

    run(test)


def test_who_waits_for_the_log_to_be_durable_hears_of_it_or_of_its_failure() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.ASYNC)
        await bench.send(message())
        assert bench.store.flushed_up_to < bench.store.appended_up_to
        await bench.commit.until_durable()
        assert bench.store.flushed_up_to == bench.store.appended_up_to
        bench.disk.fail("flush")
        await bench.send(message())
        with pytest.raises(StorePoisoned):
            await bench.commit.until_durable()

    run(test)


def test_a_wait_for_visibility_includes_sends_that_wait_for_a_flush() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        holding: Future[None] = Future()
        threads.call(holding.result)
        threads.call(holding.result)
        first = bench.send(message())
        await asyncio.sleep(0.02)
        second = bench.send(message())  # it is appended after the flush of the first
        waiting = asyncio.ensure_future(bench.commit.until_visible())
        await asyncio.sleep(0.02)
        assert not waiting.done()
        holding.set_result(None)
        await waiting
        assert bench.store.bounds(QueueId("orders", 0)) == (0, 2)
        await asyncio.gather(first, second)
        bench.disk.fail("flush")
        failed = bench.send(message())
        with pytest.raises(StorePoisoned):
            await bench.commit.until_visible()
        with pytest.raises(StorePoisoned):
            await failed

    run(test)


def test_what_replaces_another_message_is_told_of_when_it_is_on_the_disk() -> None:
    """The flush does not wait for its interval, which is an hour here."""

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.ASYNC, flush_interval_s=3_600)
        await bench.send(message())
        assert bench.store.flushed_up_to < bench.store.appended_up_to
        for _ in range(3):
            await bench.send_durably(message())
            assert bench.store.flushed_up_to == bench.store.appended_up_to
        bench.disk.fail("flush")
        with pytest.raises(StorePoisoned):
            await bench.send_durably(message())

    run(test)


def test_a_topic_is_stored_to_until_its_messages_are_visible() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        holding: Future[None] = Future()
        threads.call(holding.result)
        threads.call(holding.result)
        answer = bench.send(message())
        assert bench.commit.is_storing("orders"), "the round has not begun"
        await asyncio.sleep(0.02)
        assert bench.store.appended_up_to > 0
        assert bench.commit.is_storing("orders"), "the log is not flushed"
        assert not bench.commit.is_storing("payments")
        holding.set_result(None)
        await answer
        assert not bench.commit.is_storing("orders")

    run(test)


def test_sends_that_come_in_during_a_flush_share_the_next_one() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        holding: Future[None] = Future()
        threads.call(holding.result)
        threads.call(holding.result)
        answers = []
        for number in range(50):
            answers.append(bench.send(message(body=b"%d" % number)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        holding.set_result(None)
        await asyncio.gather(*answers)
        assert bench.stats.batches == [1, 49]
        assert bench.stats.flushes == 2

    run(test)


def test_under_async_an_answer_does_not_wait_and_a_flush_follows() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.ASYNC)
        await bench.send(message())
        assert bench.store.flushed_up_to < bench.store.appended_up_to
        assert bench.store.bounds(QueueId("orders", 0)) == (0, 1)
        await bench.commit.drain()
        assert bench.store.flushed_up_to == bench.store.appended_up_to

    run(test)


def test_one_bad_send_of_a_batch_does_not_harm_the_others() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        good, bad, also_good = (
            bench.send(message(body=b"1")),
            bench.send(message(big="x" * 40_000)),
            bench.send(message(body=b"2")),
        )
        assert [place.queue_offset for place in await good] == [0]
        with pytest.raises(Invalid, match="properties"):
            await bad
        assert [place.queue_offset for place in await also_good] == [1]
        assert bench.poisoned == []

    run(test)


class DamagedTable:
    """A family of which one queue's rows cannot be read."""

    def __init__(self, family: Family, damaged: bytes) -> None:
        self._family = family
        self._damaged = damaged

    def __getattr__(self, name: str) -> object:
        return getattr(self._family, name)

    def get(self, key: bytes) -> bytes | None:
        if self._damaged in key:
            raise EngineCorrupt("block checksum mismatch in 000009.sst")
        return self._family.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]


def test_a_send_to_a_queue_whose_end_cannot_be_read_is_refused_and_harms_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flipped bit in a table is no reason to stop everything: nothing was appended."""
    family = MemoryEngine.family
    monkeypatch.setattr(
        MemoryEngine, "family", lambda engine, name: DamagedTable(family(engine, name), b"broken-topic")
    )

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        good, bad = bench.send(message()), bench.send(message(topic="broken-topic"))
        assert [place.queue_offset for place in await good] == [0]
        with pytest.raises(EngineCorrupt):
            await bad
        with pytest.raises(EngineCorrupt):
            await bench.send(message(topic="broken-topic"))
        assert [place.queue_offset for place in await bench.send(message())] == [1]
        assert bench.poisoned == []

    run(test)


def test_a_full_disk_refuses_sends_until_there_is_room_again() -> None:
    """An unwritable disk is an answer to the client, not the end of the broker."""

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        for nth in (2, 3):  # ahead of time, and when it is needed
            bench.disk.fail("create", nth=nth, error=errno.ENOSPC)
        await bench.send(message(body=bytes(60_000)))
        with pytest.raises(DiskRefused, match="No space left"):
            await bench.send(message(body=bytes(60_000)))
        assert [place.queue_offset for place in await bench.send(message(body=bytes(60_000)))] == [1]
        assert bench.poisoned == []
        assert ["No space left" in reason for reason in bench.sends_refused] == [True, False]

    run(test)


@pytest.mark.parametrize("durability", Durability)
def test_entries_that_find_no_room_become_visible_when_there_is_some(
    durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the log is stored: it is acknowledged, seen later, and nothing needs a restart."""
    monkeypatch.setattr(group_commit, "ROOM_CHECK_INTERVAL_S", 0.01)

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, durability)
        bench.engine.is_full = True
        assert [place.queue_offset for place in await bench.send(message(body=b"0"))] == [0]
        assert bench.store.bounds(QueueId("orders", 0)) == (0, 0)
        for _ in range(3):
            with pytest.raises(DiskRefused, match=r"the disk is full.*No space left"):
                await bench.send(message(body=b"refused"))
        bench.engine.is_full = False
        while not bench.arrived:
            await asyncio.sleep(0)
        assert [place.queue_offset for place in await bench.send(message(body=b"1"))] == [1]
        assert bench.store.bounds(QueueId("orders", 0)) == (0, 2)
        assert bench.poisoned == []
        assert ["disk is full" in reason for reason in bench.sends_refused] == [True, False]
        await bench.commit.drain()

    run(test)


@pytest.mark.parametrize("durability", Durability)
def test_a_flush_of_the_queues_that_finds_no_room_is_repeated(
    durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "ROOM_CHECK_INTERVAL_S", 0.01)

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, durability)
        await bench.send(message(body=b"0"))
        bench.engine.is_full = True
        await bench.commit.flush_queues()
        flushed_before = bench.engine.watermarks_flushed
        assert bench.sends_refused[-1]
        with pytest.raises(DiskRefused, match="the disk is full"):
            await bench.send(message(body=b"refused"))
        bench.engine.is_full = False
        while bench.sends_refused[-1]:
            await asyncio.sleep(0)
        assert bench.engine.watermarks_flushed > flushed_before
        assert [place.queue_offset for place in await bench.send(message(body=b"1"))] == [1]
        assert bench.poisoned == []
        await bench.commit.drain()

    run(test)


def test_sends_that_wait_for_the_end_of_a_flush_of_the_queues_are_answered_when_it_finds_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        flushing, waiting = Event(), Event()

        def flush() -> None:
            flushing.set()
            waiting.wait()
            raise EngineFull("IO error: No space left on device")

        await bench.send(message(body=b"0"))
        monkeypatch.setattr(bench.opened.queues, "flush", flush)
        queue_flush = asyncio.ensure_future(bench.commit.flush_queues())
        while not flushing.is_set():
            await asyncio.sleep(0)
        before = bench.store.flushed_up_to
        answer = bench.send(message(body=b"1"))
        while bench.store.flushed_up_to == before:
            await asyncio.sleep(0)
        assert not answer.done()
        waiting.set()
        await queue_flush
        assert [place.queue_offset for place in await answer] == [1]
        assert bench.store.bounds(QueueId("orders", 0)) == (0, 2)
        await bench.commit.drain()

    run(test)


def test_a_failed_flush_is_told_to_all_who_wait_and_to_everybody_after() -> None:
    """A failed fsync is final: the next one would report success over data that is gone."""

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        await bench.send(message(body=b"before"))
        bench.disk.fail("flush")
        waiting = [bench.send(message()) for _ in range(3)]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StorePoisoned] * 3
        assert len(bench.poisoned) == 1
        with pytest.raises(StorePoisoned):
            await bench.send(message())
        assert bench.store.bounds(QueueId("orders", 0)) == (0, 1), "nothing unflushed became visible"

    run(test)


def test_sends_that_came_in_during_a_flush_that_fails_are_told_too() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        holding: Future[None] = Future()
        threads.call(holding.result)
        threads.call(holding.result)
        bench.disk.fail("flush")
        answers = [bench.send(message())]
        await asyncio.sleep(0.01)
        answers += [bench.send(message()) for _ in range(3)]
        holding.set_result(None)
        outcomes = await asyncio.gather(*answers, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StorePoisoned] * 4

    run(test)


def test_queues_are_flushed_after_the_log() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.ASYNC, queue_flush_bytes=20_000)
        ahead: list[PhysicalOffset] = []

        def after_flush(names: Sequence[str]) -> None:
            watermark = bench.opened.queues.dispatched_up_to() or PhysicalOffset(0)
            if OFFSET_FAMILY in names and watermark > bench.store.flushed_up_to:
                ahead.append(watermark)

        bench.engine.after_flush = after_flush
        for _ in range(30):
            await bench.send(message(body=bytes(2_000)))
        await bench.commit.drain()
        assert bench.engine.watermarks_flushed > 1
        assert ahead == []
        assert len(bench.arrived) == 30

    run(test)


@pytest.mark.parametrize("is_flushing", [False, True])
def test_a_deleted_topic_does_not_come_back_when_the_process_dies(*, is_flushing: bool) -> None:
    """The log still has its messages, and those of a topic made anew would have stood among them."""

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        for number in range(5):
            await bench.send(message(body=b"old %d" % number))
        await bench.commit.flush_queues()
        flushed, go_on = Event(), Event()

        def hold(names: Sequence[str]) -> None:
            if OFFSET_FAMILY in names:  # the last step
                flushed.set()
                go_on.wait()

        if is_flushing:
            bench.engine.after_flush = hold
            bench.commit.flush_queues_soon()
            while not flushed.is_set():
                await asyncio.sleep(0)
        bench.store.delete_topic("orders")
        bench.commit.flush_queues_soon()
        go_on.set()
        assert (await bench.send(message(body=b"new")))[0].queue_offset == 0
        await bench.commit.drain()
        bench.engine.crash(0)
        again = assemble(bench.disk.process_death(), bench.engine, flushed_up_to=bench.store.flushed_up_to).store
        entries = again.entries(QueueId("orders", 0), QueueOffset(0), 10)
        assert [bytes(again.read(entry).body) for entry in entries] == [b"new"]

    run(test)


def test_draining_answers_everything_that_was_accepted() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        answers = [bench.send(message(body=b"%d" % n)) for n in range(10)]
        await bench.commit.drain()
        assert all(answer.done() and answer.exception() is None for answer in answers)

    run(test)


def test_a_flush_that_somebody_else_has_done_leaves_nobody_waiting() -> None:
    """Flushing the queues flushes the log too, and may be done just before the sends' own flush begins."""

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        answers = [bench.send(message())]
        await asyncio.sleep(0)
        assert bench.store.appended_up_to > 0
        bench.store.flush()
        answers.append(bench.send(message()))
        answers.append(bench.send(message()))
        await asyncio.wait_for(asyncio.gather(*answers), 60)
        await bench.commit.drain()
        await asyncio.wait_for(bench.send(message()), 60)

    run(test)


def test_sends_beside_flushes_of_the_queues_are_all_answered() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC, queue_flush_bytes=1)
        for _ in range(100):
            answers = [bench.send(message()), bench.send(message())]
            await asyncio.sleep(0)
            answers.append(bench.send(message()))
            await asyncio.wait_for(asyncio.gather(*answers), 60)
        await bench.commit.drain()
        assert len(bench.arrived) == 300

    run(test)


def test_draining_waits_for_what_comes_in_meanwhile() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC, queue_flush_bytes=1)
        answers = [bench.send(message())]
        draining = asyncio.ensure_future(bench.commit.drain())
        await asyncio.sleep(0)
        answers.append(bench.send(message()))
        await asyncio.wait_for(draining, 60)
        assert all(answer.done() for answer in answers)

    run(test)
