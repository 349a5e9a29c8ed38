"""A waiting consumer soon gets a message, and one that waits in vain gets an answer."""

from __future__ import annotations

import statistics
import threading
import time

import pytest

from tests.e2e.broker import Broker, until
from tests.e2e.clients import Delivery, Outgoing
from tests.e2e.conftest import USERS_POLLING, StartBroker, StartClients

TOPIC = "acme-orders"
ROUNDS = 7
WAKE_MS = 200


def test_a_waiting_consumer_gets_a_message_at_once(start_broker: StartBroker, start_clients: StartClients) -> None:
    """Sleep-and-look delivery made RocketMQ's RocksDB queues crawl (rmq#8765) and lost wake-ups (rmq#10615).

    The median of several rounds: one round may lose the processor to another program.
    """
    broker = start_broker(settings=USERS_POLLING)
    clients = start_clients("python", broker.endpoint)
    producer = clients.producer(TOPIC)
    consumer = clients.simple_consumer(TOPIC, group="billing", await_s=10)
    producer.send([Outgoing(TOPIC, b"warm-up")])
    consumer.ack(consumer.receive_until(1))
    waits_ms = []
    for number in range(ROUNDS):
        received: list[Delivery] = []
        waiting = threading.Thread(target=lambda: received.extend(consumer.receive()))  # noqa: B023 - joined below
        waiting.start()
        until(lambda: broker.stat("quarry_waiting_polls") >= 1, "a receive waits")
        [receipt] = producer.send([Outgoing(TOPIC, f"round {number}".encode())])
        waiting.join(30)
        assert [each.body for each in received] == [f"round {number}".encode()]
        consumer.ack(received)
        waits_ms.append(received[0].at_ms - receipt.at_ms)
    assert statistics.median(waits_ms) < WAKE_MS, waits_ms


@pytest.mark.slow
def test_a_consumer_that_waits_in_vain_gets_an_empty_answer_in_time(
    broker: Broker, start_clients: StartClients
) -> None:
    """Not an error and not a deadline: rmq#6496."""
    clients = start_clients("python", broker.endpoint)
    clients.producer(TOPIC).send([Outgoing(TOPIC, b"other group's")])
    consumer = clients.simple_consumer(TOPIC, group="billing", await_s=2)
    consumer.ack(consumer.receive_until(1))

    started = time.monotonic()
    deliveries = consumer.receive()
    waited_s = time.monotonic() - started

    assert deliveries == []
    assert waited_s > 1.5
