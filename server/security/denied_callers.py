"""Count the calls of each caller that were denied lately, so that a client with wrong credentials is found.

A caller is a user name and an address; names are those that calls claim, so the number of callers is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.errors import Outcome

RECENT_S: Final = 300.0
"""A client that goes on with wrong credentials calls again much sooner."""

CALLERS_MAX: Final = 1024
LEAST: Final = 3
"""Calls that are denied before a caller is named: a secret may be mistyped once or twice."""


class Denial(Enum):
    """A call is denied for one of these reasons, told apart by what helps."""

    WRONG_SECRET = "wrong secret"
    WRONG_CLOCK = "wrong clock"
    NO_CREDENTIALS = "no credentials"
    NO_RIGHT = "no right"
    OTHER = "other"


_BY_OUTCOME: Final = {
    Outcome.WRONG.value: Denial.WRONG_SECRET,
    Outcome.LIMITED.value: Denial.WRONG_SECRET,
    Outcome.REPLAYED.value: Denial.OTHER,
    Outcome.STALE.value: Denial.WRONG_CLOCK,
    Outcome.ABSENT.value: Denial.NO_CREDENTIALS,
}


class DeniedCaller(NamedTuple):
    """A caller whose calls are denied. `reason` is that of the last call, the times are those of the monotonic clock.

    `user` is empty for a call that names none, and may be no valid name.
    """

    denial: Denial
    port: str
    user: str
    address: str
    calls: int
    reason: str
    first_s: float
    last_s: float


class DeniedCallers:
    """Counts denied calls by caller. Lives on the event loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._callers: OrderedDict[tuple[Denial, str, str, str], DeniedCaller] = OrderedDict()
        """The caller that was denied last at the end."""

    def note(self, port: str, user: str, address: str, outcome: str, reason: str) -> None:
        """Count a call. `outcome` is that of an `Outcome`, or says which right is missing."""
        self._drop_old()
        now_s, denial = self._clock.monotonic_s(), _BY_OUTCOME.get(outcome, Denial.NO_RIGHT)
        if outcome == Outcome.LIMITED.value and not user:
            denial = Denial.OTHER  # a user with the right secret makes too many calls
        key = denial, port, user, address
        known = self._callers.pop(key, None)
        calls, first_s = (1, now_s) if known is None else (known.calls + 1, known.first_s)
        self._callers[key] = DeniedCaller(denial, port, user, address, calls, reason, first_s, now_s)
        if len(self._callers) > CALLERS_MAX:
            self._callers.popitem(last=False)

    def recent(self) -> list[DeniedCaller]:
        """Return the callers with at least `LEAST` denied calls and no pause of `RECENT_S`, those with most first."""
        self._drop_old()
        named = (each for each in self._callers.values() if each.calls >= LEAST)
        return sorted(named, key=lambda each: -each.calls)

    def _drop_old(self) -> None:
        before_s = self._clock.monotonic_s() - RECENT_S
        while self._callers and next(iter(self._callers.values())).last_s <= before_s:
            self._callers.popitem(last=False)
