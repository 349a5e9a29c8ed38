"""Histograms as plain numbers, and the times of the stages of sends and receives in them.

Counting must cost next to nothing; an exporter reads the counts later.

A stage that runs once per batch of sends is timed in each batch; one that runs once per call, in one call of `SAMPLED`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from quarry_mq.protocol.clock import Clock


class BucketHistogram:
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


SAMPLED: Final = 17
"""Calls of which one is timed. The number is a prime: calls that alternate in a pattern are all timed equally often."""

BOUNDS_S: Final = tuple(0.000_004 * 4**step for step in range(11))
"""Bounds from 4 µs, to parse a lone message, to 4 s, a disk that hangs for longer than clients wait."""

WAIT_BOUNDS_S: Final = tuple(0.000_1 * 4**step for step in range(10))
"""Bounds from 100 µs to 26 s: a receive waits 20 s at most unless the client asks for more."""


class _Sampled:
    """Choose which calls are timed."""

    def __init__(self) -> None:
        self._calls = 0

    def is_turn(self) -> bool:
        self._calls += 1
        return not self._calls % SAMPLED


class SendStages(_Sampled):
    """Histograms of the stages of a send, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.check: Final = BucketHistogram(BOUNDS_S)
        """Time from the call's bytes to a message that waits for its batch; one call of `SAMPLED`. For fast-path sends,
        which are checked together, it is the mean of one loop iteration of `SAMPLED`."""
        self.gather: Final = BucketHistogram(BOUNDS_S)
        """Time that the first send of a batch waits until the batch begins."""
        self.append: Final = BucketHistogram(BOUNDS_S)
        """Time to encode all records of a batch and append them to the log."""
        self.flush: Final = BucketHistogram(BOUNDS_S)
        """Time from the append of a flush's first send to the end of that flush. Under `sync` alone."""
        self.dispatch: Final = BucketHistogram(BOUNDS_S)
        """Time to write all consume queue entries of what is durable."""
        self.wake: Final = BucketHistogram(BOUNDS_S)
        """Time to give the messages to consumers that wait for them."""
        self.answer: Final = BucketHistogram(BOUNDS_S)
        """Time to answer all sends that are done."""

    def __iter__(self) -> Iterator[tuple[str, BucketHistogram]]:
        for name in ("check", "gather", "append", "flush", "dispatch", "wake", "answer"):
            yield name, getattr(self, name)


class ReceiveStages(_Sampled):
    """Histograms of the stages of a receive that returns messages; all but `wait` are timed in one of `SAMPLED`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.now_s: Final = clock.monotonic_s
        self.is_timed = False
        """True while the receive that is served now is one of those that are timed."""
        self.reading_s = 0.0
        """Seconds that the present receive has spent reading records."""
        self.wait: Final = BucketHistogram(WAIT_BOUNDS_S)
        """Time from the call to messages that were not there at first."""
        self.take: Final = BucketHistogram(BOUNDS_S)
        """Time to read queues and make deliveries, the reading of records included."""
        self.read: Final = BucketHistogram(BOUNDS_S)
        """Time to read and check records, a part of `take`."""
        self.write: Final = BucketHistogram(BOUNDS_S)
        """Time until the deliveries are written, with all others of the same loop iteration."""
        self.answer: Final = BucketHistogram(BOUNDS_S)
        """Time to make the answers and hand them to the front."""

    def __iter__(self) -> Iterator[tuple[str, BucketHistogram]]:
        for name in ("wait", "take", "read", "write", "answer"):
            yield name, getattr(self, name)
