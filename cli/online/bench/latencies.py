"""How long things took: counted by size, so that an hour of load takes no more memory than a second of it."""

from __future__ import annotations

from array import array
from typing import Final

EXACT_BITS: Final = 10
"""Below 2^10 µs each microsecond is counted by itself; above, 2^9 sizes between each power of two and the next."""
_EXACT: Final = 1 << EXACT_BITS
_HALF: Final = _EXACT >> 1
_POWERS: Final = 32
LARGEST_US: Final = (1 << (EXACT_BITS + _POWERS)) - 1


class Latencies:
    """Microseconds, to one in 512; the largest is kept as it is."""

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * (_EXACT + _POWERS * _HALF)))
        self.count = 0
        self.max_us = 0

    def add(self, seconds: float) -> None:
        """Less than nothing counts as nothing."""
        microseconds = min(max(0, int(seconds * 1e6)), LARGEST_US)
        self._counts[_place(microseconds)] += 1
        self.count += 1
        self.max_us = max(self.max_us, microseconds)

    def percentile_us(self, share: float) -> int | None:
        """At most so long took this share of them, from 0 to 1; None where there are none."""
        if not self.count:
            return None
        wanted = max(1, -(-self.count * share // 1))  # rounded up: of one all are the first
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
    """The largest that is counted there."""
    if place < _EXACT:
        return place
    shift = place // _HALF - 1
    return ((place - shift * _HALF + 1) << shift) - 1
