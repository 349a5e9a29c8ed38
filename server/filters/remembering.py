"""Filters by their expression, those used lately: clients send the same ones with every receive."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeVar

LENGTH_MAX: Final = 4 * 1024
"""Characters of a filter expression. Reading the longest SQL takes 4 to 12 ms, while all others wait."""

SHORT_MAX: Final = 512
SHORT_REMEMBERED: Final = 1024
LONG_REMEMBERED: Final = 32
# a filter takes up to 160 bytes per character: 80 MB for the short ones at most, 20 MB for the long ones

Filter = TypeVar("Filter")


def remembering(parse: Callable[[str], Filter]) -> Callable[[str], Filter]:
    """The same function, which gives the same object for an expression it was given lately."""
    short, long = lru_cache(SHORT_REMEMBERED)(parse), lru_cache(LONG_REMEMBERED)(parse)

    def remembered(expression: str) -> Filter:
        return (short if len(expression) <= SHORT_MAX else long)(expression)

    return remembered
