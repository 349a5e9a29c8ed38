"""Keep the last hour in one ring: a row of times, and a row of numbers for each series (ADR 41)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isnan, nan
from typing import Final, NamedTuple

from quarry_mq.store.errors import Invalid

INTERVAL_MS: Final = 10_000
SAMPLES_MAX: Final = 360
"""Samples in the last hour."""


class Series(NamedTuple):
    """The name and unit of a series. `unit` is a word for people, such as `messages/s`."""

    name: str
    unit: str


class SeriesValues(NamedTuple):
    """Hold one number of a series for each time of the excerpt; NaN: not known."""

    series: Series
    values: Sequence[float]


class Excerpt(NamedTuple):
    """A part of the history: times in milliseconds since the Unix epoch, ascending, and the values at these times."""

    at_ms: Sequence[int]
    series: Sequence[SeriesValues]


class History:
    """The samples of the last hour, 8 bytes per number: 100 KiB for 35 series. Lives on the event loop's thread."""

    def __init__(self, series: Sequence[Series], samples_max: int = SAMPLES_MAX) -> None:
        self._series = {each.name: index for index, each in enumerate(series)}
        self._all = tuple(series)
        self._samples_max = samples_max
        self._at_ms = array("q", bytes(8 * samples_max))
        self._rows = [array("d", bytes(8 * samples_max)) for _ in series]
        self._next = 0
        """The index of the next sample, unless samples are dropped."""
        self._count = 0

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._count

    def add(self, at_ms: int, values: Sequence[float]) -> None:
        """Add a sample: one number for each series, in their order.

        Times ascend: if the clock was set back, samples with later times are dropped.
        """
        while self._count and self._at_ms[self._next - 1] >= at_ms:
            self._next = (self._next - 1) % self._samples_max
            self._count -= 1
        self._at_ms[self._next] = at_ms
        for row, value in zip(self._rows, values, strict=True):
            row[self._next] = value
        self._next = (self._next + 1) % self._samples_max
        self._count = min(self._count + 1, self._samples_max)

    def excerpt(self, names: Sequence[str] = (), after_ms: int | None = None) -> Excerpt:
        """Return these series in this order, or all; only samples after a time. Raises Invalid for an unknown name."""
        wanted = [self._index(name) for name in names] or range(len(self._all))
        places = [place for place in self._places() if after_ms is None or self._at_ms[place] > after_ms]
        return Excerpt(
            [self._at_ms[place] for place in places],
            [SeriesValues(self._all[each], [self._rows[each][place] for place in places]) for each in wanted],
        )

    def latest(self, name: str) -> float | None:
        """Return the series' number in the last sample; None if it is not known."""
        value = self._rows[self._index(name)][self._next - 1] if self._count else nan
        return None if isnan(value) else value

    def _places(self) -> list[int]:
        """Return the indexes of the samples in the ring, the oldest first."""
        first = self._next - self._count
        return [place % self._samples_max for place in range(first, self._next)]

    def _index(self, name: str) -> int:
        index = self._series.get(name)
        if index is None:
            raise Invalid(f"series: there is no series {name[:60]!r}, docs/admin-calls.md lists them")
        return index
