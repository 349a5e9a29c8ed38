"""A limit on the useless frames of one HTTP/2 connection.

A budget limits the frames of a peer that carry nothing useful. PING, SETTINGS, PRIORITY, WINDOW_UPDATE, RST_STREAM,
empty DATA, unknown frames: each costs the broker a microsecond or two and the peer almost nothing, so a peer could keep
the loop busy with them alone. Honest clients send some for each message they exchange and some per second, so that is
what they are allowed. A peer that spends more is disconnected with ENHANCE_YOUR_CALM (CVE-2019-9511 … 9518,
CVE-2023-44487, CVE-2024-27316).
"""

from __future__ import annotations

from typing import Final

BURST: Final = 10_000
"""Frames allowed at once: an application with thousands of calls may cancel all of them when it stops."""

PER_SECOND: Final = 1_000
"""Frames allowed per second. A peer that spends exactly this keeps one core busy for some 2 ms of each second."""

PER_MESSAGE: Final = 8
"""Frames allowed for each message received or DATA frame sent. The grpc C core sends a WINDOW_UPDATE and a PING for
most.
"""


CALLS_PER_FRAME: Final = 16
"""Open calls that count as one frame, for a frame that concerns all of them."""


class AbuseBudget:
    """The budget of one connection. Counting is one addition; what was earned is added only when the budget seems
    spent.
    """

    __slots__ = ("_ceiling", "_earned_at_s", "_messages_counted", "_spent")

    def __init__(self, now_s: float) -> None:
        self._spent = 0
        self._ceiling = BURST
        self._earned_at_s = now_s
        self._messages_counted = 0

    def spend(self, amount: int, messages: int, now_s: float) -> bool:
        """Spend from the budget; return False if it is exceeded. `messages` is how many were exchanged since the
        beginning.
        """
        self._spent += amount
        if self._spent <= self._ceiling:
            return True
        earned = int((now_s - self._earned_at_s) * PER_SECOND) + (messages - self._messages_counted) * PER_MESSAGE
        self._earned_at_s, self._messages_counted = now_s, messages
        self._spent = max(0, self._spent - earned)
        return self._spent <= self._ceiling
