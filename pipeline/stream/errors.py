"""What ends a query that talks to a broker."""

from __future__ import annotations

from quarry_mq.store.errors import BrokerError


class CallRefused(BrokerError):
    """The broker answered with a status other than OK. `code` is the protocol's."""

    def __init__(self, what: str, code: int, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.code = code


class BrokerUnreachable(BrokerError):
    """No answer, or none but "later", for as long as was waited."""


class MessagesLost(BrokerError):
    """The broker does not hold messages any more, or not yet, that are to be read."""


class UnusableRow(BrokerError):
    """A row that no message can be made of; the text names its column."""
