"""Histograms as plain numbers: counting must cost next to nothing, and an exporter reads them later."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class Tally:
    """A histogram counts the values between each bound and the one before. One thread adds, any reads."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count `times` values of this size."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    @property
    def bounds(self) -> Sequence[float]:
        return self._bounds

    def counts(self) -> tuple[int, ...]:
        """Return how many values fell between each bound and the one before; last, how many were above all bounds."""
        return tuple(self._counts)

    def buckets(self) -> Iterator[tuple[str, float]]:
        """Yield each upper bound as text and the count of values up to it; the last bound is `+Inf`."""
        below = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self.counts(), strict=True):
            below += count
            yield bound, below
