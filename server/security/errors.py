"""Why a call is not served."""

from __future__ import annotations

from enum import Enum

from store.errors import BrokerError, Unavailable


class Outcome(Enum):
    """How it went to find out who calls."""

    SIGNATURE = "signature"
    CERTIFICATE = "certificate"
    ABSENT = "absent"
    WRONG = "wrong"
    STALE = "stale"
    REPLAYED = "replayed"
    LIMITED = "limited"


class Unauthenticated(BrokerError):
    """The call does not say who makes it, or does not prove it. `claimed`: who it says it is of."""

    def __init__(self, message: str, outcome: Outcome, *, claimed: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
        self.claimed = claimed


class TooManyFailures(Unavailable):
    """Too many calls from there failed to prove who makes them."""

    outcome = Outcome.LIMITED

    def __init__(self, message: str, *, claimed: str = "") -> None:
        super().__init__(message)
        self.claimed = claimed


class PermissionDenied(BrokerError):
    """The user may not do this; the message names user, action and resource."""


Denied = (Unauthenticated, TooManyFailures, PermissionDenied)
"""All of them, for `isinstance` and `except`."""
