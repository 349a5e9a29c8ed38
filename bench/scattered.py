"""The order in which many queues, or topics, are gone through so that hardly one finds anything of the last one."""

from __future__ import annotations

from typing import Final

STEP: Final = 1_618_033
"""Steps of this size visit each of a number of places that has only 2 and 5 as factors, and lie far from each other
within any of 100 to a million of them. One that is a little more than a power of ten would go from neighbour to
neighbour. `QueueStore.java` has the same.
"""


def scattered(number: int, count: int) -> int:
    """The place, of so many, that is visited as this one."""
    return number * STEP % count
