"""How much a peer may ask for that brings nobody anything.

PING, SETTINGS, PRIORITY, WINDOW_UPDATE, RST_STREAM, empty DATA, unknown frames: each costs us a microsecond or two and
the peer almost nothing, so a peer could keep the loop busy with them alone. Honest clients send some for each message
they exchange and some per second, so that is what they are allowed. Whoever spends more is sent away with
ENHANCE_YOUR_CALM (CVE-2019-9511 … 9518, CVE-2023-44487, CVE-2024-27316).
"""

from __future__ import annotations

from typing import Final

BURST: Final = 10_000
"""Frames at once: an application with thousands of calls may cancel all of them when it stops."""

PER_SECOND: Final = 1_000
"""A peer that spends exactly this keeps one core busy for some 2 ms of each second."""

PER_MESSAGE: Final = 8
"""For each message taken in or DATA frame given out. The grpc C core sends a WINDOW_UPDATE and a PING for most."""


CALLS_PER_FRAME: Final = 16
"""A frame that concerns all open calls costs as much as one frame for so many of them."""


class Allowance:
    """What one connection may still spend. Counting is one addition; the sum is drawn up only when it seems spent."""

    __slots__ = ("_ceiling", "_earned_at_s", "_messages_counted", "_spent")

    def __init__(self, now_s: float) -> None:
        self._spent = 0
        self._ceiling = BURST
        self._earned_at_s = now_s
        self._messages_counted = 0

    def spend(self, amount: int, messages: int, now_s: float) -> bool:
        """Spend it; False when there is nothing left. `messages` is how many were exchanged since the beginning."""
        self._spent += amount
        if self._spent <= self._ceiling:
            return True
        earned = int((now_s - self._earned_at_s) * PER_SECOND) + (messages - self._messages_counted) * PER_MESSAGE
        self._earned_at_s, self._messages_counted = now_s, messages
        self._spent = max(0, self._spent - earned)
        return self._spent <= self._ceiling
