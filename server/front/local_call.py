"""Calls within the broker: it calls a unary handler of its own, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.server.front.contract import Call, MessageHandler


class LocalCall:
    """Implements `Call` for one answer."""

    is_secure: Final = True
    peer_certificate: Final = None

    def __init__(self, path: str, *, peer: str, headers: Mapping[str, str], remaining_s: float | None) -> None:
        self.path = path
        self.peer = peer
        self._headers = headers
        self._remaining_s = remaining_s
        self.answer = asyncio.get_running_loop().create_future()

    @property
    def closed(self) -> bool:
        return self.answer.done()

    @property
    def has_begun(self) -> bool:
        return self.closed

    def header(self, name: str) -> str | None:
        return self._headers.get(name)

    def metadata(self) -> Mapping[str, str]:
        return self._headers

    def remaining_s(self) -> float | None:
        """Return the time that was left at the beginning."""
        return self._remaining_s

    def reply(self, body: bytes) -> None:
        if not self.closed:
            self.answer.set_result(body)

    def send(self, body: bytes) -> bool:
        self.reply(body)
        return True

    def send_all(self, bodies: Sequence[bytes]) -> bool:
        may_go_on = True
        for body in bodies:
            may_go_on = self.send(body)
        return may_go_on

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        if not self.closed:
            self.answer.set_exception(RuntimeError(f"{self.path} ended with {status.name}: {message}"))

    def on_close(self, callback: Callable[[], None]) -> None:
        """Ignore the callback: if the caller does not wait any more, the answer is dropped."""

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Ignore the callback: `send` never asks to wait."""


async def call_locally(handler: MessageHandler, call: LocalCall, body: bytes) -> bytes:
    """Call the handler and return its one answer."""
    handler(call, body)
    answer: bytes = await call.answer
    return answer


def _conforms(call: LocalCall) -> Call:
    """Let the type checker prove that the call implements the whole contract."""
    return call
