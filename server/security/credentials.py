"""Check callers' proofs of identity against the users."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, Protocol

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.signature import Claim, is_same
from quarry_mq.server.errors import Outcome, TooManyFailures, Unauthenticated
from quarry_mq.server.security.failures import FailureLimit
from quarry_mq.server.security.terms import Source, Users
from quarry_mq.store.security.model import SECRETS_MAX
from quarry_mq.store.security.subjects import subject_of

_NOBODYS_SECRET: Final = "x" * 40
"""Tried when a user has fewer secrets or none, so that the time does not reveal which users exist."""


class How(Enum):
    """The proofs by which a caller can be authenticated."""

    SIGNATURE = "signature"
    CERTIFICATE = "certificate"


class Identity(NamedTuple):
    """The user that calls, and the proof of it."""

    user: str
    how: How


class CredentialMetrics(Protocol):
    def authenticated(self, outcome: Outcome, seconds: float) -> None:
        """Count an attempt; `seconds` is how long the check took."""

    def remembered(self) -> None:
        """Count a call with a proof that was found valid before."""


class Credentials:
    """Check proofs against the users.

    Neither the texts nor the time that a check takes tell an unknown user from a wrong secret.
    """

    def __init__(self, users: Users, failures: FailureLimit, *, clock: Clock, metrics: CredentialMetrics) -> None:
        self._users = users
        self._failures = failures
        self._clock = clock
        self.metrics = metrics

    @property
    def generation(self) -> int:
        return self._users.generation

    def by_signature(self, claim: Claim, source: Source, sign: Callable[[str], bytes]) -> Identity:
        """Return the user that the claim proves, by either of its live secrets. `sign` makes the proof from a secret.

        Raises Unauthenticated, and TooManyFailures for a wrong proof after too many of them.
        """
        user = self._users.get(claim.user)
        secrets = [secret.text for secret in user.secrets] if user is not None and user.enabled else []
        tried = [*secrets, *[_NOBODYS_SECRET] * (SECRETS_MAX - len(secrets))]
        matches = [is_same(claim.signature, sign(secret)) for secret in tried]
        if not any(matches[: len(secrets)]):
            # after the check: wrong proofs of another caller never stop a right one
            if not self._failures.failed(source, claim.user):
                raise TooManyFailures(
                    "too many failed authentications from this address (security.failures_per_minute)",
                    claimed=claim.user,
                )
            raise Unauthenticated("no enabled user has this name and this secret", Outcome.WRONG, claimed=claim.user)
        return Identity(claim.user, How.SIGNATURE)

    def timed(self, find_out: Callable[[], Identity]) -> Identity:
        """Return the result of `find_out`, and count its outcome and time. Raises what it raises."""
        began_s = self._clock.monotonic_s()
        try:
            identity = find_out()
        except (Unauthenticated, TooManyFailures) as error:
            self.metrics.authenticated(error.outcome, self._clock.monotonic_s() - began_s)
            raise
        self.metrics.authenticated(Outcome(identity.how.value), self._clock.monotonic_s() - began_s)
        return identity

    def by_certificate(self, certificate: bytes | None) -> Identity:
        """Return the enabled user that a client certificate (DER) stands for, for a call that is not signed.

        The front has checked who signed the certificate. Raises Unauthenticated.
        """
        subject = None if certificate is None else subject_of(certificate)
        user = None if subject is None else self._users.by_certificate(subject)
        if user is None or not user.enabled:
            raise Unauthenticated(
                "the call is not signed, and there is no client certificate of a user", Outcome.ABSENT
            )
        return Identity(user.name, How.CERTIFICATE)
