"""Computes bars over time as positions in a drawing of `WIDTH` by `HEIGHT`. The report draws them as an SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from quarry_mq.pipeline.stats.model import Point
from quarry_mq.pipeline.stats.words import minute_text, time_text
from quarry_mq.protocol.clock import DAY_MS

WIDTH: Final = 560
HEIGHT: Final = 170
LEFT: Final = 64
RIGHT: Final = 12
TOP: Final = 12
BOTTOM: Final = 26
LABELS: Final = 6
"""Times below the axis, at most."""


class Bar(NamedTuple):
    """The bar of one bucket. `x` and `y` are its upper left corner."""

    x: float
    y: float
    width: float
    height: float
    title: str


class Tick(NamedTuple):
    """A label at a position of an axis."""

    at: float
    label: str


class Chart(NamedTuple):
    bars: list[Bar]
    across: list[Tick]
    upward: list[Tick]


def chart(
    points: Sequence[Point], bucket_ms: int, value: Callable[[Point], float], words: Callable[[float], str]
) -> Chart:
    """Return a chart with one bar for each point; buckets without a point are empty.

    `words` formats a value with its unit.
    """
    begin, end = points[0].at_ms, points[-1].at_ms + bucket_ms
    per_ms = (WIDTH - LEFT - RIGHT) / (end - begin)
    highest = nice_above(max(map(value, points)))
    per_value = (HEIGHT - TOP - BOTTOM) / highest
    bars = []
    for point in points:
        height = value(point) * per_value
        title = f"{time_text(point.at_ms)}: {words(value(point))}"
        x, y, width = LEFT + (point.at_ms - begin) * per_ms, HEIGHT - BOTTOM - height, bucket_ms * per_ms
        bars.append(Bar(round(x, 2), round(y, 2), round(width, 2), round(height, 2), title))
    upward = [Tick(HEIGHT - BOTTOM - part * highest * per_value, words(part * highest)) for part in (0, 0.5, 1)]
    return Chart(bars, list(_times(begin, end, bucket_ms, per_ms)), upward)


def _times(begin: int, end: int, bucket_ms: int, per_ms: float) -> Iterator[Tick]:
    """Yield labels at the begins of buckets, as many as fit."""
    buckets = (end - begin) // bucket_ms
    step_ms = max(1, -(-buckets // LABELS)) * bucket_ms
    for time_ms in range(begin, end, step_ms):
        yield Tick(round(LEFT + (time_ms - begin) * per_ms, 2), minute_text(time_ms, with_day=end - begin > DAY_MS))


def nice_above(value: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, … that is not below the value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))
