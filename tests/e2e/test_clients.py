"""Every official client works alike: the same tests on Python, Node.js, Java and Go.

The Java client needs a JVM and Maven, the Go client is compiled; both take longer: they belong to the slow tests.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from quarry_mq.cli.demo import free_ports
from tests.certificates import make_tls
from tests.e2e.clients import Clients, Delivery, Outgoing, SimpleConsumer, content_of
from tests.e2e.conftest import StartBroker, StartClients

TOPIC = "acme-orders"
INVISIBLE_S = 3


slow = pytest.mark.slow
TRANSPORTS = [
    pytest.param(("h2", False), id="h2"),
    pytest.param(("h2", True), id="h2-tls", marks=slow),
    pytest.param(("grpcio", False), id="grpcio", marks=slow),
    pytest.param(("grpcio", True), id="grpcio-tls", marks=slow),
]


@pytest.fixture(
    params=[
        "python",
        pytest.param("node", marks=slow),
        pytest.param("java", marks=slow),
        pytest.param("go", marks=slow),
    ]
)
def language(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=TRANSPORTS)
def clients(
    request: pytest.FixtureRequest,
    language: str,
    start_broker: StartBroker,
    start_clients: StartClients,
    tmp_path: Path,
) -> Clients:
    """Clients of a language, connected through one of the fronts, with or without TLS."""
    front, is_tls = request.param
    settings = {"network.front": front}
    if not is_tls:
        return start_clients(language, start_broker(settings=settings).endpoint)
    tls, (port,) = make_tls(tmp_path), free_ports(1)
    settings |= {"network.tls_listen": f"127.0.0.1:{port}", **tls.settings("off")}
    start_broker(settings=settings)
    return start_clients(language, settings["network.tls_listen"], tls_authority=tls.authority_path)


def varied(count: int) -> list[Outgoing]:
    """Messages that differ in everything a sender decides."""
    return [
        Outgoing(
            topic=TOPIC,
            body=b"%d " % number + bytes(range(256)) * (number * number),
            tag=[None, "created", "paid", "支付"][number % 4],
            keys=tuple(f"order-{number}-{key}" for key in range(number % 3)),
            properties={"region": "köln", "sequence": str(number)} if number % 2 else {},
        )
        for number in range(count)
    ]


def receive_for(consumer: SimpleConsumer, seconds: float, *, invisible_s: int) -> list[Delivery]:
    """All that comes within the time."""
    deliveries = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        deliveries += consumer.receive(invisible_s=invisible_s)
    return deliveries


def test_messages_arrive_once_and_equal_and_only_what_is_not_acked_comes_again(clients: Clients) -> None:
    """Body, tag, keys and properties as sent. Redelivery of unacked messages: rocketmq-clients#1344."""
    sent = varied(24)
    receipts = clients.producer(TOPIC).send(sent)
    consumer = clients.simple_consumer(TOPIC, group="billing", await_s=1)

    first = consumer.receive_until(len(sent), invisible_s=INVISIBLE_S)

    assert {each.message_id: each.content() for each in first} == {
        receipt.message_id: content_of(message) for receipt, message in zip(receipts, sent, strict=True)
    }
    assert len(first) == len(sent)
    assert {each.attempt for each in first} == {1}

    consumer.ack(first[2:])
    again = receive_for(consumer, INVISIBLE_S + 2, invisible_s=60)

    assert sorted(each.message_id for each in again) == sorted(each.message_id for each in first[:2])
    assert {each.attempt for each in again} == {2}
    assert {each.content() for each in again} == {each.content() for each in first[:2]}
    consumer.ack(again)


@pytest.mark.slow
def test_only_messages_of_the_wanted_tags_arrive(clients: Clients) -> None:
    sent = varied(16)
    clients.producer(TOPIC).send(sent)
    consumer = clients.simple_consumer(TOPIC, group="billing", tags="paid || 支付", await_s=1)
    wanted = Counter(content_of(message) for message in sent if message.tag in {"paid", "支付"})

    deliveries = consumer.receive_until(wanted.total())
    deliveries += consumer.receive()

    assert Counter(each.content() for each in deliveries) == wanted


def test_a_changed_invisible_time_counts_and_its_new_handle_acknowledges(clients: Clients) -> None:
    clients.producer(TOPIC).send([Outgoing(TOPIC, b"soon"), Outgoing(TOPIC, b"later")])
    consumer = clients.simple_consumer(TOPIC, group="billing", await_s=1)
    by_body = {each.body: each for each in consumer.receive_until(2, invisible_s=60)}

    consumer.change_invisible(by_body[b"soon"], invisible_s=1)
    consumer.change_invisible(by_body[b"later"], invisible_s=INVISIBLE_S)
    consumer.ack([by_body[b"later"]])
    again = receive_for(consumer, INVISIBLE_S + 1, invisible_s=60)

    assert [(each.body, each.attempt) for each in again] == [(b"soon", 2)]


def test_a_push_consumer_gets_every_message_and_failed_ones_again(clients: Clients) -> None:
    sent = varied(12)
    clients.producer(TOPIC).send(sent)
    consumer = clients.push_consumer(TOPIC, group="billing", failed_attempts=1)
    wanted = Counter(content_of(message) for message in sent)

    deliveries = [consumer.next_delivery() for _ in range(2 * len(sent))]

    assert Counter(each.content() for each in deliveries if each.attempt == 1) == wanted
    assert Counter(each.content() for each in deliveries if each.attempt == 2) == wanted
    assert [each for each in deliveries if each.failed != (each.attempt == 1)] == []
    with pytest.raises(TimeoutError):
        consumer.next_delivery(timeout_s=2)


@pytest.mark.slow
def test_groups_read_the_same_messages_each_for_itself(clients: Clients) -> None:
    sent = varied(8)
    clients.producer(TOPIC).send(sent)

    for group in ("billing", "shipping"):
        consumer = clients.simple_consumer(TOPIC, group=group, await_s=1)
        deliveries = consumer.receive_until(len(sent))
        consumer.ack(deliveries)
        assert Counter(each.content() for each in deliveries) == Counter(map(content_of, sent))
