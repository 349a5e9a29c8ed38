"""The service that every client stack calls: raw bytes in, raw bytes out. `README.md` describes its methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.server.front import Call, Method, Methods

PREFIX: Final = "/interop.Service/"
STREAM_COUNT: Final = 100
TOGETHER_COUNT: Final = 100
REFUSAL: Final = "größer als 100 %: 大"
"""Needs percent-encoding for its own sake, and has a percent sign."""

COMPRESSION_MIN: Final = 4
"""A compressed request must have come in this many times fewer bytes than it has."""

ENDED: Final = b"ended"


class InteropService:
    """One instance serves one client program.

    `bytes_received` tells how many bytes the front has read from its sockets; None when it does not count them.
    """

    def __init__(self, bytes_received: Callable[[], int | None]) -> None:
        self._bytes_received = bytes_received
        self._bytes_before = 0
        self._ended: set[bytes] = set()
        self._asking: dict[bytes, Call] = {}
        self._together: list[tuple[Call, bytes]] = []

    def methods(self) -> Methods:
        unary = {
            "Echo": self.echo,
            "Compressed": self.compressed,
            "Peer": self.peer,
            "Metadata": self.metadata,
            "Refuse": self.refuse,
            "Silent": self.keep,
            "Ended": self.ended,
            "Together": self.together,
        }
        methods = {f"{PREFIX}{name}": Method(self._noting(handler)) for name, handler in unary.items()}
        methods[f"{PREFIX}Stream"] = Method(self._noting(self.stream), streaming_out=True)
        methods[f"{PREFIX}Park"] = Method(self._noting(self.park), streaming_out=True)
        methods[f"{PREFIX}PingPong"] = Method(
            self._noting(self.ping_pong), streaming_in=True, streaming_out=True, on_half_close=self.half_closed
        )
        return methods

    def _noting(self, handler: Callable[[Call, bytes], None]) -> Callable[[Call, bytes], None]:
        """Handlers run one after the other; each leaves behind what had been read until it ran."""

        def handle(call: Call, body: bytes) -> None:
            handler(call, body)
            self._bytes_before = self._bytes_received() or 0

        return handle

    def echo(self, call: Call, body: bytes) -> None:
        call.reply(body)

    def compressed(self, call: Call, body: bytes) -> None:
        """Echo, but only what really came compressed. A front that does not count bytes is taken at its word."""
        taken = (self._bytes_received() or 0) - self._bytes_before
        if taken * COMPRESSION_MIN > len(body):
            call.finish(GrpcStatus.INVALID_ARGUMENT, f"{len(body)} bytes came in as {taken}")
        else:
            call.reply(body)

    def peer(self, call: Call, body: bytes) -> None:
        call.reply(call.peer.encode())

    def metadata(self, call: Call, body: bytes) -> None:
        """The value of the header that the body names, and whether binary headers stay out of sight."""
        headers = call.metadata()
        if any(name.endswith("-bin") for name in headers):
            call.finish(GrpcStatus.INTERNAL, f"binary headers among {sorted(headers)}")
        else:
            call.reply(headers.get(body.decode(), "").encode())

    def refuse(self, call: Call, body: bytes) -> None:
        call.finish(GrpcStatus.INVALID_ARGUMENT, REFUSAL)

    def stream(self, call: Call, body: bytes) -> None:
        for number in range(STREAM_COUNT):
            call.send(b"%d" % number)
        call.finish()

    def ping_pong(self, call: Call, body: bytes) -> None:
        if body == b"bye":
            call.finish()
        else:
            call.send(body)

    def half_closed(self, call: Call) -> None:
        call.send(b"end")
        call.finish()

    def park(self, call: Call, body: bytes) -> None:
        """Say one word, then nothing for ever."""
        self.keep(call, body)
        call.send(b"parked")

    def keep(self, call: Call, body: bytes) -> None:
        """Never answer; remember under the name in the body when the call ends."""

        def closed() -> None:
            self._ended.add(body)
            if (asking := self._asking.pop(body, None)) is not None:
                asking.reply(ENDED)

        call.on_close(closed)

    def ended(self, call: Call, body: bytes) -> None:
        """Answered as soon as the call of that name has ended before its handler ended it."""
        if body in self._ended:
            call.reply(ENDED)
        else:
            self._asking[body] = call

    def together(self, call: Call, body: bytes) -> None:
        """Echo once all are here, the last first."""
        self._together.append((call, body))
        if len(self._together) == TOGETHER_COUNT:
            waiting, self._together = self._together, []
            for each, its_body in reversed(waiting):
                each.reply(its_body)
