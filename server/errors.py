"""Errors of the broker's own rules; those of the store are in `store/errors.py`."""

from __future__ import annotations

from enum import Enum

from quarry_mq.store.errors import BrokerError, Busy, Forbidden, Invalid, Unavailable


class InvalidReceiptHandle(Invalid):
    """The handle is not one of this group and topic, has expired, or its delivery is over.

    The error's text begins with the code's name, which programs written for RocketMQ look for.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"INVALID_RECEIPT_HANDLE: {reason}")


class InvalidRecallHandle(Invalid):
    """The handle is not a recall handle of this topic, or its message is no longer scheduled."""


class InvalidTransactionId(Invalid):
    """The id names no transaction of this topic, or the transaction has ended the other way."""


class NotWaiting(BrokerError):
    """A pending record does not say where the message has to go."""


class NoIndex(BrokerError):
    """The broker's settings do not ask for the index that the call needs."""


class OverLimit(Busy):
    """A limit on what clients may use is reached. `limit` is its name in metrics and docs/limits.md."""

    def __init__(self, limit: str, reason: str) -> None:
        super().__init__(reason)
        self.limit = limit


class LiteQuotaExceeded(OverLimit):
    """A client wants more lite topics than its group allows."""

    def __init__(self, reason: str) -> None:
        super().__init__("lite_topics_per_client", reason)


class LiteTopicsFull(OverLimit):
    """The topic has as many lite topics as it may have; the existing ones go on."""


class NoSuchMessage(Invalid):
    """No message has that id, or none is at that position."""


class NoSuchSetting(Invalid):
    """No setting of that name can be changed while the broker runs."""


class NoSuchJob(Invalid):
    """No job of that id is kept, or none that the caller may see."""


class TooMuchForOneCall(Invalid):
    """The call would take too long; a job does the same work."""


class TooManyTails(Busy):
    """The number of callers that may watch new messages at once is reached."""


class BrokerFailed(BrokerError):
    """A part that must run as long as the broker has ended. Only a new process helps."""


class StartCalledOff(BrokerError):
    """The process was told to stop before it served any call."""


class NoSuchMember(Invalid):
    """The cluster has no member of that name, as far as this broker knows."""


class NotAMember(BrokerError):
    """The caller, or the member that answers, has not shown that it has the cluster's key."""


class OrderWouldBreak(Forbidden):
    """The call would break the order of messages that are not read yet."""


class MemberUnreachable(BrokerError):
    """A member of the cluster does not answer, or not as it should."""


class NoCluster(BrokerError):
    """The broker is not a member of a cluster."""


class OwnerAway(Busy):
    """The member that owns a message group does not take its messages now; another member would break their order."""


class Outcome(Enum):
    """An attempt to authenticate a caller has one of these outcomes."""

    SIGNATURE = "signature"
    CERTIFICATE = "certificate"
    ABSENT = "absent"
    WRONG = "wrong"
    STALE = "stale"
    REPLAYED = "replayed"
    LIMITED = "limited"


class Unauthenticated(BrokerError):
    """The call does not say who makes it, or does not prove it. `claimed` is the user that it names."""

    def __init__(self, message: str, outcome: Outcome, *, claimed: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
        self.claimed = claimed


class TooManyFailures(Unavailable):
    """Too many calls from the caller's address failed to prove who makes them."""

    outcome = Outcome.LIMITED

    def __init__(self, message: str, *, claimed: str = "") -> None:
        super().__init__(message)
        self.claimed = claimed


class PermissionDenied(BrokerError):
    """The user may not do this; the message names user, action and resource."""


Denied = (Unauthenticated, TooManyFailures, PermissionDenied)
"""All errors that deny a call, for `isinstance` and `except`."""
