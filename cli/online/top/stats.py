"""Computes statistics from what a broker counts: cumulative histograms, and progress. All functions are pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

UNCOUNTED: Final = frozenset({("receive", "wait"), ("receive", "read")})
"""Stages that do not count into their call's time: `wait` is no work, and `read` is a part of `take`."""

SLOW_S: Final = 0.05
SLOW_FLUSH_S: Final = 0.1
"""Seconds above which a flush is slow: every producer notices it."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram:

    `counts[i]` values were at most `bounds_s[i]` and above the bound before; the last count has the rest.
    """

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    total_s: float

    @property
    def values(self) -> int:
        return sum(self.counts)

    @property
    def mean_s(self) -> float | None:
        return self.total_s / self.values if self.values else None


def between(before: Histogram, after: Histogram) -> Histogram | None:
    """Return the difference of two histograms of one thing; None if the later one does not continue the earlier."""
    if before.bounds_s != after.bounds_s or len(before.counts) != len(after.counts):
        return None
    counts = tuple(late - early for early, late in zip(before.counts, after.counts, strict=True))
    if any(count < 0 for count in counts):
        return None
    return Histogram(after.bounds_s, counts, max(0.0, after.total_s - before.total_s))


def quantile_s(histogram: Histogram, share: float) -> float | None:
    """Return the duration below which `share` (0 … 1) of the values lie, interpolated within a bucket as in Prometheus.

    It is None without values, and infinity above the last bound.
    """
    if not histogram.values:
        return None
    rank = share * histogram.values
    below = 0
    lower_s = 0.0
    for bound_s, count in zip(histogram.bounds_s, histogram.counts, strict=False):
        if count and below + count >= rank:
            return lower_s + (bound_s - lower_s) * max(0.0, rank - below) / count
        below += count
        lower_s = bound_s
    return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStats:
    """A stage of a call in a span of time.

    A value is None if no run was timed, or if the stage is no share of the call.
    """

    call: str
    name: str
    values: int
    p50_s: float | None
    p99_s: float | None
    share: float | None

    @property
    def is_slow(self) -> bool:
        if self.p99_s is None or self.name == "wait":
            return False
        return self.p99_s > (SLOW_FLUSH_S if self.name == "flush" else SLOW_S)


def stage_stats(histograms: Mapping[tuple[str, str], Histogram]) -> list[StageStats]:
    """Return the statistics of stages by call and name, in their order.

    The share is the stage's mean divided by the sum of the means of the call's stages: some stages are timed in every
    batch, others in one call of many, so that their sums cannot be compared.
    """
    sums_s: dict[str, float] = {}
    for (call, name), histogram in histograms.items():
        if (call, name) not in UNCOUNTED:
            sums_s[call] = sums_s.get(call, 0.0) + (histogram.mean_s or 0.0)
    found = []
    for (call, name), histogram in histograms.items():
        sum_s, mean_s = sums_s.get(call, 0.0), histogram.mean_s
        is_share = mean_s is not None and sum_s > 0 and (call, name) not in UNCOUNTED
        found.append(
            StageStats(
                call=call,
                name=name,
                values=histogram.values,
                p50_s=quantile_s(histogram, 0.5),
                p99_s=quantile_s(histogram, 0.99),
                share=mean_s / sum_s if is_share and mean_s is not None else None,
            )
        )
    return found


def left_s(done: int, total: int | None, *, earlier_done: int, apart_s: float) -> float | None:
    """Estimate the seconds until work is done, from its pace between two readings; None if unknown."""
    if total is None or apart_s <= 0 or done <= earlier_done:
        return None
    return max(0, total - done) * apart_s / (done - earlier_done)


def busy_share(cpu_s: float, earlier_cpu_s: float, *, apart_s: float) -> float | None:
    """Return the share of one processor used between two readings; None if unknown."""
    if apart_s <= 0 or cpu_s < earlier_cpu_s:
        return None
    return (cpu_s - earlier_cpu_s) / apart_s
