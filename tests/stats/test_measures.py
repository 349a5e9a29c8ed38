"""Numbers of series: what is read, how much more it is in a second, and percentiles of what came."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.server.admin.stats import Gauge, Percentile, Rate, percentile
from quarry_mq.server.counters import BucketHistogram

BOUNDS = (0.001, 0.004, 0.016, 0.064)


def test_a_gauge_is_read_again() -> None:
    values = [3.0, None, 5.0]
    gauge = Gauge("ready", "messages", lambda: values.pop(0))
    assert gauge.next(10) == 3
    assert isnan(gauge.next(10))
    assert gauge.next(10) == 5


def test_a_rate_is_the_difference_by_the_second() -> None:
    values = [100.0, 150.0, 150.0, 40.0, 60.0, None, 70.0, 90.0]
    rate = Rate("sent", "messages/s", lambda: values.pop(0), factor=2)
    assert rate.next(10) == 10
    assert rate.next(10) == 0
    assert isnan(rate.next(10)), "a count that became less says nothing"
    assert rate.next(5) == 8
    assert isnan(rate.next(10)), "not known now"
    assert isnan(rate.next(10)), "not known before"
    assert isnan(rate.next(0.01)), "too short a time"


def test_a_percentile_is_of_what_came_since_the_last_one() -> None:
    histogram = BucketHistogram(BOUNDS)
    histogram.add(0.05, 1_000)
    measure = Percentile("send_p99_ms", histogram)
    assert isnan(measure.next(10)), "nothing came"
    histogram.add(0.002, 100)
    assert measure.next(10) == pytest.approx(1 + 0.99 * 3)
    histogram.add(0.002, 98)
    histogram.add(9.0, 2)
    assert measure.next(10) == 64, "above the last bound, at it"


@given(values=st.lists(st.floats(0, 0.1), min_size=1, max_size=200), part=st.sampled_from([0.5, 0.9, 0.99]))
def test_a_percentile_lies_in_the_bucket_of_the_true_one(values: list[float], part: float) -> None:
    histogram = BucketHistogram(BOUNDS)
    for value in values:
        histogram.add(value)
    true = sorted(values)[ceil(part * len(values) - 1e-9) - 1]
    found = percentile(BOUNDS, histogram.counts(), part)
    bucket = bisect_left(BOUNDS, true)
    lower = BOUNDS[bucket - 1] if bucket else 0.0
    assert lower <= found <= BOUNDS[min(bucket, len(BOUNDS) - 1)]
