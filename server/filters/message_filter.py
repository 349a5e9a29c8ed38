"""The filter that delivery asks, and the memory of filters by expression.

Clients send the same expressions with every receive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Protocol, TypeVar


class MessageFilter(Protocol):
    """Decides in two steps: by the consume queue entry, which costs nothing, then by the record."""

    @property
    def length(self) -> int:
        """Characters of its expression, more or less: it takes up to 160 bytes of memory for each."""

    @property
    def wants_all(self) -> bool:
        """Whether every message is wanted, so that nobody need look at any."""

    def may_match(self, tags_code: int) -> bool:
        """Whether a message with this tags code can be wanted; the record is read only then."""

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether the message with these stored properties is wanted."""


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
