"""Export metrics of authentication and authorization (`server.security`)."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from quarry_mq.server.errors import Outcome
from quarry_mq.store.security.model import Decision

AUTHENTICATION_BUCKETS_S: Final = [0.000_01 * 4**step for step in range(8)]
"""Bounds from 10 µs to 160 ms: two HMACs take some microseconds, reading a certificate at first a hundred."""


class SecurityMetrics:
    """Implement `security.credentials.CredentialMetrics` and `security.authorization.AuthorizationMetrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        authenticated = Counter(
            "quarry_authentications",
            "Calls by outcome of their authentication",
            ["outcome"],
            registry=registry,
        )
        self._authenticated = {each: authenticated.labels(outcome=each.value) for each in Outcome}
        self._remembered = authenticated.labels(outcome="remembered")
        self._duration = Histogram(
            "quarry_authentication_duration_seconds",
            "Time to authenticate a call whose caller was not cached",
            buckets=AUTHENTICATION_BUCKETS_S,
            registry=registry,
        )
        decided = Counter(
            "quarry_authorizations",
            "Authorization decisions",
            ["decision", "cached"],
            registry=registry,
        )
        self._decided = {
            (each, cached): decided.labels(decision=each.value, cached=str(cached).lower())
            for each in Decision
            for cached in (False, True)
        }
        denied = Counter("quarry_calls_denied", "Denied calls", ["port"], registry=registry)
        self._denied = {port: denied.labels(port=port) for port in ("messaging", "admin")}

    def authenticated(self, outcome: Outcome, seconds: float) -> None:
        self._authenticated[outcome].inc()
        self._duration.observe(seconds)

    def remembered(self) -> None:
        self._remembered.inc()

    def decided(self, decision: Decision, *, cached: bool) -> None:
        self._decided[decision, cached].inc()

    def denied(self, port: str) -> None:
        self._denied[port].inc()
