"""Peers that do not speak gRPC, or stop speaking it in the middle."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.process.http import CONNECTIONS_MAX
from tests.e2e.broker import Broker, until
from tests.hostile.absurd import GOOD_NAME
from tests.hostile.caller import Caller, assert_unharmed
from tests.hostile.http2 import (
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Connection,
    call_headers,
    frame,
    grpc_message,
    header_block,
)
from tests.hostile.test_requests import good_request

ROUTE: Final = good_request("QueryRoute").SerializeToString()
CLIENT_HELLO: Final = bytes.fromhex("16030100f0010000ec0303") + random.Random(1).randbytes(229)
GREETING: Final = PREFACE + frame(SETTINGS, 0, 0)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"POST /apache.rocketmq.v2.MessagingService/SendMessage HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
        CLIENT_HELLO,
        random.Random(2).randbytes(5_000),
        bytes(100_000),
        PREFACE[:10],
        PREFACE + random.Random(3).randbytes(5_000),
        GREETING + b"\xff\xff\xff\0\0\0\0\0\1",
        GREETING + frame(DATA, 0, 1, b"of no call"),
        GREETING + frame(CONTINUATION, END_HEADERS, 1, b"of no block"),
        GREETING + frame(HEADERS, END_HEADERS, 1, b"\xff" * 100),
        GREETING + frame(HEADERS, END_HEADERS, 2, header_block(call_headers("QueryRoute"))),
        GREETING + frame(SETTINGS, 0, 0, b"odd"),
        GREETING + frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 3,
        GREETING + frame(PING, 0, 0, b"12345678") * 5_000,
        GREETING + frame(SETTINGS, 0, 0) * 5_000,
        GREETING + frame(RST_STREAM, 0, 77, CANCEL) * 100,
        GREETING + frame(250, 255, 2**31 - 1, b"?") * 100,
    ],
    ids=lambda said: said[-12:].hex() or "nothing",
)
def test_whatever_is_said_on_the_messaging_port_the_others_are_served(broker: Broker, said: bytes) -> None:
    host, _, port = broker.endpoint.rpartition(":")
    _say(host, int(port), said)
    with Connection(broker.endpoint) as other:
        other.open_call(1, call_headers("QueryRoute"))
        other.data(1, grpc_message(ROUTE))
        assert other.ending(1) == "grpc-status 0"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: (call_headers("QueryRoute", grpc_timeout=b"-5S"), grpc_message(ROUTE)), "grpc-status 13"),
        (lambda: (call_headers("QueryRoute", grpc_timeout=b"99999999H"), grpc_message(ROUTE)), "grpc-status 0"),
        (lambda: (call_headers("QueryRoute", grpc_encoding=b"lzma"), grpc_message(ROUTE, flag=1)), "grpc-status 12"),
        (lambda: (call_headers("QueryRoute", grpc_encoding=b"gzip"), grpc_message(ROUTE, flag=1)), "grpc-status 13"),
        (lambda: (call_headers("QueryRoute"), grpc_message(ROUTE, flag=1)), "grpc-status 13"),
        (lambda: (call_headers("QueryRoute"), grpc_message(ROUTE, length=2**32 - 1)), "grpc-status 8"),
        (lambda: (call_headers("QueryRoute"), grpc_message(ROUTE) * 2), "grpc-status 13"),
        (lambda: (call_headers("QueryRoute", method=b"GET"), grpc_message(ROUTE)), "http-status 405"),
        (lambda: (call_headers("QueryRoute", content_type=b"text/plain"), grpc_message(ROUTE)), "http-status 415"),
        (lambda: (call_headers("QueryRoute", te=None), grpc_message(ROUTE)), "grpc-status 0"),
        (lambda: (call_headers("Nothing"), grpc_message(ROUTE)), "grpc-status 12"),
        (lambda: (call_headers("QueryRoute", path=b"nonsense"), grpc_message(ROUTE)), "grpc-status 12"),
        (lambda: (call_headers("QueryRoute", path=b"/" + b"a" * 12_000), grpc_message(ROUTE)), "grpc-status 12"),
        (lambda: (call_headers("QueryRoute", path=b"/" + b"a" * 30_000), grpc_message(ROUTE)), "grpc-status 8"),
        (lambda: (call_headers("QueryRoute", x_mq_client_id=b"\xff\xfe\x80"), grpc_message(ROUTE)), "grpc-status 0"),
        (lambda: (call_headers("QueryRoute", *[(b"x", b"y")] * 300), grpc_message(ROUTE)), "grpc-status 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_calls_that_break_a_rule_of_grpc_end_with_a_status(
    broker: Broker, make: Callable[[], tuple[list[tuple[bytes, bytes]], bytes]], expected: str
) -> None:
    headers, data = make()
    with Connection(broker.endpoint) as peer:
        peer.open_call(1, headers)
        peer.data(1, data)
        assert peer.ending(1) == expected


def test_a_client_that_resets_its_calls_at_once_costs_nothing(broker: Broker) -> None:
    """CVE-2023-44487: calls that are open for no time at all count against no limit of open calls.

    While the loop was behind, the C core ended the calls of others at random.
    """
    request = grpc_message(_waiting_receive())
    for _ in range(2):
        with Connection(broker.endpoint) as peer:
            for stream in range(1, 10_001, 2):
                peer.send(
                    frame(HEADERS, END_HEADERS, stream, header_block(call_headers("ReceiveMessage")))
                    + frame(DATA, END_STREAM, stream, request)
                    + frame(RST_STREAM, 0, stream, CANCEL)
                )
        for _ in range(20):
            with Caller(broker.endpoint) as other:
                assert other.code("QueryRoute", ROUTE) == "OK"
    assert_unharmed(broker)
    until(lambda: broker.stat("quarry_waiting_polls") == 0, "no receive waits")


def test_a_send_whose_connection_is_cut_in_the_middle_stores_nothing(broker: Broker) -> None:
    sent = _large_send("cut-in-the-middle")
    for _ in range(20):
        peer = Connection(broker.endpoint)
        peer.open_call(1, call_headers("SendMessage"))
        peer.data(1, grpc_message(sent)[:60_000], end=False)
        peer.cut()
    assert_unharmed(broker)
    status = broker.administer("topic", "list", "--json")
    assert "cut-in-the-middle" not in status


def test_half_a_call_keeps_nobody_from_being_served(broker: Broker) -> None:
    """Calls whose client ends its side early, or never goes on."""
    with ExitStack() as peers:
        for number in range(30):
            peer = peers.enter_context(Connection(broker.endpoint))
            if number % 3 == 0:
                peer.open_call(1, call_headers("QueryRoute"), end=True)  # no message at all
            elif number % 3 == 1:
                peer.open_call(1, call_headers("SendMessage"))
                peer.data(1, grpc_message(_large_send("never-sent"))[:1_000], end=False)
            else:
                peer.send(frame(HEADERS, 0, 1, header_block(call_headers("QueryRoute"))[:20]))
        assert_unharmed(broker)


def test_telemetry_that_is_half_closed_or_cut_is_forgotten(broker: Broker) -> None:
    settings = grpc_message(good_request("Telemetry").SerializeToString())
    for cut in (False, True) * 10:
        with Connection(broker.endpoint) as peer:
            peer.open_call(1, call_headers("Telemetry"))
            peer.data(1, settings, end=not cut)
            if cut:
                peer.cut()
            else:
                assert peer.ending(1) == "grpc-status 0"
    assert_unharmed(broker)


def test_clients_that_never_end_their_http_requests_keep_no_probe_out(broker: Broker) -> None:
    """Slow loris, twice as many as the port has connections."""
    host, _, port = broker.http.rpartition(":")
    with ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            for _ in range(2 * CONNECTIONS_MAX)
        ]
        for header in range(3):
            for each in slow:
                try:
                    each.sendall(b"GET /metrics HTTP/1.1\r\n" if header == 0 else b"X-Slow: 1\r\n")
                except ConnectionError:
                    continue  # it had to give way
            assert broker.get("/readyz") == (200, "ready\n")
        assert_unharmed(broker)


@pytest.mark.parametrize(
    "said", [b"\0" * 1_000, b"GET " + b"/" * 100_000, b"POST /metrics HTTP/1.1\r\n\r\n", CLIENT_HELLO]
)
def test_whatever_is_said_on_the_http_port_probes_are_answered(broker: Broker, said: bytes) -> None:
    host, _, port = broker.http.rpartition(":")
    _say(host, int(port), said)
    assert broker.get("/readyz") == (200, "ready\n")


def test_memory_does_not_grow_with_rounds_of_all_this(broker: Broker) -> None:
    """The bound: 24 MiB over ten rounds, each of 400 connections and 700 calls that end badly."""
    for _ in range(4):
        _bad_round(broker)
    before = _settled_kib(broker)
    for _ in range(10):
        _bad_round(broker)
    grown = _settled_kib(broker) - before
    print(f"resident before {before} KiB, grown by {grown} KiB")
    assert grown < 24 * 1024


def _settled_kib(broker: Broker) -> int:
    """The broker's memory once it has seen all connections end."""
    until(lambda: broker.open_descriptors() < 300, "fewer than 300 open descriptors")
    until(lambda: broker.stat("quarry_waiting_polls") == 0, "no receive waits")
    return broker.resident_kib()


