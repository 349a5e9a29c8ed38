"""Authenticate calls of the messaging port."""

from __future__ import annotations

from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.signature import AUTHORIZATION, DATE, date_signature, parse_authorization
from quarry_mq.server.front import Call
from quarry_mq.server.security.credentials import Credentials, Identity
from quarry_mq.server.security.freshness import Freshness
from quarry_mq.server.security.terms import source_of
from quarry_mq.store.lru_cache import LruCache

REMEMBERED_MAX: Final = 8192
"""Proofs kept in each of two generations. A client makes a new one each second."""


class Authenticator:
    """Authenticate a call by its signature if it has one, else by the client's certificate.

    Valid signatures are remembered, so that the calls of one second cost one HMAC: until a user changes, and no
    longer than their date is fresh.
    """

    def __init__(self, credentials: Credentials, freshness: Freshness, clock: Clock) -> None:
        self._credentials = credentials
        self._freshness = freshness
        self._clock = clock
        self._generation = credentials.generation
        self._remembered: LruCache[tuple[str, str], tuple[Identity, int | None]]
        self._remembered = LruCache(REMEMBERED_MAX)

    def identify(self, call: Call) -> Identity:
        """Return who calls. Raises Unauthenticated, TooManyFailures."""
        authorization, date = call.header(AUTHORIZATION), call.header(DATE) or ""
        if authorization is not None:
            known = self._recall((authorization, date))
            if known is not None:
                self._credentials.metrics.remembered()
                return known
        return self._credentials.timed(lambda: self._find_out(call, authorization, date))

    def _recall(self, proof: tuple[str, str]) -> Identity | None:
        if self._generation != self._credentials.generation:
            self._generation = self._credentials.generation
            self._remembered = LruCache(REMEMBERED_MAX)
        known = self._remembered.get(proof)
        if known is None:
            return None
        identity, fresh_until_ms = known
        return identity if fresh_until_ms is None or self._clock.wall_ms() <= fresh_until_ms else None

    def _find_out(self, call: Call, authorization: str | None, date: str) -> Identity:
        claim = parse_authorization(authorization)
        if claim is None or authorization is None:
            return self._credentials.by_certificate(call.peer_certificate)
        # before the signature: a wrong clock is no attack, and its owner has to see this error
        fresh_until_ms = self._freshness.fresh_until_ms(date, self._clock.wall_ms())
        identity = self._credentials.by_signature(
            claim, source_of(call.peer), lambda secret: date_signature(secret, date)
        )
        if self._remembered.is_full:
            self._remembered.rotate()
        self._remembered.put((authorization, date), (identity, fresh_until_ms))
        return identity
