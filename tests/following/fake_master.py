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
HELLO = struct.Struct(">ihhq")
STATE_REPORT = struct.Struct(">iq")
CONFIG_BODIES = {
    21: b'{"topicConfigTable":{"orders":{},"rooms":{}}}',
    201: b"{}",
    43: b'{"offsetTable":{}}',
    45: b"{}",
    60: bytes(56),
}


def answer_of(end: int) -> bytes:
    """Return the answer of a master in controller mode to a slave's hello, with two epochs."""
    return struct.pack(">iiqi", 1, 24, end, 2) + struct.pack(">iqiq", 1, 0, 2, 500)


def pushed(offset: int, data: bytes, *, is_controlled: bool) -> bytes:
    if is_controlled:
        return struct.pack(">iiqiqq", 2, len(data), offset, 2, 500, 0) + data
    return PUSH.pack(offset, len(data)) + data


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
        self.is_silent_once = False
        """True: the next HA connection stays open and sends nothing."""
        self.never_takes_again = False
        """True: the connection ends when the broker is told to take messages again."""
        self.minimum = minimum
        self.asked: list[int] = []
        """The codes of all requests."""
        self.pushed_end = end
        """Return up to where slaves are sent the log now."""
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
        self.asked.append(code)
        if code == 25:
            changed = dict(line.split("=", 1) for line in body.decode().splitlines())
            if self.never_takes_again and "0" in changed.values():
                raise ConnectionResetError
            self._settings |= changed
            return b""
        if code == 26:
            return "".join(f"{name}={value}\n" for name, value in self._settings.items()).encode()
        if code == 28:
            table = {"commitLogMinOffset": str(self.minimum), "commitLogMaxOffset": str(self._end())}
            return json.dumps({"table": table}).encode()
        return self._bodies[code]

    def _serve_ha(self, connection: socket.socket) -> None:
        if self.is_silent_once:
            self.is_silent_once = False
            while connection.recv(1 << 10):
                pass
            return
        is_controlled = self._settings.get("enableControllerMode") == "true"
        if is_controlled:
            assert HELLO.unpack(connection.recv(HELLO.size)) == (1, 0, 1, -1)
            connection.sendall(answer_of(self._end()))
        connection.settimeout(0.02)
        size_of_report = STATE_REPORT.size if is_controlled else REPORT.size
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
            while len(kept) >= size_of_report:
                (reported,) = REPORT.unpack_from(kept, size_of_report - REPORT.size)
                kept = kept[size_of_report:]
                self.reports.append(reported)
                at = reported if at is None else at
            if at is None:
                continue
            size = max(0, min(BATCH, self.pushed_end() - at))
            push = pushed(at, self._read(at, at + size) if size else b"", is_controlled=is_controlled)
            if left is not None and size >= left:
                connection.sendall(push[:left])
                return
            left = None if left is None else left - size
            connection.sendall(push)
            at += size
