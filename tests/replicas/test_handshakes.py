"""The handshake over sockets: it may come in any pieces, and ends in time whoever is at the other end."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Final

import pytest
import trustme

from quarry_mq.server.addresses import Address
from quarry_mq.server.replicas import connection as connection_module
from quarry_mq.server.replicas.connection import ReplicaTls
from quarry_mq.server.replicas.handshake import MAC_SIZE, Keys, pack
from quarry_mq.server.replicas.port import ReplicationPort
from quarry_mq.server.replicas.wire import Ack, FrameReader, FrameType, frame, header, pack_ack
from quarry_mq.store.message import PhysicalOffset
from tests.e2e.broker import until
from tests.replicas.test_connections import KEY, LOOPBACK, Shard
from tests.replicas.test_wire import HELLO

Wrap = Callable[[socket.socket], socket.socket]


def plain(connected: socket.socket) -> socket.socket:
    return connected


def files_of(root: Path) -> ReplicaTls:
    issued = trustme.CA().issue_cert(LOOPBACK)
    issued.private_key_pem.write_to_path(root / "key.pem")
    (root / "cert.pem").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    return ReplicaTls(root / "cert.pem", root / "key.pem", None)


def with_tls(connected: socket.socket) -> socket.socket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connected)


STRANGERS: Final = [
    pytest.param(False, plain, id="plain"),
    pytest.param(True, with_tls, id="TLS"),
    pytest.param(True, plain, id="TLS, and the stranger does not begin it"),
]


@contextmanager
def stranger_at(root: Path, *, has_tls: bool, wrap: Wrap) -> Iterator[tuple[ReplicationPort, socket.socket]]:
    """Connect to a port, and begin a HELLO."""
    port = ReplicationPort(Address(LOOPBACK, 0), Keys([KEY]), files_of(root) if has_tls else None)
    with closing(port), socket.create_connection((LOOPBACK, Address.parse(port.address).port)) as connected:
        stranger = wrap(connected)
        if wrap is with_tls or not has_tls:
            stranger.sendall(header(FrameType.HELLO, 1, bytes(60_000)))
        yield port, stranger
        stranger.close()


@pytest.mark.parametrize(("has_tls", "wrap"), STRANGERS)
def test_a_port_does_not_wait_for_a_stranger_when_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool, wrap: Wrap
) -> None:
    monkeypatch.setattr(connection_module, "HANDSHAKE_S", 60.0)
    with stranger_at(tmp_path, has_tls=has_tls, wrap=wrap) as (port, _):
        until(lambda: bool(port._threads), "it is served")
        closer = Thread(target=port.close)
        closer.start()
        closer.join(30)
        is_closed = not closer.is_alive()
    assert is_closed


@pytest.mark.parametrize(("has_tls", "wrap"), STRANGERS[:2])
def test_a_byte_now_and_then_does_not_make_a_handshake_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool, wrap: Wrap
) -> None:
    monkeypatch.setattr(connection_module, "HANDSHAKE_S", 1.0)
    with stranger_at(tmp_path, has_tls=has_tls, wrap=wrap) as (_, stranger):
        assert _is_ended(stranger)


def _is_ended(stranger: socket.socket) -> bool:
    for _ in range(300):
        try:
            stranger.sendall(b"\0")
        except OSError:
            return True
        time.sleep(0.1)
    return False


def test_a_copy_may_send_more_after_its_proof(tmp_path: Path) -> None:
    hello = replace(HELLO, shard="quarry-0", replica="b", follows=True, lineage="", epochs=(), log_end=0, position=0)
    sent, reader, keys = pack(hello), FrameReader(), Keys([KEY])
    with closing(Shard(tmp_path / "a")) as shard, socket.create_connection((LOOPBACK, shard.address.port)) as copy:
        copy.sendall(frame(FrameType.HELLO, 0, sent))
        body = b""
        while not body:
            body = b"".join(bytes(each.body) for each in reader.feed(copy.recv(65_536)))
        proof = keys.sign_proof(sent, body[MAC_SIZE:])
        ack = Ack(0, PhysicalOffset(0), PhysicalOffset(0), 0, PhysicalOffset(77))
        copy.sendall(frame(FrameType.PROOF, 0, proof) + frame(FrameType.ACK, 0, pack_ack(ack)))
        until(lambda: [each.position for each in shard.side.statuses()] == [77], "the acknowledgement is taken")
