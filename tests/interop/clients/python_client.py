"""The C core of gRPC, by its Python binding: `python -m tests.interop.clients.python_client target [ca]`."""

from __future__ import annotations

import queue
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from tests.interop.clients.reporting import (
    LARGE_HEADER_SIZE,
    LARGE_SIZE,
    PATIENCE_S,
    PREFIX,
    REFUSAL,
    compressible,
    report,
)


class Client:
    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def unary(self, method: str, body: bytes, **options: Any) -> bytes:
        options.setdefault("timeout", PATIENCE_S)
        answer: bytes = self._channel.unary_unary(PREFIX + method)(body, **options)
        return answer

    def refused(self, method: str, body: bytes, **options: Any) -> tuple[grpc.StatusCode, str]:
        """Status and message of a call that must fail."""
        try:
            self.unary(method, body, **options)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError("the call succeeded")

    def equal(self, size: int, method: str = "Echo", **options: Any) -> str:
        body = compressible(size)
        assert self.unary(method, body, **options) == body
        return f"{size} bytes"

    def await_end(self, name: bytes) -> None:
        """Until the server has seen the call of that name end."""
        assert self.unary("Ended", name) == b"ended"

    # -- the cases

    def unary_case(self) -> str:
        return self.equal(1000)

    def empty(self) -> str:
        return self.equal(0)

    def server_stream(self) -> str:
        answers = list(self._channel.unary_stream(PREFIX + "Stream")(b"", timeout=PATIENCE_S))
        assert answers == [b"%d" % number for number in range(100)]
        return f"{len(answers)} messages"

    def bidi(self) -> str:
        pings: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

        def requests() -> Iterator[bytes]:
            while (ping := pings.get()) is not None:
                yield ping

        answers = self._channel.stream_stream(PREFIX + "PingPong")(requests(), timeout=PATIENCE_S)
        try:
            for number in range(20):
                pings.put(b"%d" % number)
                assert next(answers) == b"%d" % number
        finally:
            pings.put(None)
        assert list(answers) == [b"end"]
        return "20 pings"

    def early_end(self) -> str:
        open_side = threading.Event()

        def requests() -> Iterator[bytes]:
            yield b"0"
            yield b"bye"
            open_side.wait(PATIENCE_S)

        try:
            answers = list(self._channel.stream_stream(PREFIX + "PingPong")(requests(), timeout=PATIENCE_S))
        finally:
            open_side.set()
        assert answers == [b"0"]
        return "the server ended it"

    def cancel(self) -> str:
        name = uuid.uuid4().bytes
        call = self._channel.unary_stream(PREFIX + "Park")(name, timeout=PATIENCE_S)
        assert next(call) == b"parked"
        call.cancel()
        self.await_end(name)
        return "the server saw the end"

    def deadline(self) -> str:
        name = uuid.uuid4().bytes
        started_s = time.monotonic()
        code, _ = self.refused("Silent", name, timeout=0.3)
        took_s = time.monotonic() - started_s
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED, code
        assert 0.25 < took_s < PATIENCE_S, took_s
        self.await_end(name)
        return f"{took_s * 1000:.0f} ms"

    def large(self) -> str:
        return self.equal(LARGE_SIZE)

    def metadata(self) -> str:
        headers = (("x-interop", "value 1"), ("x-interop-bin", bytes(range(256))))
        assert self.unary("Metadata", b"x-interop", metadata=headers) == b"value 1"
        return ""

    def large_header(self) -> str:
        value = "x" * LARGE_HEADER_SIZE
        assert self.unary("Metadata", b"x-large", metadata=(("x-large", value),)) == value.encode()
        return f"{len(value)} bytes"

    def gzip(self) -> str:
        return self.equal(1_000_000, "Compressed", compression=grpc.Compression.Gzip)

    def unknown(self) -> str:
        code, message = self.refused("Unknown", b"")
        assert code is grpc.StatusCode.UNIMPLEMENTED, code
        return message

    def error(self) -> str:
        code, message = self.refused("Refuse", b"")
        assert (code, message) == (grpc.StatusCode.INVALID_ARGUMENT, REFUSAL), (code, message)
        return message

    def many(self) -> str:
        peer = self.unary("Peer", b"")
        for number in range(1000):
            assert self.unary("Echo", b"%d" % number) == b"%d" % number
        assert self.unary("Peer", b"") == peer, "not on one connection"
        return "1000 calls"

    def concurrent(self) -> str:
        method = self._channel.unary_unary(PREFIX + "Together")
        calls = [method.future(b"%d" % number, timeout=PATIENCE_S) for number in range(100)]
        assert [call.result() for call in calls] == [b"%d" % number for number in range(100)]
        return "100 calls"


def main() -> None:
    target, *files = sys.argv[1:]
    options = [("grpc.max_receive_message_length", -1)]
    if files:
        credentials = grpc.ssl_channel_credentials(Path(files[0]).read_bytes())
        channel = grpc.secure_channel(target, credentials, options)
    else:
        channel = grpc.insecure_channel(target, options)
    with channel:
        client = Client(channel)
        cases: dict[str, Callable[[], str]] = {
            "unary": client.unary_case,
            "empty": client.empty,
            "server stream": client.server_stream,
            "bidi": client.bidi,
            "early end": client.early_end,
            "cancel": client.cancel,
            "deadline": client.deadline,
            "4 MiB": client.large,
            "metadata": client.metadata,
            "large header": client.large_header,
            "gzip": client.gzip,
            "unknown": client.unknown,
            "error": client.error,
            "1000 calls": client.many,
            "100 at once": client.concurrent,
        }
        for name, case in cases.items():
            report(name, case)


if __name__ == "__main__":
    main()
