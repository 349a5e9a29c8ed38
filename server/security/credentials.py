"""Check callers' proofs of identity against the users.

A call says what it does and where it comes from. The tables of users and rules are those of `store/security`; both
count how often they were changed.

It is limited how often a caller may fail to prove who it is and still get the reason.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple, Protocol

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.signature import Claim, is_same
from quarry_mq.server.addresses import network_of, plain_address
from quarry_mq.server.errors import Outcome, TooManyFailures, Unauthenticated
from quarry_mq.store.security.model import SECRETS_MAX, Action, Policy, ResourceKind, User
from quarry_mq.store.security.subjects import subject_of


class Users(Protocol):
    @property
    def generation(self) -> int:
        """Return a number that grows with each change."""

    def get(self, name: str) -> User | None: ...

    def by_certificate(self, subject: str) -> User | None: ...


class Policies(Protocol):
    @property
    def generation(self) -> int:
        """Return a number that grows with each change."""

    def get(self, user: str) -> Policy: ...


NAME_SHOWN_MAX: Final = 255
"""Characters of a name that errors show, as many as a valid name may have: callers may send any text."""


class Access(NamedTuple):
    """An access of a call: `action` on the resource `name`, which is no pattern and may be no valid name."""

    kind: ResourceKind
    name: str
    action: Action

    def __str__(self) -> str:
        return f"{self.action.value} on {self.kind.value} {self.name[:NAME_SHOWN_MAX]}"


Source = IPv4Address | IPv6Address | None
"""The address of the peer; None where it has none (a Unix socket)."""

ADDRESSES_REMEMBERED: Final = 4096


def source_of(peer: str) -> Source:
    """Return the address in a peer's `ip:port`, where IPv6 is in brackets."""
    return _address(peer.rpartition(":")[0])


@lru_cache(ADDRESSES_REMEMBERED)
def _address(host: str) -> Source:
    return plain_address(host.strip("[]"))


CALLERS_MAX: Final = 8192
"""Most callers of each kind that are remembered: beyond it, the one that failed least recently is dropped."""

SOURCE_FACTOR: Final = 10
"""All users from one address together may fail this many times as often as one: many may share an address."""


class _Bucket(NamedTuple):
    """A bucket allows `left` more failures at `at_s` on the monotonic clock. It fills up evenly."""

    left: float
    at_s: float


class _Buckets:
    def __init__(self, per_minute: float, clock: Clock) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def left(self, key: Hashable) -> float:
        bucket = self._buckets.get(key)
        if bucket is None:
            return self._per_minute
        grown = (self._clock.monotonic_s() - bucket.at_s) * self._per_minute / 60
        return min(self._per_minute, bucket.left + grown)

    def take(self, key: Hashable) -> None:
        self._buckets[key] = _Bucket(max(0.0, self.left(key) - 1), self._clock.monotonic_s())
        self._buckets.move_to_end(key)
        if len(self._buckets) > CALLERS_MAX:
            self._buckets.popitem(last=False)


class FailureLimit:
    """Count failures of each user from each address, and of each address alone.

    The limit decides how a wrong proof is answered, and never whether a right one is: a limit that refused right ones
    would let anybody lock out all who share an address, or a name.
    """

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._of_user = _Buckets(per_minute, clock)
        self._of_source = _Buckets(per_minute * SOURCE_FACTOR, clock)

    def failed(self, source: Source, user: str) -> bool:
        """Count a failure; return False when there were too many already."""
        network = _network(source)
        is_within = self._of_user.left((network, user)) >= 1 and self._of_source.left(network) >= 1
        if is_within:
            self._of_user.take((network, user))
            self._of_source.take(network)
        return is_within


def _network(source: Source) -> Hashable:
    """Return the network of an address, since the owner of one IPv6 address has all of its network."""
    return None if source is None else network_of(source)


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
