"""A call in memory, for handlers under test: keeps what was answered, and can be cancelled and filled up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.server.front import Call

MessageT = TypeVar("MessageT", bound=Message)

CLIENT = "client-1"


class FakeCall:
    """Implements `server.front.Call`. `client_id` None leaves the header out.

    `room` is how many messages `send` takes before it asks to wait; `drain()` makes room again.
    """

    def __init__(
        self,
        path: str = "/test/Method",
        *,
        client_id: str | None = CLIENT,
        peer: str = "192.0.2.7:50123",
        remaining_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
        certificate: bytes | None = None,
        room: int = 1_000_000,
        is_secure: bool = False,
    ) -> None:
        self._path = path
        self._is_secure = is_secure
        self._peer = peer
        self._remaining_s = remaining_s
        self._metadata = dict(metadata or {})
        if client_id is not None:
            self._metadata["x-mq-client-id"] = client_id
        self._certificate = certificate
        self._room = room
        self._waiting = 0
        self._closed = False
        self._on_close: list[Callable[[], None]] = []
        self._on_drain: list[Callable[[], None]] = []
        self.sent: list[bytes] = []
        self.status: GrpcStatus | None = None
        self.message = ""

    @property
    def path(self) -> str:
        return self._path

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def has_begun(self) -> bool:
        return bool(self.sent)

    @property
    def is_secure(self) -> bool:
        return self._is_secure

    @property
    def peer_certificate(self) -> bytes | None:
        return self._certificate

    def header(self, name: str) -> str | None:
        return self._metadata.get(name)

    def metadata(self) -> Mapping[str, str]:
        return self._metadata

    def remaining_s(self) -> float | None:
        return self._remaining_s

    def reply(self, body: bytes) -> None:
        if not self._closed:
            self.sent.append(body)
            self.finish()

    def send(self, body: bytes) -> bool:
        if self._closed:
            return True
        self.sent.append(body)
        self._waiting += 1
        return self._waiting < self._room

    def send_all(self, bodies: Sequence[bytes]) -> bool:
        may_go_on = True
        for body in bodies:
            may_go_on = self.send(body)
        return may_go_on

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        if not self._closed:
            self._closed = True
            self.status, self.message = status, message

    def on_close(self, callback: Callable[[], None]) -> None:
        self._on_close.append(callback)

    def on_drain(self, callback: Callable[[], None]) -> None:
        self._on_drain.append(callback)

    # what the test does in the client's place

    def cancel(self) -> None:
        """The client goes away."""
        if not self._closed:
            self._closed = True
            self.status = GrpcStatus.CANCELLED
            for callback in self._on_close:
                callback()

    def drain(self) -> None:
        """The client reads everything."""
        self._waiting = 0
        waiting, self._on_drain = self._on_drain, []
        for callback in waiting:
            callback()

    def answers(self, kind: type[MessageT]) -> list[MessageT]:
        """Everything sent so far, parsed."""
        return [kind.FromString(body) for body in self.sent]

    def answer(self, kind: type[MessageT]) -> MessageT:
        """The one answer of a call that has ended well."""
        assert self.status is GrpcStatus.OK, f"the call ended with {self.status}: {self.message}"
        (body,) = self.sent
        return kind.FromString(body)


def is_a_call(call: FakeCall) -> Call:
    """The type checker's proof that the fake keeps the contract."""
    return call
