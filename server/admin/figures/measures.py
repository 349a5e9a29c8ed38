"""The ways to compute a number of a series: a value that is read now, or the difference between two readings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import Final, Protocol

from quarry_mq.server.admin.figures.history import Series
from quarry_mq.server.counters.stages import Tally

RATE_SECONDS_MIN: Final = 1.0
"""The shortest time over which a rate is computed; a shorter one says little about a second."""

Read = Callable[[], float | None]
"""Read a value. None: not known."""


class Measure(Protocol):
    """Computes the next number of a series."""

    @property
    def series(self) -> Series: ...

    def next(self, seconds: float) -> float:
        """Return the next number. `seconds`: the time since the last one, or since the start. NaN: not known."""


class Gauge:
    """A number as it is read."""

    def __init__(self, name: str, unit: str, read: Read) -> None:
        self.series: Final = Series(name, unit)
        self._read = read

    def next(self, seconds: float) -> float:  # noqa: ARG002 - rates alone need the time
        value = self._read()
        return nan if value is None else value


class Rate:
    """The growth of a count per second. It is unknown if the count has become less, and so was restarted."""

    def __init__(self, name: str, unit: str, read: Read, *, factor: float = 1.0) -> None:
        """`factor`: the number of units that one count stands for."""
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
    """The 99th percentile of a histogram's observations since the last sample, in milliseconds. NaN without any."""

    def __init__(self, name: str, tally: Tally, *, part: float = 0.99) -> None:
        """`tally` is a histogram of seconds."""
        self.series: Final = Series(name, "ms")
        self._tally = tally
        self._part = part
        self._last = tally.counts()

    def next(self, seconds: float) -> float:  # noqa: ARG002 - rates alone need the time
        last, self._last = self._last, self._tally.counts()
        came = [now - before for now, before in zip(self._last, last, strict=True)]
        return 1000 * percentile(self._tally.bounds, came, self._part)


def percentile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float:
    """Compute a percentile of a histogram. Values are taken as evenly spread within a bucket.

    Values above the last bound are taken as that bound. NaN if there are no values.
    """
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
