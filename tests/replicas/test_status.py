"""The lag of a copy counts the log and the changes of rows, and is as old as the oldest of what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.replicas.status import ENDS_KEPT, FRESH_S, End, Lag, LastFollowed, ReplicaStatus

COPY = ReplicaStatus(name="b", position=100, number=7)


def lag_of(status: ReplicaStatus) -> tuple[int, int, float]:
    return status.lag_bytes, status.lag_changes, round(status.lag_s, 3)


def test_a_copy_that_has_all_has_no_lag() -> None:
    clock = ManualClock()
    lag = Lag(clock)
    assert lag_of(lag.measured(COPY, End(100, 7))) == (0, 0, 0)
    clock.advance(60)
    assert lag_of(lag.measured(COPY, End(100, 7))) == (0, 0, 0)
    assert lag_of(lag.measured(COPY, End(90, 5))) == (0, 0, 0), "a copy may have more than its primary knows durable"


def test_the_lag_is_as_old_as_the_oldest_of_what_is_missing() -> None:
    clock = ManualClock()
    lag = Lag(clock)
    lag.measured(COPY, End(100, 8))
    clock.advance(1)
    assert lag_of(lag.measured(COPY, End(150, 9))) == (50, 2, 1)
    clock.advance(1)
    assert lag_of(lag.measured(replace(COPY, number=8), End(150, 9))) == (50, 1, 1)
    assert lag_of(lag.measured(replace(COPY, number=9), End(150, 9))) == (50, 0, 1)
    assert lag_of(lag.measured(replace(COPY, number=9, position=150), End(150, 9))) == (0, 0, 0)


def test_the_age_goes_on_over_more_ends_than_are_kept() -> None:
    clock = ManualClock()
    lag = Lag(clock)
    for number in range(3 * ENDS_KEPT):
        lag.measured(COPY, End(101 + number, 7))
        clock.advance(1)
    assert lag.measured(COPY, End(9_000, 7)).lag_s == 3 * ENDS_KEPT
    later = lag.measured(replace(COPY, position=8_000), End(9_000, 7))
    assert lag_of(later) == (1_000, 0, 0)


@pytest.mark.parametrize(
    ("age_ms", "is_fresh"), [(0, True), (1_000, True), (int(1_000 * FRESH_S), False), (-1, False), (-86_400_000, False)]
)
def test_what_a_copy_wrote_is_fresh_for_a_while_and_not_after_the_clock_was_set_back(
    age_ms: int, is_fresh: bool
) -> None:
    now_ms = 1_800_000_000_000
    assert LastFollowed(now_ms - age_ms, True, COPY).is_fresh(now_ms) is is_fresh
    assert not LastFollowed(now_ms, False, COPY).is_fresh(now_ms)
