"""An HTTP server that passes requests on to another one, and misbehaves where it is told to."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Final, Literal, NamedTuple

HOST: Final = "127.0.0.1"
REFUSAL: Final = b"<Error><Code>Trouble</Code></Error>"
PIECES: Final = 8
NOT_PASSED_ON: Final = {"connection", "transfer-encoding", "content-length", "date", "server"}


class Trouble(NamedTuple):
    """What is wrong with answers; parts of it may be combined."""

    delay_s: float = 0
    """Before anything is done. It ends early with the trouble."""
    status: int | None = None
    """The answer, and nothing is done."""
    only: str = ""
    """What method and path contain; everything else is answered as it should be."""
    body: Literal["whole", "cut", "other"] = "whole"
    """`cut`: the connection ends half way. `other`: the first byte of what is read is another one."""
    pause_s: float = 0
    """Between eighths of what is read."""


NO_TROUBLE: Final = Trouble()


class FaultyProxy:
    """`trouble` and `down` may be changed at any time. A request has the trouble that there was when it came."""

    def __init__(self, upstream_port: int) -> None:
        """`behind` is the port of the server that answers."""
        self._upstream_port = upstream_port
        self._server: _Server | None = None
        self._thread: Thread | None = None
        self._reserved = _bound(0)
        self.port: int = self._reserved.getsockname()[1]
        self.requests: list[str] = []
        """Method and path of each that came."""
        self._trouble = NO_TROUBLE
        self._over = Event()
        """The trouble that there is now is."""

    @property
    def trouble(self) -> Trouble:
        return self._trouble

    @trouble.setter
    def trouble(self, trouble: Trouble) -> None:
        self._over.set()
        self._over = Event()
        self._trouble = trouble

    def up(self) -> None:
        self._over = Event()
        self._server = _Server(self._reserved, self)
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def down(self) -> None:
        """From now on connections are refused. The port stays ours."""
        assert self._server is not None
        assert self._thread is not None
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server = None
        self._reserved = _bound(self.port)

    def close(self) -> None:
        if self._server is not None:
            self.down()
        self._reserved.close()

    def begin(self, method: str, path: str) -> Trouble:
        """A request came; returns when it is to be answered."""
        trouble, over = self._trouble, self._over
        request = f"{method} {path}"
        self.requests.append(request)
        if trouble.only not in request:
            return NO_TROUBLE
        if trouble.delay_s:
            over.wait(trouble.delay_s)
        return trouble

    def pause(self, seconds: float) -> None:
        self._over.wait(seconds)

    def ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[HTTPResponse, bytes]:
        """What the server behind says."""
        connection = HTTPConnection(HOST, self._upstream_port)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()


def _bound(port: int) -> socket.socket:
    """Nobody else gets the port, and who connects is refused until somebody listens."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port))
    return bound


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    """Five by default: a search connects more often at a time, and who is not let in tries again a second later."""

    def __init__(self, bound: socket.socket, proxy: FaultyProxy) -> None:
        super().__init__(bound.getsockname(), _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.proxy = proxy
        self.server_activate()

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # that is a client that waits no longer
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Request(BaseHTTPRequestHandler):
    """HTTP/1.0: one request for each connection."""

    server: _Server

    def relay(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        proxy = self.server.proxy
        trouble = proxy.begin(self.command, self.path)
        if trouble.status is not None:
            self._begin_answer(trouble.status, {"Content-Length": str(len(REFUSAL))})
            self.wfile.write(REFUSAL)
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in NOT_PASSED_ON}
        answer, content = proxy.ask(self.command, self.path, body, headers)
        if trouble.body == "other" and self.command == "GET" and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in NOT_PASSED_ON}
        if answer.status != 204:
            headers["Content-Length"] = answer.headers.get("Content-Length", str(len(content)))
        self._begin_answer(answer.status, headers)
        if trouble.body == "cut":
            content = content[: len(content) // 2]
        self._send(content, trouble.pause_s if self.command == "GET" else 0)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = relay

    def _begin_answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, content: bytes, pause_s: float) -> None:
        if not pause_s:
            self.wfile.write(content)
            return
        size = len(content) // PIECES + 1
        for begin in range(0, len(content), size):
            self.wfile.write(content[begin : begin + size])
            self.server.proxy.pause(pause_s)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def proxy_before(port: int) -> Iterator[FaultyProxy]:
    """In front of the server at this port."""
    proxy = FaultyProxy(port)
    proxy.up()
    try:
        yield proxy
    finally:
        proxy.close()
