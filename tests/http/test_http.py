"""The HTTP port over real sockets."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.observability.metrics.instruments import watch_health
from quarry_mq.server.process.health import LOOP_STALL_S, HealthState
from quarry_mq.server.process.http import CONNECTION_S, CONNECTIONS_MAX, REQUEST_SIZE_MAX, HttpEndpoint


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.health = HealthState(self.clock)
        self.registry = CollectorRegistry()
        watch_health(self.registry, self.health)
        self.endpoint = HttpEndpoint("127.0.0.1:0", self.registry, self.health, clock=self.clock)
        self.endpoint.start()

    @property
    def port(self) -> int:
        return int(self.endpoint.address.rpartition(":")[2])

    def ask(self, path: str, method: str = "GET") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read().decode().strip()
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


def wait_until_all_are_served() -> None:
    """Returns when no connection has a thread left; the test's time limit is the alternative."""
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.endpoint.stop()


def test_readiness_says_how_far_recovery_is(bench: Bench) -> None:
    assert bench.ask("/readyz") == (503, "starting")
    bench.health.recovering(43)
    assert bench.ask("/readyz") == (503, "recovering, 43 %")
    bench.health.ready()
    assert bench.ask("/readyz") == (200, "ready")
    bench.health.poisoned("fdatasync: Input/output error")
    assert bench.ask("/readyz") == (503, "poisoned: fdatasync: Input/output error")


def test_liveness_tells_of_a_loop_that_hangs(bench: Bench) -> None:
    assert bench.ask("/healthz") == (200, "live")
    bench.health.tick()
    bench.clock.advance(LOOP_STALL_S)
    assert bench.ask("/healthz")[0] == 503
    bench.health.tick()
    assert bench.ask("/healthz") == (200, "live")


def test_a_primary_that_stops_serves_until_its_end(bench: Bench) -> None:
    """The operator leads clients to the pod that serves."""

    def seen() -> tuple[int, bool]:
        status, text = bench.ask("/replica")
        return status, json.loads(text)["serving"]

    assert seen() == (503, False)
    bench.health.ready()
    assert seen() == (200, True)
    bench.health.stopping()
    assert seen() == (503, True)


def test_metrics_are_those_of_the_registry(bench: Bench) -> None:
    Counter("quarry_test", "A counter", registry=bench.registry).inc(3)
    bench.health.recovering(43)
    status, text = bench.ask("/metrics")
    assert status == 200
    lines = text.splitlines()
    assert "quarry_test_total 3.0" in lines
    assert "quarry_recovery_progress_ratio 0.43" in lines
    assert "quarry_ready 0.0" in lines


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/metrics/x", 404), ("POST", "/metrics", 405), ("DELETE", "/readyz", 405)],
)
def test_other_requests_are_refused(bench: Bench, method: str, path: str, status: int) -> None:
    assert bench.ask(path, method)[0] == status


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", b"\x00\xff\x00\xff\r\n\r\n", b"GET " + b"a" * 70_000])
def test_a_probe_that_says_nothing_useful_is_closed(bench: Bench, sent: bytes) -> None:
    """rmq#8875: TCP health probes leaked connections until memory ran out."""
    with bench.connect() as probe:
        try:
            probe.sendall(sent)
            probe.shutdown(socket.SHUT_WR)
            while probe.recv(65_536):
                pass
        except TimeoutError:
            raise
        except OSError:
            pass  # closed with bytes unread, which the kernel reports as a reset
    assert bench.ask("/healthz")[0] == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n" + (b"a: " + bytes(1_000) + b"\r\n") * (REQUEST_SIZE_MAX // 1_000 + 1), 431),
        (b"GET /healthz HTTP/1.1\r\na: " + bytes(REQUEST_SIZE_MAX), 431),
        (b"GET /" + bytes(REQUEST_SIZE_MAX), 414),
    ],
)
def test_a_request_is_read_up_to_a_bound(bench: Bench, sent: bytes, status: int) -> None:
    """Sixty connections with a hundred headers of 64 KiB each took 500 MiB."""
    with bench.connect() as peer:
        peer.sendall(sent)
        assert peer.recv(12).endswith(f" {status}".encode()), "it is answered though its end has not come"


