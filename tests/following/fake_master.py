"""A RocketMQ master as a follower sees it, in threads of the test: remoting for what it asks, HA for the log."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Thread
from typing import Self

from quarry_mq.protocol.remoting.frames import FrameReader, read_command, write_command

BATCH = 32_768
REPORT = struct.Struct(">q")
PUSH = struct.Struct(">qi")
CONFIG_BODIES = {
    21: b'{"topicConfigTable":{"orders":{},"rooms":{}}}',
    201: b"{}",
    43: b'{"offsetTable":{}}',
    45: b"{}",
    60: bytes(56),
}


class FakeMaster:
    """Serves `read(start, end)` of a log that has [minimum, end()) now. `reports` are what slaves have reported."""

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        end: Callable[[], int],
        *,
        minimum: int = 0,
        segment_size: int = 64 * 1024,
        settings: Mapping[str, str] | None = None,
        bodies: Mapping[int, bytes] | None = None,
    ) -> None:
        self.reports: list[int] = []
        self.drops_after: int | None = None
        """Bytes after which the next HA connection is cut."""
        self.minimum = minimum
        self._read, self._end = read, end
        self._bodies = {**CONFIG_BODIES, **(bodies or {})}
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        remoting, ha = self._listeners
        self.port: int = remoting.getsockname()[1]
        self._settings = {
            "brokerRole": "ASYNC_MASTER",
            "mappedFileSizeCommitLog": str(segment_size),
            "haListenPort": str(ha.getsockname()[1]),
            "storeType": "default",
            **(settings or {}),
        }
        for listener, serve in ((remoting, self._serve_remoting), (ha, self._serve_ha)):
            Thread(target=self._accept, args=(listener, serve), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)  # it ends the thread that accepts
            listener.close()

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                Thread(target=self._guarded, args=(connection, serve), daemon=True).start()

    def _guarded(self, connection: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        with connection, suppress(OSError):
            serve(connection)

    def _serve_remoting(self, connection: socket.socket) -> None:
        frames = FrameReader()
        while data := connection.recv(1 << 16):
            for frame in frames.feed(data):
                command = read_command(frame)
                connection.sendall(
                    write_command(command.response(0, {}, self._answer(command.code, command.body), remark=None))
                )

    @property
    def refuses_until_ms(self) -> int:
        """The time before which the broker refuses messages."""
        return int(self._settings.get("startAcceptSendRequestTimeStamp", "0"))

    def _answer(self, code: int, body: bytes) -> bytes:
        if code == 25:
            self._settings |= dict(line.split("=", 1) for line in body.decode().splitlines())
            return b""
        if code == 26:
            return "".join(f"{name}={value}\n" for name, value in self._settings.items()).encode()
        if code == 28:
            table = {"commitLogMinOffset": str(self.minimum), "commitLogMaxOffset": str(self._end())}
            return json.dumps({"table": table}).encode()
        return self._bodies[code]

    def _serve_ha(self, connection: socket.socket) -> None:
        connection.settimeout(0.02)
        at: int | None = None
        left = self.drops_after
        self.drops_after = None
        kept = b""
        while True:
            with suppress(TimeoutError):
                data = connection.recv(1 << 10)
                if not data:
                    return
                kept += data
            while len(kept) >= REPORT.size:
                (reported,) = REPORT.unpack_from(kept)
                kept = kept[REPORT.size :]
                self.reports.append(reported)
                at = reported if at is None else at
            if at is None:
                continue
            size = min(BATCH, self._end() - at)
            if size <= 0:
                connection.sendall(PUSH.pack(at, 0))
                continue
            if left is not None and size >= left:
                connection.sendall((PUSH.pack(at, size) + self._read(at, at + size))[:left])
                return
            left = None if left is None else left - size
            connection.sendall(PUSH.pack(at, size) + self._read(at, at + size))
            at += size
