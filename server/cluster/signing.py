"""Signs calls between members, and their answers, with the cluster's key, and refuses replayed calls.

    quarry-cluster-date        seconds since 1970, decimal
    quarry-cluster-signature   hex of HMAC-SHA256 over the signed parts, each with its size before it

The parts of a call are its method, its date and its bytes; those of an answer are the call's signature and the answer's
bytes, so that an answer to another call is not accepted for this one.

A recorded call of a member is accepted only once. A caller numbers its calls to a member, and draws a random number for
itself when it starts (`Numbers`); both are in the signed bytes. For each caller the highest number and a bitmap of the
numbers shortly below it are kept, however many calls it makes. A caller is removed when all that it has signed is too
old to be accepted, and by a restart.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from secrets import randbits
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.errors import NotAMember
from quarry_mq.store.security.sealer import read_keys

DATE: Final = "quarry-cluster-date"
SIGNATURE: Final = "quarry-cluster-signature"

DATE_TOLERANCE_S: Final = 300
"""Largest difference in seconds between the clocks of two members, and the largest age of a call that was recorded."""

_CALL: Final = b"quarry cluster call"
_ANSWER: Final = b"quarry cluster answer"

Headers = tuple[tuple[str, str], ...]


class ClusterKeys:
    """The keys of the cluster. The first key signs, all are accepted: so a cluster changes its key without a pause."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(keys)

    @classmethod
    def read(cls, path: Path) -> ClusterKeys:
        """Read the keys of a file. Raises Invalid that names the file."""
        return cls(read_keys(path))

    def sign_call(self, method: str, body: bytes, now_s: int) -> Headers:
        date = str(now_s)
        return ((DATE, date), (SIGNATURE, _digest(self._keys[0], _CALL, method.encode(), date.encode(), body)))

    def check_call(self, method: str, body: bytes, headers: Mapping[str, str], now_s: int) -> str:
        """Check the signature of a call, and return it for the answer. Raises NotAMember."""
        date, signature = headers.get(DATE, ""), headers.get(SIGNATURE, "")
        if not (date.isascii() and date.isdigit() and len(date) <= 12):
            raise NotAMember("the call is not signed with the cluster's key")
        parts = (_CALL, method.encode(), date.encode(), body)
        if not any(_same(signature, _digest(key, *parts)) for key in self._keys):
            raise NotAMember("the call is not signed with the cluster's key")
        if abs(now_s - int(date)) > DATE_TOLERANCE_S:
            raise NotAMember(f"the call is dated {int(date) - now_s:+} s from now: check the clocks")
        return signature

    def sign_answer(self, call_signature: str, body: bytes) -> Headers:
        return ((SIGNATURE, _digest(self._keys[0], _ANSWER, call_signature.encode(), body)),)

    def check_answer(self, call_signature: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Check the signature of an answer. Raises NotAMember."""
        signature = headers.get(SIGNATURE, "")
        if not any(_same(signature, _digest(key, _ANSWER, call_signature.encode(), body)) for key in self._keys):
            raise NotAMember("the answer is not signed with the cluster's key")


def _digest(key: bytes, *parts: bytes) -> str:
    digest = hmac.new(key, digestmod=sha256)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _same(shown: str, expected: str) -> bool:
    return hmac.compare_digest(shown.encode(errors="replace"), expected.encode())


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
