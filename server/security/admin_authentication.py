"""Who makes a call of the admin port."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final, NamedTuple

from server.security.credentials import Credentials, Identity
from server.security.errors import Outcome, TooManyFailures, Unauthenticated
from server.security.freshness import Freshness
from server.security.signature import admin_signature, parse_authorization
from server.security.source import Source
from store.clock import Clock

NONCES_MAX: Final = 100_000
"""Calls within the window of all users together."""

NONCE: Final = re.compile(r"[!-~]{16,64}")


class AdminCall(NamedTuple):
    """What a call of the admin port shows. `method` is the whole path, `certificate` is DER."""

    method: str
    authorization: str | None
    date: str
    nonce: str
    certificate: bytes | None
    source: Source


class AdminAuthenticator:
    """A signature that covers the method and comes but once, or else the client's certificate.

    Nonces are remembered for as long as their dates are fresh, in memory: a restart forgets them.
    """

    def __init__(self, credentials: Credentials, window_ms: int, clock: Clock) -> None:
        self._credentials = credentials
        self._window_ms = window_ms
        self._freshness = Freshness(
            window_ms, zones=()
        )  # dates must have an offset: a replay must not fit another zone
        self._clock = clock
        self._seen: OrderedDict[tuple[str, str], int] = OrderedDict()
        """By user and nonce: when it was seen, oldest first."""

    def identify(self, call: AdminCall) -> Identity:
        """Raises Unauthenticated, TooManyFailures."""
        return self._credentials.timed(lambda: self._find_out(call))

    def _find_out(self, call: AdminCall) -> Identity:
        claim = parse_authorization(call.authorization)
        if claim is None:
            return self._credentials.by_certificate(call.certificate)
        now_ms = self._clock.wall_ms()
        if not NONCE.fullmatch(call.nonce):
            raise Unauthenticated("the nonce is not 16 to 64 printable characters", Outcome.WRONG, claimed=claim.user)
        self._freshness.fresh_until_ms(call.date, now_ms)
        identity = self._credentials.by_signature(
            claim, call.source, lambda secret: admin_signature(secret, call.method, call.date, call.nonce)
        )
        self._take_nonce(identity.user, call.nonce, now_ms)
        return identity

    def _take_nonce(self, user: str, nonce: str, now_ms: int) -> None:
        """A date may be a window ahead of now, and is good until a window after itself: two in all."""
        while self._seen and not abs(now_ms - next(iter(self._seen.values()))) <= 2 * self._window_ms:
            self._seen.popitem(last=False)
        if (user, nonce) in self._seen:
            raise Unauthenticated("the call was made before: its nonce is known", Outcome.REPLAYED, claimed=user)
        if len(self._seen) >= NONCES_MAX:
            raise TooManyFailures("too many calls of the admin port within security.date_window_s", claimed=user)
        self._seen[user, nonce] = now_ms
