"""Errors that end a query that talks to a broker."""

from __future__ import annotations

from quarry_mq.store.errors import BrokerError


class CallRefused(BrokerError):
    """The broker answered with a status other than OK. `code` is the protocol's."""

    def __init__(self, what: str, code: int, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.code = code


class BrokerUnreachable(BrokerError):
    """The broker gave no answer within the timeout, or none but "later"."""


class MessagesLost(BrokerError):
    """The broker no longer holds, or does not hold yet, messages that are to be read."""


class UnusableRow(BrokerError):
    """A row cannot become a message. The text names its column."""
