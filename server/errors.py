"""Errors of the broker's own rules, beside those of the store (`store/errors.py`)."""

from __future__ import annotations

from enum import Enum

from quarry_mq.store.errors import BrokerError, Busy, Forbidden, Invalid, Unavailable


class InvalidReceiptHandle(Invalid):
    """The handle is no handle of this group and topic, has expired, or its delivery is over.

    Its text begins with the code's name, which programs written for RocketMQ look for.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"INVALID_RECEIPT_HANDLE: {reason}")


class InvalidRecallHandle(Invalid):
    """The handle is no recall handle of this topic, or its message waits no longer."""


class InvalidTransactionId(Invalid):
    """The id is no transaction of this topic, or the transaction ended otherwise."""


class NotHeld(BrokerError):
    """A record that was to wait does not say what for."""


class NoIndex(BrokerError):
    """The broker was not told to keep what is asked for."""


class OverLimit(Busy):
    """A limit on what clients may have the broker keep or do. `limit` is its name in metrics and docs/limits.md."""

    def __init__(self, limit: str, reason: str) -> None:
        super().__init__(reason)
        self.limit = limit


class LiteQuotaExceeded(OverLimit):
    """A client wants more lite topics than its group allows."""

    def __init__(self, reason: str) -> None:
        super().__init__("lite_topics_per_client", reason)


class LiteTopicsFull(OverLimit):
    """The topic has as many lite topics as it may have; those that are there go on."""


class NoSuchMessage(Invalid):
    """There is no message with that id, or none at that place."""


class NoSuchSetting(Invalid):
    """No setting of that name can be changed while the broker runs."""


class NoSuchJob(Invalid):
    """No job of that id is kept, or none that the caller may see."""


class TooMuchForOneCall(Invalid):
    """The call would take too long: there is a job that does it."""


class TooManyTails(Busy):
    """As many callers look on at new messages as may do so at once."""


class BrokerFailed(BrokerError):
    """A part of the broker has ended that must run as long as it does. Only a new process helps."""


class StartCalledOff(BrokerError):
    """The process was told to stop before it served anybody."""


class NoSuchMember(Invalid):
    """The cluster has no member of that name, as far as it is known here."""


class NotAMember(BrokerError):
    """Who calls, or answers, has not shown that it has the cluster's key."""


class OrderWouldBreak(Forbidden):
    """Messages that are not read yet would lose their order."""


class MemberUnreachable(BrokerError):
    """A member of the cluster does not answer, or not as it should."""


class NoCluster(BrokerError):
    """The broker is the only one."""


class OwnerAway(Busy):
    """The member that has a message group's messages does not take more of them now: sending elsewhere breaks order."""


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
