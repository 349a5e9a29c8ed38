"""Official clients with TLS and without, on one port, as on RocketMQ."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.certificates import make_tls
from tests.e2e.clients import Outgoing, content_of
from tests.e2e.conftest import StartBroker, StartClients

TOPIC = "acme-orders"
COUNT = 8


@pytest.mark.slow
@pytest.mark.parametrize("language", ["python", "node", "java", "go"])
def test_clients_with_tls_and_plain_ones_exchange_messages_on_one_port(
    language: str, start_broker: StartBroker, start_clients: StartClients, tmp_path: Path
) -> None:
    tls = make_tls(tmp_path)
    broker = start_broker(
        settings={
            "network.tls": "optional",
            "network.tls_certificate": tls.files.certificate,
            "network.tls_key": tls.files.key,
        }
    )
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
    pushed = secure.push_consumer(TOPIC, group="pushed")
    assert sorted(pushed.next_delivery().content() for _ in sent) == sorted(map(content_of, sent))
    assert broker.figure("quarry_front_connections_refused_total") == 0
    broker.assert_no_stack_trace()
