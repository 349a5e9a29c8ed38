"""Defines an order of many queues or topics in which hardly any finds cached data of the one before."""

from __future__ import annotations

from typing import Final

STEP: Final = 1_618_033
"""Step between consecutive positions. `QueueStore.java` has the same.

Steps of this size visit every position, if their number has only 2 and 5 as factors, and lie far from each other within
any of 100 to a million positions. A step that is a little more than a power of ten would go from neighbour to
neighbour.
"""


def scattered(number: int, count: int) -> int:
    """Return the position, out of `count`, that is visited as the `number`-th."""
    return number * STEP % count
