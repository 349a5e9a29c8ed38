"""The stop of a process: its delay, what hastens it, and what ends it when it hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import structlog

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server.process.stop import STATUS_STOP_HUNG, Stop, StopTimes
from quarry_mq.server.settings.sections import ClusterSection, NetworkSection

PATIENCE_S = 30.0
LONG = StopTimes(delay_s=3_600, grace_s=3_600, rest_s=3_600)


class Bench:
    """Stops that do not end this process."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.statuses: list[int] = []
        self._stops: list[Stop] = []

    def stop(self, times: StopTimes) -> Stop:
        stop = Stop(times, SystemClock(), end_process=self._end)
        self._stops.append(stop)
        return stop

    def close(self) -> None:
        for stop in self._stops:
            stop.over()

    def _end(self, status: int) -> None:
        self.statuses.append(status)
        self.ended.set()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def test_a_stop_that_hangs_ends_the_process_and_says_where(bench: Bench) -> None:
    stop = bench.stop(StopTimes(0.05, 0.05, 0.05))
    with structlog.testing.capture_logs() as logs:
        stop.step("flushing and closing the store")
        stop.told("SIGTERM")
        assert bench.ended.wait(PATIENCE_S)
    assert bench.statuses == [STATUS_STOP_HUNG]
    assert [each["event"] for each in logs] == [
        "stopping",
        "the stop takes too long, the process ends: the next start recovers",
    ]
    assert logs[1]["step"] == "flushing and closing the store"
    assert logs[1]["seconds"] >= 0.1


def test_a_stop_that_ends_is_not_ended(bench: Bench) -> None:
    stop = bench.stop(StopTimes(0.0, 0.0, 0.05))
    stop.told("SIGTERM")
    stop.over()
    assert not bench.ended.wait(0.2)


def test_a_log_that_hangs_does_not_keep_the_process(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error is a pipe whose reader may be gone."""
    for_ever = threading.Event()
    monkeypatch.setattr("quarry_mq.server.process.stop.LAST_WORDS_S", 0.05)
    monkeypatch.setattr("quarry_mq.server.process.stop.Stop._tell", lambda _: for_ever.wait())
    stop = bench.stop(StopTimes(0.0, 0.0, 0.05))
    stop.told("SIGTERM")
    assert bench.ended.wait(PATIENCE_S)
    for_ever.set()


def test_a_second_signal_ends_the_delay_and_leaves_only_the_rest(bench: Bench) -> None:
    async def test() -> None:
        stop = bench.stop(StopTimes(3_600, 3_600, 0.05))
        stop.told("SIGTERM")
        delay = asyncio.ensure_future(stop.delay(lambda: False))
        hastened = asyncio.ensure_future(stop.hastened())
        await asyncio.sleep(0.01)
        assert not delay.done()
        stop.told("SIGINT")
        await asyncio.wait_for(asyncio.gather(delay, hastened), PATIENCE_S)
        stop.told("SIGINT")  # no more to hasten

    asyncio.run(test())
    assert bench.ended.wait(PATIENCE_S)


def test_the_delay_ends_by_itself(bench: Bench) -> None:
    async def test() -> None:
        stop = bench.stop(StopTimes(0.05, 3_600, 3_600))
        stop.told("SIGTERM")
        began_s = asyncio.get_running_loop().time()
        await asyncio.wait_for(stop.delay(lambda: False), PATIENCE_S)
        assert asyncio.get_running_loop().time() - began_s >= 0.04

    asyncio.run(test())


def test_a_member_that_leaves_its_cluster_has_a_longer_delay(bench: Bench) -> None:
    async def test() -> None:
        stop = bench.stop(StopTimes(3_600, 3_600, 3_600, leave_s=0.05))
        stop.told("SIGTERM")
        await asyncio.wait_for(stop.delay(lambda: True), PATIENCE_S)
        stays = asyncio.ensure_future(stop.delay(lambda: False))
        await asyncio.sleep(0.1)
        assert not stays.done()
        stays.cancel()

    asyncio.run(test())


def test_a_member_without_a_time_to_leave_does_not_leave(bench: Bench) -> None:
    """The delay for load balancers was enough to make it leave."""

    async def test() -> None:
        stop = bench.stop(StopTimes.of(NetworkSection(drain_delay_ms=50), ClusterSection()))
        stop.told("SIGTERM")
        await asyncio.wait_for(stop.delay(pytest.fail), PATIENCE_S)

    asyncio.run(test())


def test_a_broker_that_failed_does_not_wait_for_load_balancers(bench: Bench) -> None:
    async def test() -> None:
        stop = bench.stop(LONG)
        stop.failed()
        await asyncio.wait_for(stop.asked(), PATIENCE_S)
        await asyncio.wait_for(stop.delay(pytest.fail), PATIENCE_S)

    asyncio.run(test())


def test_a_broker_that_fails_while_it_waits_for_load_balancers_waits_no_longer(bench: Bench) -> None:
    async def test() -> None:
        stop = bench.stop(LONG)
        stop.told("SIGTERM")
        stop.failed()
        await asyncio.wait_for(stop.delay(lambda: False), PATIENCE_S)

    asyncio.run(test())


def test_nothing_is_asked_before_the_signal(bench: Bench) -> None:
    stop = bench.stop(LONG)
    assert not stop.is_asked
    stop.told("SIGTERM")
    assert stop.is_asked
