"""Official clients with TLS and without, on one port, as on RocketMQ; and certificates that change."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.certificates import Tls, make_tls
from tests.e2e.broker import Broker
from tests.e2e.clients import Outgoing, content_of
from tests.e2e.conftest import StartBroker, StartClients

TOPIC = "acme-orders"
COUNT = 8


@pytest.mark.slow
@pytest.mark.parametrize("language", ["python", "node", "java", "go", "rust"])
def test_clients_with_tls_and_plain_ones_exchange_messages_on_one_port(
    language: str, start_broker: StartBroker, start_clients: StartClients, tmp_path: Path
) -> None:
    tls = make_tls(tmp_path)
    broker = start_broker(settings=tls.settings("optional"))
    secure = start_clients(language, broker.endpoint, tls_authority=tls.authority_path)
    plain = start_clients("python", broker.endpoint)
    sent = [Outgoing(topic=TOPIC, body=b"%d" % number) for number in range(2 * COUNT)]
    secure.producer(TOPIC).send(sent[:COUNT])
    plain.producer(TOPIC).send(sent[COUNT:])
    for clients, group in ((secure, "secure"), (plain, "plain")):
        consumer = clients.simple_consumer(TOPIC, group=group, await_s=1)
        deliveries = consumer.receive_until(len(sent))
        assert sorted(each.content() for each in deliveries) == sorted(map(content_of, sent))
        consumer.ack(deliveries)
    if language != "rust":  # it has none
        pushed = secure.push_consumer(TOPIC, group="pushed")
        assert sorted(pushed.next_delivery().content() for _ in sent) == sorted(map(content_of, sent))
    assert broker.stat("quarry_front_connections_refused_total") == 0
    broker.assert_no_stack_trace()


@pytest.mark.slow
def test_a_client_with_tls_needs_nothing_to_be_set(start_broker: StartBroker, start_clients: StartClients) -> None:
    """The Java program connects as the one in RocketMQ's quick start does.

    Nothing of TLS is made or loaded for plain clients, and a restart keeps the certificate.
    """
    broker = start_broker()
    folder = broker.store / "tls"
    start_clients("python", broker.endpoint).producer(TOPIC).send([Outgoing(topic=TOPIC, body=b"plain")])
    assert not folder.exists()
    assert not loads_tls(broker)
    java = start_clients("java", broker.endpoint, tls_authority=folder)
    java.producer(TOPIC).send([Outgoing(topic=TOPIC, body=b"java")])
    assert loads_tls(broker)
    assert {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())} == {
        "tls": 0o700,
        "certificate.pem": 0o600,
        "key.pem": 0o600,
    }
    authority = folder / "certificate.pem"
    shown = certificate_at(broker.endpoint, authority.read_bytes(), "h2")
    consumer = java.simple_consumer(TOPIC, group="billing", await_s=1)
    assert sorted(each.body for each in consumer.receive_until(2)) == [b"java", b"plain"]
    java.close()  # after a restart it may wait for its channels without end, with TLS and without
    broker.restart()
    assert not loads_tls(broker)
    assert certificate_at(broker.endpoint, authority.read_bytes(), "h2") == shown
    broker.assert_no_stack_trace()


@pytest.mark.slow
@pytest.mark.parametrize("language", ["python", "node", "go", "rust"])
def test_clients_can_verify_the_certificate_that_the_broker_makes(
    language: str, start_broker: StartBroker, start_clients: StartClients
) -> None:
    broker = start_broker(settings={"network.tls": "required"})
    clients = start_clients(language, broker.endpoint, tls_authority=broker.store / "tls" / "certificate.pem")
    clients.producer(TOPIC).send([Outgoing(topic=TOPIC, body=b"hello")])
    consumer = clients.simple_consumer(TOPIC, group="billing", await_s=1)
    assert [each.body for each in consumer.receive_until(1)] == [b"hello"]
    broker.assert_no_stack_trace()


def loads_tls(broker: Broker) -> bool:
    """Return whether the process has loaded the library that makes and reads certificates."""
    return "/cryptography/" in Path(f"/proc/{broker.pid}/maps").read_text()


def certificate_at(address: str, authority: bytes, protocol: str) -> bytes:
    """What the port shows to who trusts the authority. Raises ssl.SSLError."""
    context = ssl.create_default_context(cadata=authority.decode())
    context.set_alpn_protocols([protocol])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as raw,
        context.wrap_socket(raw, server_hostname=host) as secure,
    ):
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return shown


@pytest.mark.slow
def test_a_running_broker_takes_new_certificates(
    start_broker: StartBroker, start_clients: StartClients, tmp_path: Path
) -> None:
    """All ports but the HTTP port, which a test cannot ask whether the broker is ready otherwise."""
    old = make_tls(tmp_path)
    certificate, key = old.files.certificate, old.files.key
    broker = start_broker(
        settings={
            "network.tls": "required",
            "network.admin_tls": True,
            "network.tls_certificate": certificate,
            "network.tls_key": key,
        }
    )
    consumer = start_clients("python", broker.endpoint, tls_authority=old.authority_path).simple_consumer(
        TOPIC, group="billing", await_s=1
    )

    def failures() -> float:
        return broker.stat("quarry_tls_failed_reloads_total")

    def both_show(tls: Tls) -> bool:
        shown = ssl.PEM_cert_to_DER_cert(certificate.read_text())
        try:
            return all(certificate_at(each, tls.authority, "h2") == shown for each in (broker.endpoint, broker.admin))
        except ssl.SSLCertVerificationError:
            return False

    assert both_show(old)
    key.write_text("broken")
    wait_until(lambda: failures() == 1)
    assert both_show(old)
    new = make_tls(tmp_path)
    wait_until(lambda: both_show(new))
    assert failures() == 1
    broker_client = start_clients("python", broker.endpoint, tls_authority=new.authority_path)
    broker_client.producer(TOPIC).send([Outgoing(topic=TOPIC, body=b"hello")])
    assert [each.body for each in consumer.receive_until(1)] == [b"hello"], "its connection is from before"
    broker.assert_no_stack_trace()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
