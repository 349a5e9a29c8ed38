"""How long to wait before a shard is started again."""

from __future__ import annotations

from typing import Final

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
LONG_UP_S: Final = 60.0
"""A shard that ran for so long is no shard that cannot start."""


class Backoff:
    """Of one shard: twice as long after each end, unless it ran for a minute."""

    def __init__(self) -> None:
        self._next_s = FIRST_PAUSE_S

    def pause_s(self, *, ran_s: float) -> float:
        """It has ended after so many seconds; returns how long to wait."""
        if ran_s >= LONG_UP_S:
            self._next_s = FIRST_PAUSE_S
        pause_s, self._next_s = self._next_s, min(LONGEST_PAUSE_S, self._next_s * 2)
        return pause_s
