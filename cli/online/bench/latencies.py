"""A histogram of durations: an hour of load takes no more memory than a second of it."""

from __future__ import annotations

from array import array
from typing import Final

EXACT_BITS: Final = 10
"""Bits of exact values: below 2^10 µs each microsecond has a bucket; above, each power of two has 2^9 buckets."""
_EXACT: Final = 1 << EXACT_BITS
_HALF: Final = _EXACT >> 1
_POWERS: Final = 32
LARGEST_US: Final = (1 << (EXACT_BITS + _POWERS)) - 1


class Latencies:
    """Durations in microseconds with an error of 1 in 512; the maximum is exact."""

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * (_EXACT + _POWERS * _HALF)))
        self.count = 0
        self.max_us = 0

    def add(self, seconds: float) -> None:
        """Add a duration. A negative one counts as zero."""
        microseconds = min(max(0, int(seconds * 1e6)), LARGEST_US)
        self._counts[_place(microseconds)] += 1
        self.count += 1
        self.max_us = max(self.max_us, microseconds)

    def percentile_us(self, share: float) -> int | None:
        """Return the duration that this share (0 to 1) of all durations does not exceed; None if there are none."""
        if not self.count:
            return None
        wanted = max(1, -(-self.count * share // 1))  # rounded up, so that of one duration every share is the first
        seen = 0
        for place, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                return min(_upper_us(place), self.max_us)
        return self.max_us


def _place(microseconds: int) -> int:
    if microseconds < _EXACT:
        return microseconds
    shift = microseconds.bit_length() - EXACT_BITS
    return shift * _HALF + (microseconds >> shift)


def _upper_us(place: int) -> int:
    """Return the largest duration of a bucket."""
    if place < _EXACT:
        return place
    shift = place // _HALF - 1
    return ((place - shift * _HALF + 1) << shift) - 1
