"""Draws values over time as one line of text: a curve of bars. All functions are pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

HOUR_MS: Final = 3_600_000
BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS: Final = "_.-=+*%#"
"""Bars for terminals that do not support UTF-8."""


def cells(
    at_ms: Sequence[int], values: Sequence[float], *, end_ms: int, span_ms: int, width: int
) -> list[float | None]:
    """Return the highest values in `width` equal parts of (end - span, end]; None for a part without a known sample."""
    found: list[float | None] = [None] * width
    for moment_ms, value in zip(at_ms, values, strict=False):
        age_ms = end_ms - moment_ms
        if math.isnan(value) or not 0 <= age_ms < span_ms:
            continue
        cell = width - 1 - age_ms * width // span_ms
        found[cell] = max(value, found[cell] or 0.0)
    return found


def levels(values: Sequence[float | None], steps: int) -> list[int | None]:
    """Return each value's height, 0 … steps - 1. Only zero has height 0, and the highest value has the top height."""
    top = max((value for value in values if value is not None), default=0.0)
    if top <= 0:
        return [None if value is None else 0 for value in values]
    return [None if value is None else max(value > 0, round(value / top * (steps - 1))) for value in values]


def sparkline(values: Sequence[float | None], *, plain: bool = False) -> str:
    """Return a column for each value; `·` (`?` in plain text) for an unknown one."""
    blocks, unknown = (ASCII_BLOCKS, "?") if plain else (BLOCKS, "·")
    return "".join(unknown if level is None else blocks[level] for level in levels(values, len(blocks)))
