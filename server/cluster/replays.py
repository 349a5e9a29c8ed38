"""Refuses replayed calls: a recorded call of a member is accepted only once.

A caller numbers its calls to a member, and draws a random number for itself when it starts (`Numbers`); both are in the
signed bytes. For each caller the highest number and a bitmap of the numbers shortly below it are kept, however many
calls it makes. A caller is removed when all that it has signed is too old to be accepted, and by a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from secrets import randbits
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.cluster.signing import DATE_TOLERANCE_S
from quarry_mq.server.errors import NotAMember

SESSION_BITS: Final = 64
NUMBERS_KEPT: Final = 4_096
"""Number of later calls that may arrive before a call."""

KEPT_S: Final = 2 * DATE_TOLERANCE_S + 1
"""Seconds to keep a caller: a date may be ahead of this member's clock as far as it may be behind it."""

CALLERS_MAX: Final = 4_096
"""Largest number of callers. Each start of a member makes one caller for each member that it calls."""

UNNUMBERED_MAX: Final = 10_000


class Number(NamedTuple):
    """The number of a call, and the session of its caller."""

    session: int
    number: int


class Numbers:
    """The numbering of one caller's calls."""

    def __init__(self) -> None:
        self._session = randbits(SESSION_BITS)
        self._last = 0

    def next(self) -> Number:
        self._last += 1
        return Number(self._session, self._last)


@dataclass(slots=True)
class _Seen:
    last_s: float
    highest: int = 0
    below: int = 0
    """A bit for each number that arrived: bit 0 is the highest number."""


class Replays:
    """The calls that arrived at this member."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._callers: OrderedDict[int, _Seen] = OrderedDict()
        """The callers by session; the caller whose last call is the oldest comes first."""
        self._unnumbered: OrderedDict[str, float] = OrderedDict()
        """Arrival times of calls without a number, by signature; members of an older version send such calls."""

    def __len__(self) -> int:
        return len(self._callers) + len(self._unnumbered)

    def take(self, call: Number) -> None:
        """Accept a signed call. Raises NotAMember when it arrived before, or may have."""
        now_s = self._clock.monotonic_s()
        while self._callers and now_s - next(iter(self._callers.values())).last_s > KEPT_S:
            self._callers.popitem(last=False)
        seen = self._callers.get(call.session)
        if seen is None:
            if len(self._callers) >= CALLERS_MAX:
                raise NotAMember("too many callers at once: do members restart again and again?")
            seen = self._callers[call.session] = _Seen(now_s)
        if call.number > seen.highest:
            seen.below = (seen.below << min(call.number - seen.highest, NUMBERS_KEPT) | 1) & ((1 << NUMBERS_KEPT) - 1)
            seen.highest = call.number
        else:
            bit = seen.highest - call.number
            if bit >= NUMBERS_KEPT or seen.below >> bit & 1:
                raise NotAMember("the call was already made")
            seen.below |= 1 << bit
        seen.last_s = now_s
        self._callers.move_to_end(call.session)

    def take_unnumbered(self, signature: str) -> None:
        """Accept a signed call of a member that does not number its calls.

        Raises NotAMember when it arrived before, or may have.
        """
        now_s = self._clock.monotonic_s()
        while self._unnumbered and now_s - next(iter(self._unnumbered.values())) > KEPT_S:
            self._unnumbered.popitem(last=False)
        if signature in self._unnumbered:
            raise NotAMember("the call was already made")
        if len(self._unnumbered) >= UNNUMBERED_MAX:
            raise NotAMember("too many calls of members of an older version: upgrade all members")
        self._unnumbered[signature] = now_s
