"""Calls of members come but once: who has recorded one cannot make it again.

A caller numbers its calls to a member, and draws a number for itself when it begins (`Once`); both are in the signed
bytes. Kept of each caller are the highest number that came and which of those shortly below it did, however many calls
it makes. A caller is forgotten when all that it has signed is too old to be taken, and by a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from secrets import randbits
from typing import Final, NamedTuple

from quarry_mq.server.cluster.signing import DATE_TOLERANCE_S
from quarry_mq.server.errors import NotAMember
from quarry_mq.store.clock import Clock

SESSION_BITS: Final = 64
NUMBERS_KEPT: Final = 4_096
"""A call may come so much later than others that were made after it."""

KEPT_S: Final = 2 * DATE_TOLERANCE_S + 1
"""A date may be ahead of the clock here as far as it may be behind."""

CALLERS_MAX: Final = 4_096
"""Each start of a member makes one for each that it calls."""

UNNUMBERED_MAX: Final = 10_000


class Number(NamedTuple):
    """Which call of which caller."""

    session: int
    number: int


class Numbers:
    """Of one caller."""

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
    """A bit for each number that came: bit 0 is that of the highest."""


class Replays:
    """The calls that came to this member."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._callers: OrderedDict[int, _Seen] = OrderedDict()
        """By session, who called longest ago first."""
        self._unnumbered: OrderedDict[str, float] = OrderedDict()
        """When calls without a number came, by signature: of members of an older version."""

    def __len__(self) -> int:
        return len(self._callers) + len(self._unnumbered)

    def take(self, call: Number) -> None:
        """A call that is signed. Raises NotAMember when it came before, or may have."""
        now_s = self._clock.monotonic_s()
        while self._callers and now_s - next(iter(self._callers.values())).last_s > KEPT_S:
            self._callers.popitem(last=False)
        seen = self._callers.get(call.session)
        if seen is None:
            if len(self._callers) >= CALLERS_MAX:
                raise NotAMember("too many callers at once: are members restarted all the time?")
            seen = self._callers[call.session] = _Seen(now_s)
        if call.number > seen.highest:
            seen.below = (seen.below << min(call.number - seen.highest, NUMBERS_KEPT) | 1) & ((1 << NUMBERS_KEPT) - 1)
            seen.highest = call.number
        else:
            bit = seen.highest - call.number
            if bit >= NUMBERS_KEPT or seen.below >> bit & 1:
                raise NotAMember("the call was made before")
            seen.below |= 1 << bit
        seen.last_s = now_s
        self._callers.move_to_end(call.session)

    def take_unnumbered(self, signature: str) -> None:
        """A signed call of a member that numbers none. Raises NotAMember when it came before, or may have."""
        now_s = self._clock.monotonic_s()
        while self._unnumbered and now_s - next(iter(self._unnumbered.values())) > KEPT_S:
            self._unnumbered.popitem(last=False)
        if signature in self._unnumbered:
            raise NotAMember("the call was made before")
        if len(self._unnumbered) >= UNNUMBERED_MAX:
            raise NotAMember("too many calls of members of an older version: upgrade all")
        self._unnumbered[signature] = now_s
