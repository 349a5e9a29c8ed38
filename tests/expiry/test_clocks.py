"""Wall clocks that are set, over restarts of a real store."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from quarry_mq.protocol.clock import BelievedClock, CautiousClock, ManualClock, SteadyClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import EncodedMessage
from quarry_mq.store.native import NATIVE
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.record import encode_properties
from quarry_mq.store.recovery.checkpoint import read_checkpoint
from quarry_mq.store.retention.rules import ExpirySettings
from quarry_mq.store.settings import StoreSettings
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


YEARS_S = 10 * 365 * DAY_S


def sent_ms(store: OpenStore) -> int:
    """Store time of one more message."""
    return store.messages.append([message()])[0].store_timestamp_ms


def sent_encoded_ms(store: OpenStore) -> int:
    sent = message()
    encoded = EncodedMessage(*sent[:3], encode_properties(sent.properties), *sent[4:7], 0, 0)
    return store.messages.append_encoded([encoded])[0].store_timestamp_ms


@pytest.mark.parametrize("years_s", [YEARS_S, -YEARS_S])
def test_a_clock_that_is_years_off_for_half_a_second_changes_no_time(years_s: int) -> None:
    machine = ManualClock()
    clock = BelievedClock(machine)
    start_ms = machine.wall_ms()
    for _ in range(50):
        machine.jump(years_s)
        assert clock.wall_ms() == machine.wall_ms() - years_s * 1000
        machine.advance(0.5)
        assert clock.wall_ms() == machine.wall_ms() - years_s * 1000
        machine.jump(-years_s)
        machine.advance(30)
        assert clock.wall_ms() == machine.wall_ms()
    assert clock.wall_ms() == start_ms + 50 * 30_500
    assert clock.monotonic_s() == machine.monotonic_s()


@pytest.mark.parametrize("years_s", [YEARS_S, -YEARS_S])
def test_a_clock_that_was_set_for_good_is_believed_after_a_minute(years_s: int) -> None:
    machine = ManualClock()
    clock = BelievedClock(machine)
    machine.jump(years_s)
    for _ in range(60):
        assert clock.wall_ms() == machine.wall_ms() - years_s * 1000
        machine.advance(1)
    assert clock.wall_ms() == machine.wall_ms()
    machine.jump(-years_s)
    assert clock.wall_ms() == machine.wall_ms() + years_s * 1000, "back is no other than ahead"


def test_a_doubt_begins_again_with_each_other_jump() -> None:
    machine = ManualClock()
    clock = BelievedClock(machine)
    start_ms = machine.wall_ms()
    for number in range(10):
        machine.jump(YEARS_S)
        assert clock.wall_ms() == start_ms + number * 50_000
        machine.advance(50)
    machine.advance(9)
    assert clock.wall_ms() == start_ms + 509_000
    machine.advance(1)
    assert clock.wall_ms() == machine.wall_ms()


@pytest.mark.parametrize("jump_s", [3_600, -3_600, 6 * DAY_S, -6 * DAY_S])
def test_a_clock_that_is_set_by_some_days_is_believed_at_once(jump_s: int) -> None:
    machine = ManualClock()
    clock = BelievedClock(machine)
    machine.jump(jump_s)
    assert clock.wall_ms() == machine.wall_ms()


def test_who_asks_seldom_is_told_the_time() -> None:
    machine = ManualClock()
    clock = BelievedClock(machine)
    for _ in range(3):
        machine.advance(YEARS_S)
        assert clock.wall_ms() == machine.wall_ms()


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=pytest.mark.skipif(NATIVE is None, reason="none"))])
@pytest.mark.parametrize("sent", [sent_ms, sent_encoded_ms])
@pytest.mark.parametrize("back_s", [0, 3_600, 6 * DAY_S])
def test_store_times_follow_a_clock_that_was_years_ahead_while_they_were_given(
    tmp_path: Path, sent: Callable[[OpenStore], int], native: bool, back_s: int
) -> None:
    """Without a restart, which looks at the same bound. What the checkpoint claims goes back with them."""
    clock = ManualClock()
    store = opened(tmp_path, clock)
    if native:
        assert NATIVE is not None
        store.messages.use(NATIVE)
    assert sent(store) == clock.wall_ms()
    clock.jump(YEARS_S)
    assert sent(store) == clock.wall_ms(), "nothing but the clock tells the time"
    store.messages.flush()
    assert store.messages.flushed_stored_ms == clock.wall_ms()
    clock.jump(-YEARS_S - back_s)
    clock.advance(1)
    assert sent(store) == clock.wall_ms()
    assert store.messages.flushed_stored_ms <= clock.wall_ms(), "what has this time is not durable yet"
    clock.jump(-3_600)
    last_ms = clock.wall_ms() + 3_600_000
    assert sent(store) == last_ms, "an hour is nothing"
    store.messages.flush()
    assert store.messages.flushed_stored_ms == last_ms
    store.close()
    assert read_checkpoint(PosixDisk(), StorePaths(tmp_path).checkpoint).log_flushed_ms == last_ms


def test_a_segment_with_times_of_a_clock_that_was_years_ahead_expires_by_those_after_it(tmp_path: Path) -> None:
    clock = ManualClock()
    store = opened(tmp_path, clock)
    clock.jump(YEARS_S)
    while len(store.segments) < 3:
        store.messages.append([message(body=bytes(8_000))])
    clock.jump(-YEARS_S)
    while len(store.segments) < 5:
        store.messages.append([message(body=bytes(8_000))])
    store.messages.dispatch(store.messages.flush())
    store.messages.flush_queues()
    clock.advance(4 * DAY_S)
    plan = store.expiry.plan(ExpirySettings(), store.expiry.situation(0, requested=True))
    assert [candidate.base for candidate, _ in plan.segments][:2] == store.segments.bases[:2]
    store.close()
