"""Totals of days, in the time zone of the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.admin.stats import DayTotals, Moved

HOUR_S = 3_600
DAY_S = 24 * HOUR_S


@pytest.fixture(params=["UTC", "Asia/Kathmandu", "America/St_Johns"])
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ManualClock]:
    """Noon where the broker is, on a day before which no clock was changed."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield ManualClock(int(datetime(2026, 11, 18, 12).timestamp() * 1000))
    monkeypatch.undo()
    time.tzset()


def sent(messages: int) -> Moved:
    return Moved(messages, 2 * messages)


def test_a_day_counts_from_the_first_midnight_on(clock: ManualClock) -> None:
    days = DayTotals(clock)
    clock.advance(12 * HOUR_S - 10)
    days.note(sent(100))
    assert (days.today(sent(100)), days.yesterday) == (None, None), "it has not seen this day begin"
    clock.advance(10)
    days.note(sent(110))
    assert (days.today(sent(115)), days.yesterday) == (sent(5), None)
    clock.advance(DAY_S - 10)
    days.note(sent(200))
    assert (days.today(sent(203)), days.yesterday) == (sent(93), None)
    clock.advance(10)
    days.note(sent(210))
    assert (days.today(sent(210)), days.yesterday) == (sent(0), sent(100))
    clock.advance(DAY_S)
    days.note(sent(211))
    assert (days.today(sent(219)), days.yesterday) == (sent(8), sent(1))


def test_until_midnight_was_noted_the_new_day_is_not_known(clock: ManualClock) -> None:
    days = DayTotals(clock)
    clock.advance(12 * HOUR_S)
    days.note(sent(1))
    clock.advance(DAY_S)
    assert (days.today(sent(3)), days.yesterday) == (None, None)
    days.note(sent(3))
    assert (days.today(sent(3)), days.yesterday) == (sent(0), sent(2))


@pytest.mark.parametrize("jump_s", [-DAY_S, -7 * DAY_S, 2 * DAY_S, 40 * DAY_S])
def test_where_days_are_missing_nothing_is_known(clock: ManualClock, jump_s: int) -> None:
    days = DayTotals(clock)
    clock.advance(12 * HOUR_S)
    days.note(sent(1))
    clock.jump(jump_s)
    days.note(sent(2))
    assert (days.today(sent(2)), days.yesterday) == (None, None)
    clock.advance(DAY_S)
    days.note(sent(5))
    assert (days.today(sent(6)), days.yesterday) == (sent(1), None)
