"""Proofs of who calls, held against the users."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, Protocol

from quarry_mq.server.errors import Outcome, TooManyFailures, Unauthenticated
from quarry_mq.server.security.failures import FailureLimit
from quarry_mq.server.security.signature import Claim, is_same
from quarry_mq.server.security.terms import Source, Users
from quarry_mq.store.clock import Clock
from quarry_mq.store.security.model import SECRETS_MAX
from quarry_mq.store.security.subjects import subject_of

_NOBODYS_SECRET: Final = "x" * 40
"""Tried where there is no secret to try, so that the time does not tell which users there are."""


class How(Enum):
    """What proved who calls."""

    SIGNATURE = "signature"
    CERTIFICATE = "certificate"


class Identity(NamedTuple):
    """Who calls."""

    user: str
    how: How


class CredentialMetrics(Protocol):
    def authenticated(self, outcome: Outcome, seconds: float) -> None:
        """Somebody tried; `seconds` is what it took to find out."""

    def remembered(self) -> None:
        """A call showed what was found good before."""


class Credentials:
    """The users, as proofs are held against them.

    Nothing here tells an unknown user from a wrong secret, neither by the text nor by the time it takes.
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
        """Who proved to know a secret: either of a user's live ones is fine. `sign` makes the proof from a secret.

        Raises Unauthenticated, and TooManyFailures for a wrong proof where there were too many of them.
        """
        user = self._users.get(claim.user)
        secrets = [secret.text for secret in user.secrets] if user is not None and user.enabled else []
        tried = [*secrets, *[_NOBODYS_SECRET] * (SECRETS_MAX - len(secrets))]
        matches = [is_same(claim.signature, sign(secret)) for secret in tried]
        if not any(matches[: len(secrets)]):
            # after the look: somebody else's wrong proofs never stop a right one
            if not self._failures.failed(source, claim.user):
                raise TooManyFailures(
                    "too many calls from there were not authenticated (security.failures_per_minute)",
                    claimed=claim.user,
                )
            raise Unauthenticated("no enabled user has this name and this secret", Outcome.WRONG, claimed=claim.user)
        return Identity(claim.user, How.SIGNATURE)

    def timed(self, find_out: Callable[[], Identity]) -> Identity:
        """Who `find_out` says it is, counted by how it went. Raises what it raises."""
        began_s = self._clock.monotonic_s()
        try:
            identity = find_out()
        except (Unauthenticated, TooManyFailures) as error:
            self.metrics.authenticated(error.outcome, self._clock.monotonic_s() - began_s)
            raise
        self.metrics.authenticated(Outcome(identity.how.value), self._clock.monotonic_s() - began_s)
        return identity

    def by_certificate(self, certificate: bytes | None) -> Identity:
        """The enabled user whose client certificate (DER) it is, of a call that is not signed.

        The front has checked who signed the certificate. Raises Unauthenticated.
        """
        subject = None if certificate is None else subject_of(certificate)
        user = None if subject is None else self._users.by_certificate(subject)
        if user is None or not user.enabled:
            raise Unauthenticated("the call is not signed, nor is there a certificate of a user", Outcome.ABSENT)
        return Identity(user.name, How.CERTIFICATE)
