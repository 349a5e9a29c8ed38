"""Requests of a browser and of an enemy, written on sockets as they are."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from quarry_mq.cli.demo import free_ports
from tests.e2e.broker import Broker, environment_of

JSON: Final = {"Content-Type": "application/json"}
QUICK: Final = {"store.segment_size": 16 * 1024 * 1024}
TIMEOUT_S: Final = 20.0


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def fields(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of a refusal, which has a message, too."""
        assert self.fields.keys() == {"code", "message"}
        assert self.fields["message"]
        return str(self.fields["code"])


class Browser:
    """One user of the console at `host:port`, with cookies."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None, *, source: str = "127.0.0.1") -> None:
        self.address = address
        self._source = (source, 0)
        self.cookies: dict[str, str] = {}
        self._tls = tls

    def connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self.address, timeout=TIMEOUT_S, source_address=self._source)
        return http.client.HTTPSConnection(
            self.address, timeout=TIMEOUT_S, context=self._tls, source_address=self._source
        )

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = self.connect()
        try:
            with self.asking(connection, method, path, body, headers) as answer:
                return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    @contextmanager
    def asking(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer before its body was read."""
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection.request(
            method, path, body=body, headers={**({"Cookie": cookies} if cookies else {}), **(headers or {})}
        )
        answer = connection.getresponse()
        for set_cookie in answer.headers.get_all("Set-Cookie") or ():
            name, _, value = set_cookie.partition(";")[0].partition("=")
            self.cookies[name] = value
        yield answer

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, fields: object, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("POST", path, json.dumps(fields).encode(), {**JSON, **(headers or {})})

    def call(self, method: str, **fields: object) -> Answer:
        return self.post(f"/api/call/{method}", fields)

    def stream(self, method: str, **fields: object) -> list[Any]:
        """All lines of a stream that ends."""
        answer = self.post(f"/api/stream/{method}", fields)
        assert answer.status == 200, answer.body
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.body.splitlines()]

    def log_in(self, user: str, secret: str) -> Answer:
        return self.post("/api/session", {"user": user, "secret": secret})

    def log_out(self) -> Answer:
        return self.ask("DELETE", "/api/session", headers={"X-Quarry-Console": "1"})


def raw(address: str, data: bytes, *, timeout_s: float = TIMEOUT_S) -> bytes:
    """What comes back until the other side closes the connection."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        connection.sendall(data)
        received = b""
        while part := connection.recv(65536):
            received += part
        return received


def broker_with_console(directory: Path, settings: Mapping[str, object], **variables: str) -> tuple[Broker, str]:
    """Not started; and the address of its console."""
    (port,) = free_ports(1)
    console = f"127.0.0.1:{port}"
    given = {**QUICK, "network.console": console, **settings}
    return Broker(directory / "store", logs=directory / "logs", environment=environment_of(given) | variables), console
