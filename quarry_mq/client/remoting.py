"""A client of the remoting protocol that makes one call at a time, for commands that ask a broker of RocketMQ."""

from __future__ import annotations

import socket
from base64 import b64encode
from collections.abc import Mapping
from itertools import count
from typing import Final

from quarry_mq.protocol.remoting.frames import Command, FrameReader, Language, read_command, write_command
from quarry_mq.protocol.signature import remoting_signature

TIMEOUT_S: Final = 5.0
_READ_BYTES: Final = 1 << 20


class RemotingFailed(Exception):
    """A broker has answered a call with an error."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"{remark} (code {code})" if remark else f"code {code}")
        self.code = code


class RemotingClient:
    """A connection to a broker of RocketMQ, to be used on one thread.

    Calls raise OSError, RemotingFailed for an error of the broker, and FrameMalformed.
    """

    def __init__(self, host: str, port: int, *, user: str | None = None, secret: str = "") -> None:
        """Connect. With `user` the calls are signed as for ACL 1.0 of RocketMQ (HMAC-SHA1)."""
        self.host: Final = host
        self._user, self._secret = user, secret
        self._numbers = count(1)
        self._frames = FrameReader()
        self._socket = socket.create_connection((host, port), TIMEOUT_S)

    def close(self) -> None:
        self._socket.close()

    def call(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Make a call and return its answer."""
        command = Command(code, next(self._numbers), self._signed(fields or {}, body), body, language=Language.OTHER)
        self._socket.sendall(write_command(command))
        while True:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the broker has closed the connection")
            for frame in self._frames.feed(data):
                answer = read_command(frame)
                if answer.is_response and answer.opaque == command.opaque:
                    if answer.code != 0:
                        raise RemotingFailed(answer.code, answer.remark or "")
                    return answer

    def _signed(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        signed = dict(fields)
        if self._user is not None:
            signed["AccessKey"] = self._user
            signature = remoting_signature(self._secret, signed, body, left_out=frozenset())
            signed["Signature"] = b64encode(signature).decode()
        return signed
