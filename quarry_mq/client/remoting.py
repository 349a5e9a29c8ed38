"""A connection of the remoting protocol, for commands and jobs that ask brokers of RocketMQ."""

from __future__ import annotations

import socket
import ssl
from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Final

from quarry_mq.protocol.remoting.frames import Command, FrameReader, Language, read_command, write_command
from quarry_mq.protocol.signature import remoting_signature

TIMEOUT_S: Final = 5.0
_READ_BYTES: Final = 1 << 20
_UNDER_WAY_MAX: Final = 256
"""Requests of `call_all` that wait for their answers at the same time."""


class RemotingFailed(Exception):
    """A broker has answered a call with an error. `code` is the protocol's."""

    def __init__(self, code: int, remark: str, what: str | None = None) -> None:
        """`what` is the topic or queue that the call was for."""
        remark = remark.partition("\n")[0].rstrip(" ,")  # then comes the address of a page
        reason = f"{remark} (code {code})" if remark else f"code {code}"
        super().__init__(reason if what is None else f"{what}: {reason}")
        self.code = code


class RemotingClient:
    """A connection to a broker of RocketMQ or to a name server, to be used on one thread.

    Calls raise OSError, RemotingFailed for an error of the broker, and FrameMalformed.
    """

    def __init__(
        self, host: str, port: int, *, user: str | None = None, secret: str = "", tls: ssl.SSLContext | None = None
    ) -> None:
        """Connect. With `user` the calls are signed as for ACL 1.0 of RocketMQ (HMAC-SHA1)."""
        self.host: Final = host
        self._user, self._secret = user, secret
        self._numbers = count(1)
        self._frames = FrameReader()
        self._answers: deque[Command] = deque()
        self._socket = socket.create_connection((host, port), TIMEOUT_S)
        if tls is not None:
            try:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
            except BaseException:
                self._socket.close()
                raise

    def close(self) -> None:
        self._socket.close()

    def call(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Make a call and return its answer."""
        number = self.begin(code, fields, body)
        answer = self.answer()
        while answer.opaque != number:
            answer = self.answer()
        return checked(answer)

    def call_all(self, code: int, requests: Iterable[Mapping[str, str]]) -> list[Command]:
        """Make many calls at the same time, and return their answers in the order of the requests, errors included."""
        found: dict[int, Command | None] = {}
        waiting = 0
        for fields in requests:
            if waiting == _UNDER_WAY_MAX:
                waiting -= self._keep_answer(found)
            found[self.begin(code, fields)] = None
            waiting += 1
        while waiting:
            waiting -= self._keep_answer(found)
        return [answer for answer in found.values() if answer is not None]

    def _keep_answer(self, found: dict[int, Command | None]) -> int:
        """Receive an answer. Return 1 if it answers one of these calls, otherwise 0."""
        answer = self.answer()
        if answer.opaque not in found:
            return 0
        found[answer.opaque] = answer
        return 1

    def begin(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> int:
        """Send a request, and return the number that its answer will have as `opaque`."""
        command = Command(code, next(self._numbers), self._signed(fields or {}, body), body, language=Language.OTHER)
        self._socket.sendall(write_command(command))
        return command.opaque

    def answer(self) -> Command:
        """Return the next answer to any of the requests, also an error; they come in any order."""
        while not self._answers:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the broker has closed the connection")
            commands = map(read_command, self._frames.feed(data))
            self._answers.extend(command for command in commands if command.is_response)
        return self._answers.popleft()

    def _signed(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        signed = dict(fields)
        if self._user is not None:
            signed["AccessKey"] = self._user
            signature = remoting_signature(self._secret, signed, body, left_out=frozenset())
            signed["Signature"] = b64encode(signature).decode()
        return signed


def checked(answer: Command, what: str | None = None) -> Command:
    """Return an answer. Raises RemotingFailed if it is an error."""
    if answer.code != 0:
        raise RemotingFailed(answer.code, answer.remark or "", what)
    return answer
