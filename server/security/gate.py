"""Let calls into the messaging port: authenticate and authorize them, and log those that are denied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

from quarry_mq.server.errors import PermissionDenied, TooManyFailures, Unauthenticated
from quarry_mq.server.security.audit import CLAIMED, Audit, Subject
from quarry_mq.server.security.authorization import Authorizer, Need
from quarry_mq.server.security.credentials import Identity, Users, source_of
from quarry_mq.server.security.metrics import SecurityMetrics

PORT: Final = "messaging"


class AnyCall(Protocol):
    """A call of any protocol: what it asks for, and `ip:port` of the client."""

    @property
    def path(self) -> str: ...

    @property
    def peer(self) -> str: ...


CallT = TypeVar("CallT", bound=AnyCall)
_CallT_contra = TypeVar("_CallT_contra", bound=AnyCall, contravariant=True)


class Authenticates(Protocol[_CallT_contra]):
    """Finds out who makes a call of one protocol."""

    def identify(self, call: _CallT_contra) -> Identity:
        """Return who calls. Raises Unauthenticated, TooManyFailures."""


class Gate(Generic[CallT]):
    """Authenticate and authorize calls. With `authorizer` None users may do everything, but only as own clients."""

    def __init__(
        self,
        authenticator: Authenticates[CallT],
        authorizer: Authorizer | None,
        users: Users,
        *,
        audit: Audit,
        metrics: SecurityMetrics,
    ) -> None:
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._users = users
        self._audit = audit
        self._metrics = metrics

    @property
    def generation(self) -> tuple[int, int]:
        """Return a value that differs when a user may have lost a right."""
        return (self._users.generation, 0) if self._authorizer is None else self._authorizer.generation

    def identify(self, call: CallT) -> Identity:
        """Return who calls. Raises Unauthenticated, TooManyFailures."""
        try:
            return self._authenticator.identify(call)
        except (Unauthenticated, TooManyFailures) as error:
            subject = self._subject(call)
            if error.claimed:
                subject = subject._replace(user=error.claimed, how=CLAIMED)
            self._deny(subject, error.outcome.value, str(error))
            raise

    def authorize(self, call: CallT, identity: Identity, needs: Iterable[Need]) -> None:
        """Raise PermissionDenied unless the user may do this. That it is enabled was just checked by `identify`."""
        if self._authorizer is None:
            return
        try:
            self._authorizer.require(identity, source_of(call.peer), needs)
        except PermissionDenied as error:
            self._deny(self._subject(call).of(identity), str(error), str(error))
            raise

    def check(self, identity: Identity, peer: str, needs: Iterable[Need]) -> None:
        """Check rights again as `authorize` does, for long-lived calls; the user may have been disabled or deleted."""
        user = self._users.get(identity.user)
        if user is None or not user.enabled:
            raise PermissionDenied(f"user {identity.user} is disabled or gone")
        if self._authorizer is not None:
            self._authorizer.require(identity, source_of(peer), needs)

    def require_own(self, call: CallT, identity: Identity, client_id: str, owner: str | None) -> None:
        """Raise PermissionDenied for a client that another user has registered."""
        if owner is not None and owner != identity.user:
            text = f"user {identity.user} may not call as client {client_id}: that client belongs to another user"
            self._deny(self._subject(call).of(identity), "another user's client", text)
            raise PermissionDenied(text)

    def _subject(self, call: CallT) -> Subject:
        return Subject(PORT, call.path.rpartition("/")[2], call.peer)

    def _deny(self, subject: Subject, outcome: str, text: str) -> None:
        self._metrics.denied(PORT)
        self._audit.denied(subject, outcome, text)
