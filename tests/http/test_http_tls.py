"""The HTTP port with TLS, and metrics that need a token."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.front import LiveTls
from quarry_mq.server.observability.metrics.instruments import watch_health
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.process.http import CONNECTION_S, CONNECTIONS_MAX, HttpEndpoint, TokenFile
from quarry_mq.store.errors import Invalid
from tests.certificates import Tls, make_tls
from tests.http.test_http import wait_until_all_are_served

TOKEN = "correct-horse"


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tls = self.made()
        self.live = LiveTls(replace(self.tls.files, protocol="http/1.1"))
        self.token = directory / "token"
        self.token.write_text(f"{TOKEN}\n")
        self.clock = ManualClock()
        registry, health = CollectorRegistry(), HealthState(self.clock)
        watch_health(registry, health)
        self.endpoint = HttpEndpoint(
            "127.0.0.1:0", registry, health, tls=self.live, metrics_token=TokenFile(self.token), clock=self.clock
        )
        self.endpoint.start()

    def made(self) -> Tls:
        return make_tls(self.directory)

    @property
    def port(self) -> int:
        return int(self.endpoint.address.rpartition(":")[2])

    def connection(self, tls: Tls | None = None) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cadata=(tls or self.tls).authority.decode())
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=context)

    def ask(self, path: str, authorization: str | None = None, tls: Tls | None = None) -> tuple[int, str]:
        connection = self.connection(tls)
        try:
            connection.request("GET", path, headers={} if authorization is None else {"Authorization": authorization})
            response = connection.getresponse()
            return response.status, response.read().decode().strip()
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.endpoint.stop()


def test_pages_are_served_over_tls(bench: Bench) -> None:
    assert bench.endpoint.url == f"https://127.0.0.1:{bench.port}"
    assert bench.ask("/healthz") == (200, "live")
    assert bench.ask("/readyz") == (503, "starting")


def test_plain_text_is_not_served(bench: Bench) -> None:
    with bench.connect() as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        said = b""
        while piece := plain.recv(4096):
            said += piece
        assert b"HTTP" not in said
    assert bench.ask("/healthz")[0] == 200


def test_a_new_certificate_is_shown_to_the_next_connection(bench: Bench) -> None:
    old, new = bench.tls, bench.made()
    assert bench.ask("/healthz")[0] == 200
    with bench.connect() as raw:
        context = ssl.create_default_context(cadata=old.authority.decode())
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as open_one:
            bench.live.show(bench.live.read())
            assert bench.ask("/healthz", tls=new)[0] == 200
            with pytest.raises(ssl.SSLCertVerificationError):
                bench.ask("/healthz", tls=old)
            open_one.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert open_one.recv(4096).startswith(b"HTTP/1.0 200")


def test_handshakes_that_never_end_keep_no_probe_out(bench: Bench) -> None:
    slow = [bench.connect() for _ in range(CONNECTIONS_MAX)]
    try:
        slow[1].sendall(b"\x16\x03\x01")
        for _ in range(3):
            assert bench.ask("/healthz")[0] == 200
        assert slow[0].recv(1) == b""
        bench.clock.advance(CONNECTION_S)
        assert slow[-1].recv(1) == b""
    finally:
        for each in slow:
            each.close()
    wait_until_all_are_served()


def test_metrics_need_the_token_and_probes_do_not(bench: Bench) -> None:
    assert "quarry_ready" in bench.ask("/metrics", f"Bearer {TOKEN}")[1]
    assert "quarry_ready" in bench.ask("/metrics", f"bearer  {TOKEN} ")[1]
    for wrong in (None, "", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer \xe4\xf6"):
        assert bench.ask("/metrics", wrong) == (401, "metrics require the token")
    assert bench.ask("/healthz")[0] == 200


def test_the_token_may_be_exchanged(bench: Bench) -> None:
    bench.token.write_text("staple")
    assert bench.ask("/metrics", f"Bearer {TOKEN}")[0] == 401
    assert bench.ask("/metrics", "Bearer staple")[0] == 200


@pytest.mark.parametrize("text", [None, "", "\n"])
def test_without_a_token_in_the_file_nobody_gets_the_metrics(bench: Bench, text: str | None) -> None:
    if text is None:
        bench.token.unlink()
    else:
        bench.token.write_text(text)
    with capture_logs() as logs:
        for authorization in (None, "Bearer ", f"Bearer {TOKEN}"):
            assert bench.ask("/metrics", authorization)[0] == 401
    assert {line["file"] for line in logs if line["log_level"] == "error"} == {str(bench.token)}
    with pytest.raises(Invalid, match=str(bench.token)):
        TokenFile(bench.token)
