"""Figures over time as one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

BARS: Final = "▁▂▃▄▅▆▇█"
UNKNOWN: Final = " "


def sparkline(at_ms: Sequence[int], values: Sequence[float | None], interval_ms: int, width: int) -> str:
    """The last hour, the latest at the right; each column is as high as the most of its times. Blank: not known."""
    if not at_ms:
        return UNKNOWN * width
    column_ms = interval_ms * 360 // width
    columns: list[float | None] = [None] * width
    for time_ms, value in zip(at_ms, values, strict=True):
        place = width - 1 - (at_ms[-1] - time_ms) // column_ms
        if place >= 0 and value is not None:
            columns[place] = max(value, columns[place] or 0.0)
    top = max((each for each in columns if each is not None), default=0.0)
    return "".join(UNKNOWN if each is None else BARS[_height(each, top)] for each in columns)


def _height(value: float, top: float) -> int:
    """Nothing is the lowest bar, and no other value is."""
    if value <= 0 or top <= 0:
        return 0
    return max(1, round(value / top * (len(BARS) - 1)))
