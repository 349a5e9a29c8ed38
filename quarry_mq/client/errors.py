"""Errors that calls to a broker raise."""

from __future__ import annotations

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition


class CallRefused(Exception):
    """The broker answered with a status other than OK. `code` is the protocol's."""

    def __init__(self, status: definition.Status, what: str | None = None) -> None:
        """`what` is the topic or queue that the call was for."""
        reason = f"{definition.Code.Name(status.code)}: {status.message}"
        super().__init__(reason if what is None else f"{what}: {reason}")
        self.code = status.code


class BrokerUnreachable(Exception):
    """The broker gave no answer within the timeout, or none but "later"."""


class AdminCallRefused(Exception):
    """A member of a cluster refused a call of the admin port for good. The text names member, code and reason."""


def require_ok(status: definition.Status, what: str | None = None) -> None:
    """Raise CallRefused unless the status is OK."""
    if status.code != definition.OK:
        raise CallRefused(status, what)
