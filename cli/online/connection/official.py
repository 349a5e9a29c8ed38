"""Connects a command to RocketMQ's own admin service on a broker's admin port."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from quarry_mq.cli.online.connection.administration import asked_names, service_port
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.text import say
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2.admin_pb2_grpc import AdminStub


class OfficialAdmin:
    """The service at one address. An answer with an error status ends the command with one line."""

    def __init__(self, stub: Any, address: str) -> None:
        self._stub = stub
        self._address = address

    def call(self, method: str, request: Any, *, timeout_s: float, accepted: Collection[int] = (definition.OK,)) -> Any:
        """Return the answer, whose status is one of `accepted`.

        Remarks in an OK status are printed on standard error.
        """
        answer = getattr(self._stub, method)(request, timeout=timeout_s)
        status = answer.status
        if status.code not in accepted:
            end(Exit.COULD_NOT_RUN, f"{self._address}: {status.message}", asked_names(self._address))
        if status.code == definition.OK and status.message != "OK":
            say(f"{self._address}: {status.message}", err=True)
        return answer


@contextmanager
def official_port(address: str) -> Iterator[OfficialAdmin]:
    """Give the service. A refusal or a lost connection ends the command with one line."""
    with service_port(address, AdminStub) as stub:
        yield OfficialAdmin(stub, address)
