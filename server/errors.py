"""Errors of the broker's own rules, beside those of the store (`store/errors.py`)."""

from __future__ import annotations

from store.errors import BrokerError, Invalid


class InvalidReceiptHandle(Invalid):
    """The handle is no handle of this group and topic, has expired, or its delivery is over."""


class InvalidRecallHandle(Invalid):
    """The handle is no recall handle of this topic, or its message waits no longer."""


class InvalidTransactionId(Invalid):
    """The id is no transaction of this topic, or the transaction ended otherwise."""


class NotHeld(BrokerError):
    """A record that was to wait does not say what for."""


class NoIndex(BrokerError):
    """The broker was not told to keep what is asked for."""


class BrokerFailed(BrokerError):
    """A part of the broker has ended that must run as long as it does. Only a new process helps."""


class StartCalledOff(BrokerError):
    """The process was told to stop before it served anybody."""
