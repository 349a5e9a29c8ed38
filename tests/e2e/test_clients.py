"""What every official client must see: the same tests on Python, Node.js and Java.

The Java client needs a JVM and Maven and takes longer: it belongs to the slow tests.
"""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.e2e.broker import Broker
from tests.e2e.clients import Clients, Delivery, Outgoing, SimpleConsumer, content_of
from tests.e2e.conftest import StartClients

TOPIC = "acme-orders"
INVISIBLE_S = 3


@pytest.fixture(params=["python", "node", pytest.param("java", marks=pytest.mark.slow)])
def clients(request: pytest.FixtureRequest, broker: Broker, start_clients: StartClients) -> Clients:
    return start_clients(request.param, broker.endpoint)


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


def test_groups_read_the_same_messages_each_for_itself(clients: Clients) -> None:
    sent = varied(8)
    clients.producer(TOPIC).send(sent)

    for group in ("billing", "shipping"):
        consumer = clients.simple_consumer(TOPIC, group=group, await_s=1)
        deliveries = consumer.receive_until(len(sent))
        consumer.ack(deliveries)
        assert Counter(each.content() for each in deliveries) == Counter(map(content_of, sent))
