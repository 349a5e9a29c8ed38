"""Group commit of sends that come encoded, many told of at once."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from quarry_mq.server.tasks import LoopThreads
from quarry_mq.store.errors import Invalid, MessageTooLarge, StorePoisoned
from quarry_mq.store.message import QueueId
from quarry_mq.store.settings import Durability
from tests.server.committing import Bench, run
from tests.store.assembly import SEGMENT_SIZE, message
from tests.store.test_append_encoded import encoded


@pytest.mark.parametrize("durability", list(Durability))
def test_they_are_stored_with_the_batch_that_is_under_way(durability: Durability) -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, durability)
        ordinary = bench.send(message(body=b"ordinary"))
        together = bench.send_encoded(*(encoded(message(body=b"%d" % n)) for n in range(3)))
        assert [place.queue_offset for place in await together] == [1, 2, 3]
        assert [place.queue_offset for place in await ordinary] == [0]
        assert bench.stats.batches == [4]
        assert [request.queue_offset for request in bench.arrived] == [0, 1, 2, 3]
        assert bench.store.bounds(QueueId("orders", 0)) == (0, 4)
        await bench.commit.drain()
        assert bench.stats.sends_per_flush == [4]

    run(test)


def test_under_sync_they_wait_for_the_flush_and_share_the_next_one() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        holding: Future[None] = Future()
        threads.call(holding.result)
        threads.call(holding.result)
        answers = [bench.send(message())]
        await asyncio.sleep(0.02)
        answers += [bench.send_encoded(encoded(message()), encoded(message())) for _ in range(5)]
        answers.append(bench.send(message()))
        await asyncio.sleep(0.02)
        assert not any(answer.done() for answer in answers)
        holding.set_result(None)
        await asyncio.gather(*answers)
        assert bench.stats.batches == [1, 11]
        assert bench.stats.flushes == 2

    run(test)


def test_sends_of_both_kinds_that_wait_for_a_flush_are_stored_as_they_came() -> None:
    """Encoded sends used to be stored after all others."""

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        holding: Future[None] = Future()
        threads.call(holding.result)
        threads.call(holding.result)
        first = bench.send(message())
        await asyncio.sleep(0)
        answers = []
        for _ in range(3):
            answers.append(bench.send_encoded(encoded(message())))
            answers.append(bench.send(message()))
        holding.set_result(None)
        await first
        assert [place.queue_offset for answer in answers for place in await answer] == [1, 2, 3, 4, 5, 6]

    run(test)


def test_one_that_does_not_fit_leaves_none_of_them_in_the_log_and_harms_no_other() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.ASYNC)
        other = bench.send(message())
        refused = bench.send_encoded(encoded(message()), encoded(message(body=bytes(SEGMENT_SIZE))))
        with pytest.raises(MessageTooLarge):
            await refused
        await other
        assert bench.store.bounds(QueueId("orders", 0)) == (0, 1)
        assert bench.poisoned == []

    run(test)


def test_only_a_batch_that_went_in_is_timed() -> None:
    """What was refused took no time, least of all less than none."""

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.ASYNC)
        appends = bench.commit.stages.append
        bench.clock.advance(5)
        with pytest.raises(MessageTooLarge):
            await bench.send_encoded(encoded(message(body=bytes(SEGMENT_SIZE))))
        assert (sum(appends.counts()), appends.total) == (0, 0.0)
        await bench.send_encoded(encoded(message()))
        assert sum(appends.counts()) == 1

    run(test)


def test_a_failure_of_the_disk_is_told_to_all_and_final() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        bench.disk.fail("flush")
        sends = [bench.send_encoded(encoded(message())), bench.send(message())]
        for each in await asyncio.gather(*sends, return_exceptions=True):
            assert isinstance(each, StorePoisoned)
        with pytest.raises(StorePoisoned):
            await bench.send_encoded(encoded(message()))
        assert len(bench.poisoned) == 1

    run(test)


def test_after_a_write_that_failed_the_rest_of_the_batch_is_told_too() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.ASYNC)
        bench.disk.fail("write")
        first, second = bench.send(message()), bench.send_encoded(encoded(message()))
        for each in await asyncio.gather(first, second, return_exceptions=True):
            assert isinstance(each, StorePoisoned)

    run(test)


def test_while_the_disk_is_too_full_they_are_refused() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.ASYNC)
        bench.commit.refuse_sends("90 % are used")
        with pytest.raises(Exception, match="90 %") as refused:
            await bench.send_encoded(encoded(message()))
        assert not isinstance(refused.value, Invalid)
        bench.commit.refuse_sends("")
        await bench.send_encoded(encoded(message()))

    run(test)
