"""Wall clocks that are set, over restarts of a real store."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from store.clock import CautiousClock, ManualClock, SteadyClock
from store.disk import PosixDisk
from store.opening import OpenStore, open_store
from store.settings import StoreSettings
from tests.store.assembly import message

DAY_S = 86_400


def opened(root: Path, clock: ManualClock) -> OpenStore:
    settings = StoreSettings(root=root, segment_size=64 * 1024)
    return open_store(settings, disk=PosixDisk(), clock=clock, report=lambda _: None)


@pytest.mark.parametrize("jumps_s", [(-DAY_S, DAY_S), (DAY_S, -DAY_S, -DAY_S), (-3600, -3600, 2 * DAY_S)])
def test_store_times_ascend_over_restarts_although_the_clock_is_set(tmp_path: Path, jumps_s: tuple[int, ...]) -> None:
    """Queues are searched by store time, and segments expire by it."""
    clock = ManualClock()
    times = []
    for jump_s in (*jumps_s, 0):
        store = opened(tmp_path, clock)
        times += [store.messages.append([message()])[0].store_timestamp_ms for _ in range(2)]
        store.close()
        clock.advance(1)
        clock.jump(jump_s)
    assert all(before <= after for before, after in pairwise(times))


def test_a_clock_that_was_years_ahead_does_not_hold_store_times_there_for_ever(tmp_path: Path) -> None:
    """Nothing that is sent from then on would expire in time."""
    clock = ManualClock()
    clock.jump(400 * DAY_S)
    store = opened(tmp_path, clock)
    store.messages.append([message()])
    store.close()
    clock.jump(-400 * DAY_S)
    store = opened(tmp_path, clock)
    assert store.messages.append([message()])[0].store_timestamp_ms == clock.wall_ms()
    store.close()


def test_what_is_hidden_over_a_restart_comes_back_in_time_although_the_clock_was_set_back(tmp_path: Path) -> None:
    """Delivery goes on counting where the log's times end, not where the machine's clock is now."""
    clock = ManualClock()
    store = opened(tmp_path, clock)
    store.messages.append([message()])
    store.close()
    hidden_until_ms = clock.wall_ms() + 30_000
    clock.jump(-DAY_S)
    store = opened(tmp_path, clock)
    resumed = SteadyClock(clock, not_before_ms=store.messages.last_stored_ms)
    clock.advance(31)
    assert hidden_until_ms < resumed.wall_ms() < hidden_until_ms + 5_000
    store.close()


def test_the_cautious_clock_is_never_ahead_of_either() -> None:
    clock = ManualClock()
    start_ms = clock.wall_ms()
    cautious, steady = CautiousClock(clock), SteadyClock(clock)
    clock.jump(DAY_S)
    assert cautious.wall_ms() == start_ms == steady.wall_ms()
    clock.advance(60)
    assert cautious.wall_ms() == start_ms + 60_000
    clock.jump(-2 * DAY_S)
    assert cautious.wall_ms() == clock.wall_ms() < steady.wall_ms()
    assert cautious.monotonic_s() == 60
