"""Authenticate calls of the admin port."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.signature import admin_signature, parse_authorization
from quarry_mq.server.errors import Outcome, TooManyFailures, Unauthenticated
from quarry_mq.server.security.authentication import Freshness
from quarry_mq.server.security.credentials import Credentials, How, Identity, Source

SHARE_MAX: Final = 50_000
"""Most calls of one user within the window. Each user has a share of its own, which no other user fills."""

SMALL_SHARE_MAX: Final = 600
"""Most calls of a user that no rule allows any administration: all but a few of its calls are denied."""

NONCE: Final = re.compile(r"[!-~]{16,64}")


class AdminCall(NamedTuple):
    """The parts of an admin call that authenticate it. `method` is the whole path, `certificate` is DER."""

    method: str
    authorization: str | None
    date: str
    nonce: str
    certificate: bytes | None
    source: Source


class AdminAuthenticator:
    """Authenticate a call by a signature that covers the method and is valid once, or else by the client's certificate.

    Nonces are remembered for as long as their dates are fresh, in memory: a restart forgets them.
    """

    def __init__(
        self, credentials: Credentials, window_ms: int, clock: Clock, administers: Callable[[str], bool]
    ) -> None:
        """`administers` returns whether the user may do anything at all on the admin port."""
        self._credentials = credentials
        self._window_ms = window_ms
        self._freshness = Freshness(
            window_ms, zones=()
        )  # dates must have an offset: a replay must not fit another zone
        self._clock = clock
        self._administers = administers
        self._seen: OrderedDict[tuple[str, str], int] = OrderedDict()
        """Time at which each nonce of a user was seen, oldest first."""
        self._counts: Counter[str] = Counter()
        """Number of remembered nonces by user."""

    @property
    def nonces(self) -> int:
        """Return how many nonces are remembered."""
        return len(self._seen)

    def identify(self, call: AdminCall) -> Identity:
        """Return who calls. The call may be a replay: see `admit`. Raises Unauthenticated, TooManyFailures."""
        return self._credentials.timed(lambda: self._find_out(call))

    def admit(self, call: AdminCall, identity: Identity) -> None:
        """Use up the call's nonce, so that it is served only once; to be called after a check of the caller's rights.

        A call that is denied is not remembered. Raises Unauthenticated, TooManyFailures.
        """
        if identity.how is How.SIGNATURE:
            self._take_nonce(identity.user, call.nonce, self._clock.wall_ms())

    def _find_out(self, call: AdminCall) -> Identity:
        claim = parse_authorization(call.authorization)
        if claim is None:
            return self._credentials.by_certificate(call.certificate)
        if not NONCE.fullmatch(call.nonce):
            raise Unauthenticated("the nonce is not 16 to 64 printable characters", Outcome.WRONG, claimed=claim.user)
        self._freshness.fresh_until_ms(call.date, self._clock.wall_ms())
        return self._credentials.by_signature(
            claim, call.source, lambda secret: admin_signature(secret, call.method, call.date, call.nonce)
        )

    def _take_nonce(self, user: str, nonce: str, now_ms: int) -> None:
        """Remember a nonce for two windows: a date may be one ahead of now, and is valid for one after itself."""
        while self._seen and not abs(now_ms - next(iter(self._seen.values()))) <= 2 * self._window_ms:
            (owner, _), _ = self._seen.popitem(last=False)
            self._counts[owner] -= 1
            if not self._counts[owner]:
                del self._counts[owner]
        if (user, nonce) in self._seen:
            raise Unauthenticated("the call was already made: its nonce is known", Outcome.REPLAYED, claimed=user)
        if not self._has_room(user):
            raise TooManyFailures("too many calls of this user within security.date_window_s")
        self._seen[user, nonce] = now_ms
        self._counts[user] += 1

    def _has_room(self, user: str) -> bool:
        count = self._counts[user]
        return count < SMALL_SHARE_MAX or (count < SHARE_MAX and self._administers(user))