def _say(host: str, port: int, said: bytes) -> None:
    """Say it all, and wait until the server has ended the connection."""
    with socket.create_connection((host, port), timeout=10) as peer:
        try:
            peer.sendall(said)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65_536):
                pass
        except TimeoutError:
            raise
        except OSError:
            return  # closed while we spoke: an answer as well


def _bad_round(broker: Broker) -> None:
    request, route = grpc_message(_waiting_receive()), grpc_message(ROUTE)
    sent = grpc_message(_large_send("never-whole"))[:50_000]
    host, _, port = broker.endpoint.rpartition(":")
    for number in range(300):
        with socket.create_connection((host, int(port)), timeout=10) as peer:
            peer.sendall((CLIENT_HELLO, b"GET / HTTP/1.1\r\n\r\n", PREFACE + b"?" * 100)[number % 3])
    for number in range(100):
        cut = Connection(broker.endpoint)
        for stream in (1, 3, 5):
            cut.open_call(stream, call_headers("ReceiveMessage"))
            cut.data(stream, request)
        cut.open_call(7, call_headers("SendMessage"))
        if number % 10 == 0:
            cut.data(7, sent, end=False)
        cut.open_call(9, call_headers("Nothing", x_mq_client_id=b"client-%d" % number), end=True)
        cut.open_call(11, call_headers("Heartbeat", x_mq_client_id=b"client-%d" % number))
        cut.data(11, route)
        cut.cut()


def _waiting_receive() -> bytes:
    request = good_request("ReceiveMessage")
    request.message_queue.topic.name = GOOD_NAME
    request.long_polling_timeout.seconds = 20
    body: bytes = request.SerializeToString()
    return body


def _large_send(topic: str) -> bytes:
    request = service.SendMessageRequest()
    message = request.messages.add(body=bytes(4 << 20))
    message.topic.name = topic
    message.system_properties.message_id = "large"
    return request.SerializeToString()
