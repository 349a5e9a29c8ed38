"""Peers that open what they do not use, do not read what they asked for, and do not finish what they began."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from bench.raw_client import RawClient
from quarry_mq.cli.demo import free_ports
from quarry_mq.protocol.h2.frames import ErrorCode, Flag, FrameType, frame, reset
from tests.attack.conftest import SETTINGS, Footprint, started
from tests.attack.good_client import GoodClient
from tests.attack.wire import PREFIX, SHUT_GREETING, WIDE_GREETING, block, call
from tests.certificates import make_tls
from tests.e2e.broker import Broker, until
from tests.e2e.load.raw_client import Refused
from tests.hostile.caller import Client, assert_unharmed
from tests.hostile.test_connections import CLIENT_HELLO
from tests.hostile.test_requests import good_request

GROWTH_KIB: Final = 32 * 1024
AT_ONCE: Final = 250
"""Connections of a test that are open at a time: descriptors are few."""


def connected(endpoint: str, *said: bytes) -> socket.socket:
    host, _, port = endpoint.rpartition(":")
    peer = socket.create_connection((host, int(port)), timeout=10)
    for each in said:
        peer.sendall(each)
    return peer


def dropped(endpoint: str, count: int, said: Sequence[bytes]) -> None:
    """Open so many connections that say something each, and drop them without goodbye."""
    for first in range(0, count, AT_ONCE):
        with ExitStack() as peers:
            for number in range(first, min(first + AT_ONCE, count)):
                peer = peers.enter_context(connected(endpoint, said[number % len(said)]))
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def receive(group: str, topic: str, *, polling_s: int = 0) -> bytes:
    request = good_request("ReceiveMessage")
    request.group.name, request.message_queue.topic.name = group, topic
    request.batch_size = 32
    request.invisible_duration.seconds = 600
    request.long_polling_timeout.seconds = polling_s
    body: bytes = request.SerializeToString()
    return body


WAITING: Final = call(0, block("ReceiveMessage"), receive("droppers", "nothing", polling_s=20))


def test_a_thousand_connections_are_opened_and_dropped(broker: Broker) -> None:
    said = (b"", WIDE_GREETING[:10], WIDE_GREETING, WIDE_GREETING + WAITING, WIDE_GREETING + WAITING[:60], CLIENT_HELLO)
    dropped(broker.endpoint, 250, said)
    before = Footprint.of(broker)
    dropped(broker.endpoint, 1_000, said)
    Footprint.of(broker).assert_kept(before, growth_kib=GROWTH_KIB)
    assert_unharmed(broker)


def test_a_thousand_handshakes_end_half_way(tmp_path: Path) -> None:
    tls, port = make_tls(tmp_path), free_ports(1)[0]
    secure = {
        "network.tls_listen": f"127.0.0.1:{port}",
        "network.tls_certificate": tls.files.certificate,
        "network.tls_key": tls.files.key,
    }
    broker = started(tmp_path, {**SETTINGS, **secure})
    try:
        few = broker.open_descriptors() + 20
        said = (CLIENT_HELLO, CLIENT_HELLO[:50], CLIENT_HELLO + bytes(500), b"", WIDE_GREETING)
        dropped(f"127.0.0.1:{port}", 250, said)
        until(lambda: broker.open_descriptors() <= few, "all sockets are closed")
        before = Footprint.of(broker)
        dropped(f"127.0.0.1:{port}", 1_000, said)
        until(lambda: broker.open_descriptors() <= few, "all sockets are closed again")
        Footprint.of(broker).assert_kept(before, growth_kib=GROWTH_KIB)
        assert_unharmed(broker)
        broker.stop()
    finally:
        broker.close()


def test_ten_thousand_receives_are_reset(broker: Broker) -> None:
    """As a client may whose process ends; on more connections than one, since each may reset so many and no more."""
    head, body = block("ReceiveMessage"), receive("resetters", "nothing", polling_s=20)
    whole = WIDE_GREETING + b"".join(
        call(number, head, body) + reset(2 * number + 1, ErrorCode.CANCEL) for number in range(2_500)
    )
    before = Footprint.of(broker)
    with ExitStack() as peers:
        for _ in range(4):
            peers.enter_context(connected(broker.endpoint, whole))
        until(lambda: broker.stat("quarry_waiting_polls") == 0, "no receive waits")
        until(lambda: broker.stat("quarry_front_calls_open") == 0, "no call is open")
    Footprint.of(broker).assert_kept(before, growth_kib=GROWTH_KIB)
    assert_unharmed(broker)


@pytest.mark.parametrize("greeting", [SHUT_GREETING, WIDE_GREETING], ids=["windows shut", "socket not read"])
def test_receives_that_are_never_read_keep_a_bounded_amount(broker: Broker, greeting: bytes) -> None:
    """Forty groups ask for the same 10 MB each. One connection may leave 64 MiB unread, and what its sockets hold."""
    name = "wide" if greeting is WIDE_GREETING else "shut"
    with Client(broker.endpoint) as client:
        client.send(f"large-{name}", "0", 1_000)
        for number in range(100):
            client.send(f"large-{name}", str(number), 100_000)
    before = Footprint.of(broker)
    with connected(broker.endpoint, greeting) as peer:
        head = block("ReceiveMessage")
        earliest = b"".join(
            call(number, head, receive(f"{name}-{number // 4}", f"large-{name}")) for number in range(160)
        )
        peer.sendall(earliest)
        assert_unharmed(broker)
        buffered_kib = broker.resident_kib() - before.resident_kib
        print(f"{name}: {buffered_kib} KiB held for one client that does not read")
        assert buffered_kib < 160 * 1024
    Footprint.of(broker).assert_kept(before, growth_kib=160 * 1024)  # the allocator gives back what it likes
    assert_unharmed(broker)


def test_telemetry_that_is_never_read_is_not_answered_for_ever(broker: Broker) -> None:
    head, body = block("Telemetry"), good_request("Telemetry").SerializeToString()
    settings = frame(FrameType.DATA, 0, 1, PREFIX.pack(0, len(body)) + body)
    before = Footprint.of(broker)
    with connected(broker.endpoint, SHUT_GREETING) as peer:
        peer.sendall(frame(FrameType.HEADERS, Flag.END_HEADERS, 1, b"\x20" + head))
        for _ in range(400):
            peer.sendall(settings * 100)
        assert_unharmed(broker)
        buffered_kib = broker.resident_kib() - before.resident_kib
        assert buffered_kib < 16 * 1024, f"40,000 answers take {buffered_kib} KiB"
    Footprint.of(broker).assert_kept(before, growth_kib=GROWTH_KIB)


def test_clients_that_never_finish_what_they_say_keep_nobody_waiting(broker: Broker) -> None:
    """Slow loris: heads and bodies of which a byte comes now and then. (When they end: tests/front.)"""
    head = block("SendMessage")
    partial_head = frame(FrameType.HEADERS, Flag.END_HEADERS, 1, b"\x20" + head)[:40]
    partial_body = call(0, head, bytes(20_000))[: len(head) + 5_000]
    before = Footprint.of(broker)
    client = GoodClient(broker.endpoint, "steady")
    try:
        client.send(0.2)
        alone = client.send(0.5)
        with ExitStack() as stack:
            slow = [
                stack.enter_context(connected(broker.endpoint, WIDE_GREETING, (partial_head, partial_body)[number % 2]))
                for number in range(AT_ONCE)
            ]
            for _ in range(3):
                for each in slow:
                    each.sendall(b"\0")
            under = client.send(0.5)
    finally:
        client.close()
    print(f"alone {alone}; beside {AT_ONCE} that are slow {under}")
    assert under.per_second >= 0.8 * alone.per_second, f"alone {alone}, beside them {under}"
    Footprint.of(broker).assert_kept(before, growth_kib=GROWTH_KIB)


def test_one_address_leaves_room_for_connections_of_others(broker: Broker) -> None:
    broker.administer("settings", "set", "limits.connections_per_address", "20")
    host, _, port = broker.endpoint.rpartition(":")
    try:
        with ExitStack() as stack:
            refused = 0
            for _ in range(40):
                peer = stack.enter_context(
                    socket.create_connection((host, int(port)), timeout=10, source_address=("127.0.0.2", 0))
                )
                try:
                    peer.sendall(WIDE_GREETING + call(0, block("Telemetry"), b"", end=False))
                    refused += not peer.recv(1_000)
                except ConnectionError:
                    refused += 1
            assert refused == 20
            assert_unharmed(broker)
            assert 'quarry_limits_met_total{limit="connections_per_address"} 20.0' in broker.get("/metrics")[1]
    finally:
        broker.administer("settings", "reset", "limits.connections_per_address")


def answered(broker: Broker, calls: Sequence[tuple[bytes, bytes]]) -> RawClient:
    """Make calls (head and body) on one connection and see them end."""
    client = RawClient(broker.endpoint, 1)
    (connection,) = client.connections
    for number, (head, body) in enumerate(calls):
        client.send(connection, call(number, head, body))
        if number % 200 == 0:
            client.read_until(lambda last=number: connection.ended > last)  # type: ignore[misc]
    client.read_until(lambda: connection.ended == len(calls))
    return client


def test_made_up_clients_give_way_to_each_other(broker: Broker) -> None:
    broker.administer("settings", "set", "limits.clients", "500")
    body = good_request("Telemetry").SerializeToString()
    before = Footprint.of(broker)
    try:
        calls = [(block("Telemetry", client_id=b"made-up-%d" % number), body) for number in range(5_000)]
        answered(broker, calls).close()
        assert broker.stat("quarry_clients") <= 500
        assert_unharmed(broker)
    finally:
        broker.administer("settings", "reset", "limits.clients")
    Footprint.of(broker).assert_kept(before, growth_kib=GROWTH_KIB)


@pytest.mark.slow
def test_topics_and_groups_that_are_made_by_use_are_so_many_and_no_more(tmp_path: Path) -> None:
    """Also over a restart; one that is deleted makes room."""
    broker = started(tmp_path)
    try:
        names = [f"made-up-{number}" for number in range(300)]
        answered(broker, [(block("QueryRoute"), _route(name)) for name in names]).close()
        assert len(_topics(broker)) == 200
        answered(broker, [(block("ReceiveMessage"), receive(name, "made-up-0")) for name in names]).close()
        assert len(broker.administer("group", "list", "--prefix", "made-up-", "--json").splitlines()) == 200
        metrics = broker.get("/metrics")[1]
        assert 'quarry_limits_met_total{limit="topics_per_user"} 100.0' in metrics
        assert 'quarry_limits_met_total{limit="groups_per_user"} 100.0' in metrics
        with Client(broker.endpoint) as client:
            client.subscribe("made-up-5", "made-up-0")
            with pytest.raises(Refused, match="groups were already created"):
                client.subscribe("made-up-in-settings", "made-up-0")
        broker.restart()
        broker.administer("topic", "delete", "--yes", "made-up-7")
        answered(broker, [(block("QueryRoute"), _route(f"later-{number}")) for number in range(3)]).close()
        assert len(_topics(broker)) == 199
        assert len(broker.administer("topic", "list", "--prefix", "later-", "--json").splitlines()) == 1
        broker.administer("topic", "create", "by-an-operator")
        broker.stop()
    finally:
        broker.close()


def _topics(broker: Broker) -> list[str]:
    return broker.administer("topic", "list", "--prefix", "made-up-", "--json").splitlines()


def _route(name: str) -> bytes:
    request = good_request("QueryRoute")
    request.topic.name = name
    body: bytes = request.SerializeToString()
    return body
