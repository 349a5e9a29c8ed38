"""A broker keeps its state after a stop or a kill. The client is the official Python one."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter

import pytest

from tests.e2e.broker import PROJECT, Broker, clean_environment, command_line, quarry
from tests.e2e.clients import ClientError, Clients, Delivery, Outgoing, SimpleConsumer, content_of
from tests.e2e.conftest import StartClients

TOPIC = "acme-orders"
RECONNECT_S = 120.0
"""A client that found its broker away waits longer from try to try."""


def messages(count: int, text: str = "order") -> list[Outgoing]:
    return [Outgoing(TOPIC, f"{text} {number}".encode(), keys=(f"{text}-{number}",)) for number in range(count)]


def ack_once_connected(consumer: SimpleConsumer, deliveries: list[Delivery]) -> None:
    """Acknowledge; while the client's channel has not found the broker again, try again."""
    deadline = time.monotonic() + RECONNECT_S
    while True:
        try:
            return consumer.ack(deliveries)
        except ClientError as error:
            if error.code is not None or time.monotonic() > deadline:
                raise


def receive_once_connected(consumer: SimpleConsumer, wanted: int, *, invisible_s: int = 60) -> list[Delivery]:
    """Receive `wanted` messages; while the client's channel has not found the broker again, try again."""
    deliveries: list[Delivery] = []
    deadline = time.monotonic() + RECONNECT_S
    while len(deliveries) < wanted:
        assert time.monotonic() < deadline, f"{len(deliveries)} of {wanted} messages"
        try:
            deliveries += consumer.receive(invisible_s=invisible_s)
        except ClientError as error:
            if error.code is not None:
                raise
    return deliveries


@pytest.fixture
def clients(broker: Broker, start_clients: StartClients) -> Clients:
    return start_clients("python", broker.endpoint)


@pytest.mark.slow
def test_handles_given_before_a_kill_acknowledge_after_it(broker: Broker, clients: Clients) -> None:
    """A broker that forgets what it handed out makes acknowledgements fail and messages double: rmq#10278."""
    sent = messages(10)
    clients.producer(TOPIC).send(sent)
    consumer = clients.simple_consumer(TOPIC, group="billing", await_s=1)
    received = consumer.receive_until(len(sent), invisible_s=600)
    consumer.ack(received[:4])

    broker.kill()
    broker.start()
    ack_once_connected(consumer, received[4:8])
    for each in received[8:]:
        consumer.change_invisible(each, invisible_s=1)

    again = receive_once_connected(consumer, 2)
    assert sorted(each.message_id for each in again) == sorted(each.message_id for each in received[8:])
    assert {each.attempt for each in again} == {2}
    assert consumer.receive() == []


@pytest.mark.parametrize("end", [pytest.param("stop", marks=pytest.mark.slow), "kill"])
def test_acknowledged_messages_do_not_come_back_and_no_message_is_lost(
    broker: Broker, clients: Clients, end: str
) -> None:
    producer = clients.producer(TOPIC)
    before = messages(40, "before")
    producer.send(before)
    consumer = clients.simple_consumer(TOPIC, group="billing", await_s=1)
    acked = consumer.receive_until(len(before))[:25]
    consumer.ack(acked)
    unread = messages(20, "unread")
    producer.send(unread)
    consumer.close()
    producer.close()

    getattr(broker, end)()
    broker.start()

    rest = clients.simple_consumer(TOPIC, group="shipping", await_s=1).receive_until(60)
    assert Counter(each.content() for each in rest) == Counter(map(content_of, before + unread))
    billing = clients.simple_consumer(TOPIC, group="billing", await_s=1).receive_until(len(unread))
    assert Counter(each.content() for each in billing) == Counter(map(content_of, unread))


@pytest.mark.slow
def test_a_broker_restarts_in_good_order_while_clients_are_connected(broker: Broker, clients: Clients) -> None:
    producer = clients.producer(TOPIC)
    consumer = clients.simple_consumer(TOPIC, group="billing", await_s=1)
    pushed = clients.push_consumer(TOPIC, group="shipping")
    producer.send(messages(3, "before"))
    consumer.ack(consumer.receive_until(3))

    broker.restart()

    deadline = time.monotonic() + RECONNECT_S
    for message in messages(3, "after"):
        while True:
            try:
                producer.send([message])
                break
            except ClientError as error:
                if error.code is not None or time.monotonic() > deadline:
                    raise
    missing = {f"after {number}".encode() for number in range(3)}  # a send that was tried again may come twice
    while missing:
        missing -= {each.body for each in receive_once_connected(consumer, 1)}
    seen: set[bytes] = set()
    while len(seen) < 6:
        seen.add(pushed.next_delivery().body)
    clients.close()
    broker.stop()


@pytest.mark.slow
def test_a_second_broker_on_the_same_store_is_refused(broker: Broker, clients: Clients) -> None:
    second = Broker(broker.store, logs=broker.store.parent / "second")

    done = subprocess.run(
        command_line(second),
        cwd=PROJECT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2, done.stdout + done.stderr
    complaint = done.stderr.strip().splitlines()
    assert len(complaint) == 1, done.stderr
    assert str(broker.store) in complaint[0]
    assert broker.get("/readyz")[0] == 200
    clients.producer(TOPIC).send(messages(1))
    assert [each.body for each in clients.simple_consumer(TOPIC, group="billing").receive()] == [b"order 0"]


@pytest.mark.slow
def test_a_port_that_is_taken_is_named(broker: Broker) -> None:
    second = Broker(broker.store.parent / "other", logs=broker.store.parent / "second")
    second.endpoint = broker.endpoint

    done = subprocess.run(
        command_line(second),
        cwd=PROJECT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2, done.stdout + done.stderr
    assert broker.endpoint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_log_that_was_cut_within_the_second_in_which_it_was_acknowledged_is_refused(
    broker: Broker, clients: Clients
) -> None:
    """It was taken as it was, where it was the only file: its size became that of all later ones."""
    clients.producer(TOPIC).send(messages(200))
    broker.kill()
    segment = broker.store / "commitlog" / f"{0:020d}"
    whole = segment.stat().st_size
    os.truncate(segment, 40_960)
    broker.launch()
    assert broker.ready_or_ended() == 2
    assert f"{segment}: the file has 40960 bytes, a segment of this log {whole}" in broker.words()
    told = quarry("verify", str(broker.store))
    assert told.returncode == 1
    assert str(segment) in told.stderr
    assert segment.stat().st_size == 40_960
