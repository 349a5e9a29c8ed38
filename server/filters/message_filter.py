"""The filter interface that delivery uses, and a cache of parsed filters by expression.

Clients send the same expressions with every receive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Protocol, TypeVar


class MessageFilter(Protocol):
    """Decides in two steps if a message matches: by its consume queue entry, which is cheap, then by its record."""

    @property
    def length(self) -> int:
        """Return the approximate length of the expression in characters; each takes up to 160 bytes of memory."""

    @property
    def wants_all(self) -> bool:
        """Return whether every message matches, so that none has to be checked."""

    def may_match(self, tags_code: int) -> bool:
        """Return whether a message with this tags code can match; only then its record is read."""

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether the message with these stored properties matches."""


LENGTH_MAX: Final = 4 * 1024
"""Characters that a filter expression may have. Reading the longest SQL takes 4 to 12 ms of the event loop's time."""

SHORT_MAX: Final = 512
SHORT_REMEMBERED: Final = 1024
LONG_REMEMBERED: Final = 32
# a filter takes up to 160 bytes per character: 80 MB for the short ones at most, 20 MB for the long ones

Filter = TypeVar("Filter")


def remembering(parse: Callable[[str], Filter]) -> Callable[[str], Filter]:
    """Return the function with a cache: a recently parsed expression gives the same object again."""
    short, long = lru_cache(SHORT_REMEMBERED)(parse), lru_cache(LONG_REMEMBERED)(parse)

    def remembered(expression: str) -> Filter:
        return (short if len(expression) <= SHORT_MAX else long)(expression)

    return remembered
