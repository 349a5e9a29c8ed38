"""What one number of a series is made of: something read now, or the difference between two readings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import Final, Protocol

from quarry_mq.server.admin.figures.history import Series
from quarry_mq.server.counters.tally import Tally

RATE_SECONDS_MIN: Final = 1.0
"""What happens in a shorter time says nothing of a second."""

Read = Callable[[], float | None]
"""None: not known."""


class Measure(Protocol):
    """Gives a series its next number."""

    @property
    def series(self) -> Series: ...

    def next(self, seconds: float) -> float:
        """`seconds` since the one before, or since this was made. NaN: not known."""


class Gauge:
    """A number as it is read."""

    def __init__(self, name: str, unit: str, read: Read) -> None:
        self.series: Final = Series(name, unit)
        self._read = read

    def next(self, seconds: float) -> float:  # noqa: ARG002 - of no account here
        value = self._read()
        return nan if value is None else value


class Rate:
    """By how much a count grows in a second. One that becomes less was made anew: that is not known."""

    def __init__(self, name: str, unit: str, read: Read, *, factor: float = 1.0) -> None:
        """`factor`: of the unit in one of what is counted."""
        self.series: Final = Series(name, unit)
        self._read = read
        self._factor = factor
        self._last = read()

    def next(self, seconds: float) -> float:
        last, self._last = self._last, self._read()
        if last is None or self._last is None or self._last < last or seconds < RATE_SECONDS_MIN:
            return nan
        return (self._last - last) * self._factor / seconds


class Percentile:
    """Below which value 99 of 100 were that a tally has got since the last number, in milliseconds. NaN for none."""

    def __init__(self, name: str, tally: Tally, *, part: float = 0.99) -> None:
        """`tally` is of seconds."""
        self.series: Final = Series(name, "ms")
        self._tally = tally
        self._part = part
        self._last = tally.counts()

    def next(self, seconds: float) -> float:  # noqa: ARG002 - of no account here
        last, self._last = self._last, self._tally.counts()
        came = [now - before for now, before in zip(self._last, last, strict=True)]
        return 1000 * percentile(self._tally.bounds, came, self._part)


def percentile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float:
    """Within a bucket values are taken to lie evenly; above the last bound, at it. NaN where there are none."""
    wanted = part * sum(counts)
    if not wanted:
        return nan
    lower = 0.0
    for upper, count in zip(bounds, counts, strict=False):
        if count and wanted <= count:
            return lower + (upper - lower) * wanted / count
        wanted -= count
        lower = upper
    return lower
