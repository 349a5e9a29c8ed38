"""Errors of the broker's own rules, beside those of the store (`store/errors.py`)."""

from __future__ import annotations

from store.errors import BrokerError, Invalid


class InvalidReceiptHandle(Invalid):
    """The handle is no handle of this group and topic, has expired, or its delivery is over."""


class BrokerFailed(BrokerError):
    """A part of the broker has ended that must run as long as it does. Only a new process helps."""
