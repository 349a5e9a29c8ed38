"""Counts of `quarry bench`, and the times at which it sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.cli.online.bench.schedule import Schedule
from quarry_mq.cli.online.bench.stats import LARGEST_US, Latencies, Plan, Stats
from quarry_mq.protocol.clock import ManualClock


def plan(**more: float | None) -> Plan:
    given = {"rate": None, "duration_s": None, "count": None, "consumers": 1, **more}
    return Plan(topic="t", size=100, producers=1, in_flight=1, **given)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, LARGEST_US), min_size=1), st.floats(0.0, 1.0))
def test_percentiles_are_right_to_one_in_512(times_us: list[int], share: float) -> None:
    latencies = Latencies()
    for each in times_us:
        latencies.add((each + 0.5) / 1e6)  # in the middle, whatever a float makes of it
    ordered = sorted(times_us)
    exact = ordered[max(1, int(-(-len(ordered) * share // 1))) - 1]
    found = latencies.percentile_us(share)
    assert found is not None
    assert exact - 1 <= found <= exact + exact // 512 + 1
    assert latencies.max_us == pytest.approx(ordered[-1], abs=1)


def test_nothing_is_told_of_nothing() -> None:
    assert Latencies().percentile_us(0.5) is None


def test_messages_are_due_by_the_rate_and_not_by_the_answers() -> None:
    clock = ManualClock()
    schedule = Schedule(plan(rate=10.0, duration_s=2.0), clock)
    assert schedule.take() == clock.monotonic_s()
    assert schedule.take() is None
    assert schedule.waits_s() == pytest.approx(0.1)
    began_s = clock.monotonic_s()
    clock.advance(1.0)  # in which nobody could send
    assert [schedule.take() for _ in range(10)] == pytest.approx([began_s + n / 10 for n in range(1, 11)])
    assert schedule.take() is None
    clock.advance(1.5)  # what was due in the two seconds still goes out, and no more
    assert [schedule.take() for _ in range(10)][-2:] == [pytest.approx(began_s + 1.9), None]
    assert schedule.is_over
    assert (schedule.take(), schedule.waits_s()) == (None, None)


def test_who_cannot_keep_the_rate_is_not_waited_for_without_end() -> None:
    clock = ManualClock()
    schedule = Schedule(plan(rate=1000.0, duration_s=2.0), clock)
    clock.advance(2.9)
    assert schedule.take() == 0.0
    assert schedule.left_s == pytest.approx(0.1)
    clock.advance(0.2)
    assert (schedule.take(), schedule.is_over, schedule.left_s) == (None, True, 0.0)


def test_without_a_rate_the_duration_ends_the_load() -> None:
    clock = ManualClock()
    schedule = Schedule(plan(duration_s=2.0), clock)
    clock.advance(1.9)
    assert schedule.take() == 1.9
    clock.advance(0.1)
    assert (schedule.take(), schedule.left_s) == (None, 0.0)


def test_a_count_ends_the_load_and_without_a_rate_all_is_due_now() -> None:
    clock = ManualClock()
    schedule = Schedule(plan(count=3), clock)
    assert [schedule.take() for _ in range(4)] == [*[clock.monotonic_s()] * 3, None]
    assert schedule.is_over
    assert schedule.left_s is None


def test_a_load_that_is_stopped_sends_nothing_more() -> None:
    schedule = Schedule(plan(duration_s=10.0), ManualClock())
    schedule.stop()
    assert (schedule.take(), schedule.is_over) == (None, True)


def test_missing_is_what_was_sent_and_not_received_in_whatever_order_that_is_learned() -> None:
    clock = ManualClock()
    stats = Stats(plan(count=3), clock)
    first, second, third = (stats.new_number() for _ in range(3))
    stats.was_received(first, 0.0)  # before the answer to its send
    assert stats.missing == 0
    stats.was_sent(first, 0.0)
    stats.was_sent(second, 0.0)
    assert stats.missing == 1
    stats.was_received(second, 0.0)
    stats.was_received(second, 0.0)
    assert (stats.missing, stats.again, stats.received) == (0, 1, 2)
    stats.was_received(third, 0.0)  # stored, although its send has failed
    stats.was_received(99, 0.0)  # of nobody
    assert (stats.missing, stats.received) == (0, 3)


def test_rates_are_of_the_time_up_to_the_last_answer() -> None:
    clock = ManualClock()
    stats = Stats(plan(count=2), clock)
    stats.begin()
    due_s = clock.monotonic_s()
    for _ in range(2):
        clock.advance(0.5)
        stats.was_sent(stats.new_number(), due_s)
    clock.advance(9.0)
    stats.end()
    fields = stats.fields()
    assert fields["seconds"] == 10.0
    assert fields["sent"] == {
        "messages": 2,
        "bytes": 200,
        "perSecond": 2.0,
        "mbPerSecond": 0.0,
        "p50Ms": pytest.approx(500, rel=0.01),
        "p99Ms": 1000.0,
        "p999Ms": 1000.0,
        "maxMs": 1000.0,
    }
