"""Errors that end a query that talks to a broker."""

from __future__ import annotations

from quarry_mq.store.errors import BrokerError


class MessagesLost(BrokerError):
    """The broker no longer holds, or does not hold yet, messages that are to be read."""


class UnusableRow(BrokerError):
    """A row cannot become a message. The text names its column."""