def test_a_request_that_breaks_off_is_not_served(bench: Bench) -> None:
    """Each connection that gave way caused a page of metrics, and probes waited for two seconds."""
    for sent in (b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\na: b\r\n", b"GET /metrics HTTP/1.1\r\na"):
        with bench.connect() as peer:
            peer.sendall(sent)
            peer.shutdown(socket.SHUT_WR)
            assert peer.recv(12) == b"HTTP/1.0 431"


class TwoAtOnce(Collector):
    """Sees whether two threads ask it at the same time."""

    def __init__(self) -> None:
        self._pair = threading.Barrier(2, timeout=0.3)
        self.have_met = False

    def collect(self) -> Iterator[Metric]:
        try:
            self._pair.wait()
            self.have_met = True
        except threading.BrokenBarrierError:
            self._pair.reset()
        yield from ()


def test_metrics_are_made_for_one_scrape_at_a_time(bench: Bench) -> None:
    """Sixteen at once made the answers to messaging clients late, since one thread runs at a time."""
    collector = TwoAtOnce()
    bench.registry.register(collector)
    scrapes = [threading.Thread(target=bench.ask, args=("/metrics",)) for _ in range(4)]
    for scrape in scrapes:
        scrape.start()
    for scrape in scrapes:
        scrape.join()
    assert not collector.have_met


def test_a_connection_is_closed_when_its_time_is_up(bench: Bench) -> None:
    with bench.connect() as probe:
        probe.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert bench.ask("/healthz")[0] == 200
        bench.clock.advance(CONNECTION_S)
        assert probe.recv(1) == b""


def test_the_oldest_connection_gives_way_when_all_are_taken(bench: Bench) -> None:
    """Slow clients that never end their requests once kept every probe out for ten seconds, and then again."""
    slow = [bench.connect() for _ in range(CONNECTIONS_MAX)]
    try:
        for number in range(3):
            assert bench.ask("/healthz")[0] == 200
            if number == 0:
                assert slow[0].recv(1) == b""
                slow.append(bench.connect())
        slow[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            slow[-1].recv(1)
    finally:
        for each in slow:
            each.close()
    wait_until_all_are_served()
    assert bench.ask("/healthz")[0] == 200


def test_who_connects_all_the_time_keeps_no_probe_of_others_out(bench: Bench) -> None:
    """A liveness probe that is not answered ends the broker."""
    crowd = []
    try:
        for number in range(10 * CONNECTIONS_MAX):
            crowd.append(
                socket.create_connection(("127.0.0.1", bench.port), timeout=10, source_address=("127.0.0.2", 0))
            )
            if number % 20 == 0:
                assert bench.ask("/healthz") == (200, "live")
        probe = bench.connect()
        crowd += [
            socket.create_connection(("127.0.0.1", bench.port), timeout=10, source_address=("127.0.0.2", 0))
            for _ in range(2 * CONNECTIONS_MAX)
        ]
        assert bench.ask("/healthz") == (200, "live")
        probe.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert probe.recv(100).startswith(b"HTTP/1.0 200"), (
            "the busiest address has given way, not the oldest connection"
        )
        probe.close()
    finally:
        for each in crowd:
            each.close()
    wait_until_all_are_served()
    server = bench.endpoint._server
    assert server is not None
    assert (server._served, server._open) == (0, {})


def test_many_probes_leave_nothing_after(bench: Bench) -> None:
    """rmq#8875."""
    for _ in range(200):
        bench.connect().close()
        assert bench.ask("/readyz")[0] == 503
    wait_until_all_are_served()


def test_a_taken_address_is_named(bench: Bench) -> None:
    other = HttpEndpoint(bench.endpoint.address, CollectorRegistry(), bench.health)
    with pytest.raises(OSError, match=bench.endpoint.address):
        other.start()


def test_a_stopped_port_is_free_again() -> None:
    first = Bench()
    address = first.endpoint.address
    first.endpoint.stop()
    first.endpoint.stop()
    second = HttpEndpoint(address, CollectorRegistry(), first.health)
    second.start()
    assert second.address == address
    second.stop()


def test_ipv6_addresses_work() -> None:
    endpoint = HttpEndpoint("[::1]:0", CollectorRegistry(), HealthState())
    try:
        endpoint.start()
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = int(endpoint.address.rpartition(":")[2])
    assert endpoint.address == f"[::1]:{port}"
    connection = http.client.HTTPConnection("::1", port, timeout=10)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
    endpoint.stop()
