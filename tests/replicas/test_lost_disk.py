"""The primary's machine is gone, its disk included: a copy is promoted, and official clients go on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

from quarry_mq.server.addresses import Address
from tests.e2e.broker import until
from tests.e2e.clients import ClientError, Clients, Delivery, Outgoing, SimpleConsumer
from tests.e2e.conftest import StartClients
from tests.e2e.languages import LANGUAGES
from tests.e2e.test_restart import RECONNECT_S
from tests.replicas.copies import Copies
from tests.replicas.forwarder import Forwarder
from tests.replicas.test_processes import drained, load, verify

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "orders"


@pytest.fixture
def front() -> Iterator[Forwarder]:
    """The address that clients know, as a load balancer or a DNS name gives it."""
    with closing(Forwarder(Address("127.0.0.1", 1))) as made:
        yield made


@pytest.fixture
def copies(tmp_path: Path, front: Forwarder) -> Iterator[Copies]:
    made = Copies(tmp_path, settings={"network.advertise": str(front.address)})
    try:
        yield made
    finally:
        made.close()


def messages(count: int, text: str) -> list[Outgoing]:
    return [Outgoing(TOPIC, f"{text} {number}".encode()) for number in range(count)]


def send_once_connected(clients: Clients, outgoing: list[Outgoing]) -> set[str]:
    """Send by a new producer, as soon as there is a primary again."""
    deadline = time.monotonic() + RECONNECT_S
    while True:
        try:
            return {each.message_id for each in clients.producer(TOPIC).send(outgoing)}
        except Exception:
            if time.monotonic() > deadline:
                raise


def receive_when_connected(consumer: SimpleConsumer, wanted: int) -> list[Delivery]:
    """Receive; a client that has not found the new primary yet says so in its own words, and tries again."""
    deliveries: list[Delivery] = []
    deadline = time.monotonic() + RECONNECT_S
    while len(deliveries) < wanted:
        assert time.monotonic() < deadline, f"{len(deliveries)} of {wanted} messages"
        with suppress(ClientError):
            deliveries += consumer.receive(invisible_s=60)
    return deliveries


@pytest.mark.parametrize("language", LANGUAGES)
def test_clients_of_each_language_go_on(
    copies: Copies, front: Forwarder, start_clients: StartClients, tmp_path: Path, language: str
) -> None:
    a, b = copies["a"], copies["b"]
    a.start()
    copies.start("b")
    front.target = Address.parse(a.endpoint)
    a.administer("topic", "create", TOPIC, "--queues", "4")
    a.administer("group", "create", "billing")
    clients = start_clients(language, str(front.address))
    before = {each.message_id for each in clients.producer(TOPIC).send(messages(40, "before"))}
    consumer = clients.simple_consumer(TOPIC, group="billing", await_s=1)
    received = consumer.receive_until(40, invisible_s=10)
    consumer.ack(received[:25])
    copies.wait_for_all("a")
    a.kill()
    shutil.rmtree(a.store)
    until(lambda: "no primary" in copies.says("b"), "b has noticed")
    copies.promote("b")
    front.target = Address.parse(b.endpoint)
    after = send_once_connected(clients, messages(20, "after"))
    wanted = {each.message_id for each in received[25:]} | after
    again = receive_when_connected(consumer, len(wanted))
    assert {each.message_id for each in again} == wanted, "what was acknowledged stays so, and the rest comes"
    assert before > wanted - after
    clients.kill()  # a client that does not tell a new broker its settings cannot end in good order, as in RocketMQ
    copies.start("a")  # an empty machine with the old name
    copies.wait_for_all("b")


def test_what_is_lost_under_load_is_less_than_a_second(copies: Copies, front: Forwarder, tmp_path: Path) -> None:
    chance = Random(3)
    a, b = copies["a"], copies["b"]
    a.start()
    copies.start("b")
    a.administer("topic", "create", TOPIC, "--queues", "4")
    a.administer("group", "create", "readers")
    acked = tmp_path / "acked"
    sender = load("send", a, tmp_path, topic=TOPIC, prefix="m", acked=acked, seed=1)
    time.sleep(chance.uniform(3, 4))
    in_time = len(acked.read_text().split())
    time.sleep(1.0)
    a.kill()
    sender.next_line(60)
    sender.kill()
    sent = acked.read_text().split()
    copies.promote("b")
    found = set(drained(b, tmp_path))
    lost = [each for each in sent if each not in found]
    assert not set(lost) & set(sent[:in_time]), "older than a second"
    b.stop()
    verify(b.store)
    assert front.connections == 0
