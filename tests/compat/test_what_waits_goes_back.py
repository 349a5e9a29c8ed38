"""Delayed and half messages that wait in Quarry's store are delivered by Apache RocketMQ 5.5.0, and no other ones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from bench.peers.rocketmq import RocketMQ
from quarry_mq.store.settings import Durability
from tests.e2e.broker import Broker, quarry
from tests.e2e.clients import Clients, Outgoing, SimpleConsumer
from tests.e2e.conftest import StartBroker
from tests.e2e.languages import LANGUAGES

GROUP: Final = "readers"
DELAYS: Final = "delays"
HALVES: Final = "halves"
WAITS_S: Final = 60
"""Long enough for RocketMQ to be up before."""
STARTS_S: Final = 20

pytestmark = pytest.mark.slow

SEGMENT_SIZE: Final = 16 * 1024 * 1024
SETTINGS: Final = {
    "consume_queue.mode": "file",
    "store.segment_size": SEGMENT_SIZE,
    "delivery.new_group_start": "earliest",
}
"""Queue files, as most users of RocketMQ have them."""
PROXY: Final = {"grpcClientConsumerMinLongPollingTimeoutMillis": 100}
"""Its default is longer than the clients of these tests wait."""


def received(consumer: SimpleConsumer, wanted: int) -> list[bytes]:
    """So many messages, acknowledged."""
    deliveries = consumer.receive_until(wanted, timeout_s=WAITS_S + 60)
    consumer.ack(deliveries)
    return [each.body for each in deliveries]


def send_what_waits(broker: Broker, clients: Clients) -> int:
    """A delayed message that is delivered here, one that is recalled and one that waits; the same of half messages.

    Returns when the one that waits is due.
    """
    broker.administer("topic", "create", DELAYS, "--type", "delay", "--queues", "2")
    broker.administer("topic", "create", HALVES, "--type", "transaction", "--queues", "2")
    broker.administer("group", "create", GROUP)
    producer = clients.producer(DELAYS)
    now_s = time.time_ns() // 1_000_000_000
    due_ms = (now_s + WAITS_S) * 1000
    producer.send([Outgoing(DELAYS, b"early", delivery_ms=(now_s + 2) * 1000)])
    [recalled] = producer.send([Outgoing(DELAYS, b"recalled", delivery_ms=due_ms)])
    producer.send([Outgoing(DELAYS, b"waits", delivery_ms=due_ms)])
    producer.recall(DELAYS, recalled)
    transactions = clients.producer(HALVES, checker="unknown")
    transactions.send_in_transaction(Outgoing(HALVES, b"committed"), "commit")
    transactions.send_in_transaction(Outgoing(HALVES, b"half"), "none")
    assert received(clients.simple_consumer(DELAYS, group=GROUP, await_s=1), 1) == [b"early"]
    assert received(clients.simple_consumer(HALVES, group=GROUP, await_s=1), 1) == [b"committed"]
    return due_ms


def test_rocketmq_delivers_what_waited(start_broker: StartBroker, tmp_path: Path) -> None:
    broker, language = start_broker(settings=SETTINGS), LANGUAGES["java"]()
    clients = Clients(language, broker.endpoint, tmp_path / "ours")
    due_ms = send_what_waits(broker, clients)
    clients.close()
    broker.stop()
    properties = {
        "mappedFileSizeCommitLog": SEGMENT_SIZE,
        "transactionTimeOut": 1000,
        # longer than it takes to write down what was committed, so that it asks once
        "transactionCheckInterval": 8000,
    }
    rocketmq = RocketMQ(
        tmp_path / "rocketmq",
        Durability.SYNC,
        topic="unused",
        queues=1,
        groups=(),
        store=broker.store,
        properties=properties,
        proxy_properties=PROXY,
    )
    done = quarry("export-metadata", str(broker.store), "--output", str(broker.store / "config"))
    assert done.returncode == 0, done.stderr
    theirs: Clients | None = None
    try:
        rocketmq.start()
        time.sleep(STARTS_S)
        theirs = Clients(language, rocketmq.endpoint, tmp_path / "theirs")
        theirs.producer(HALVES, checker="commit")
        delays = theirs.simple_consumer(DELAYS, group=GROUP)
        halves = theirs.simple_consumer(HALVES, group=GROUP)
        assert received(halves, 1) == [b"half"]
        assert received(delays, 1) == [b"waits"]
        assert time.time_ns() // 1_000_000 >= due_ms - 1000
        assert (delays.receive(), halves.receive()) == ([], [])
    finally:
        if theirs is not None:
            theirs.kill()
        rocketmq.close()
