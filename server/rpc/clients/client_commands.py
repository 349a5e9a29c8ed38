"""Sends commands to clients on their telemetry streams, and hands the answers to the callers that wait for them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.security.authorization import Need
from quarry_mq.server.wire.status import Refused

WAIT_MAX_S: Final = 5.0
WAITING_MAX: Final = 256
NONCE_BYTES: Final = 16


def random_nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)


class Pushing(Protocol):
    """The service that pushes commands on telemetry streams."""

    def push_if_allowed(self, client_id: str, needs: Sequence[Need], command: service.TelemetryCommand) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    client_id: str
    answer: asyncio.Future[service.TelemetryCommand]


class ClientCommands:
    """The commands that wait for answers. An answer counts once, from the client that was asked.

    Lives on the event loop's thread.
    """

    def __init__(self, new_nonce: Callable[[], str] = random_nonce) -> None:
        self._new_nonce = new_nonce
        self._waiting: dict[str, _Waiting] = {}

    async def ask(
        self,
        pushing: Pushing,
        client_id: str,
        needs: Sequence[Need],
        command: Callable[[str], service.TelemetryCommand],
        wait_s: float | None,
    ) -> service.TelemetryCommand:
        """Return the client's answer to a command with a nonce; it must arrive within `wait_s`, at most `WAIT_MAX_S`.

        Raises Refused: TOO_MANY_REQUESTS, NOT_FOUND without a stream to a client that may know of it, PROXY_TIMEOUT.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise Refused(definition.TOO_MANY_REQUESTS, f"{WAITING_MAX} commands wait for clients already")
        nonce = self._new_nonce()
        waiting = _Waiting(client_id, asyncio.get_running_loop().create_future())
        self._waiting[nonce] = waiting
        patience_s = WAIT_MAX_S if wait_s is None else min(wait_s, WAIT_MAX_S)
        try:
            if not pushing.push_if_allowed(client_id, needs, command(nonce)):
                raise Refused(definition.NOT_FOUND, "client_id: the client has no telemetry stream, or may not be told")
            return await asyncio.wait_for(waiting.answer, patience_s)
        except TimeoutError:
            raise Refused(definition.PROXY_TIMEOUT, f"the client has not answered within {patience_s:g} s") from None
        finally:
            del self._waiting[nonce]

    def answered(self, client_id: str, command: service.TelemetryCommand) -> None:
        """Hand a client's answer to the caller that waits for it; an answer that no caller waits for is dropped."""
        kind = command.WhichOneof("command")
        nonce = "" if kind is None else getattr(command, kind).nonce
        waiting = self._waiting.get(nonce)
        if waiting is not None and waiting.client_id == client_id and not waiting.answer.done():
            waiting.answer.set_result(command)
