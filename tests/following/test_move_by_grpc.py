"""Programs with the official gRPC client move from a live Apache RocketMQ 5.5.0 with its proxy to Quarry."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Final

import pytest

from bench.peers.rocketmq import RocketMQ
from quarry_mq.store.settings import Durability
from tests.e2e.broker import quarry, until
from tests.e2e.clients import ClientError, Clients, Delivery, Outgoing, SimpleConsumer
from tests.e2e.conftest import StartBroker, StartClients
from tests.following.test_live_rocketmq import SEGMENT_SIZE, Follower
from tests.remoting.test_fleet import TOPIC, knows_topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GROUP: Final = "fleet"
COMMITTED: Final = "transfers"
"""A topic whose producer commits when it is asked."""
ROLLED_BACK: Final = "withdrawals"
INVISIBLE_S: Final = 30


@pytest.fixture(params=["default", "defaultRocksDB"])
def rocketmq(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RocketMQ]:
    made = RocketMQ(
        tmp_path / "rocketmq",
        Durability.ASYNC,
        topic=TOPIC,
        queues=4,
        groups=[GROUP, "later"],
        properties={"mappedFileSizeCommitLog": SEGMENT_SIZE, "storeType": request.param},
    )
    path = tmp_path / "rocketmq" / "store" / "config" / "topics.json"
    topics = json.loads(path.read_text())
    for name in (COMMITTED, ROLLED_BACK):
        settings = {"topicName": name, "attributes": {"message.type": "TRANSACTION"}}
        topics["topicConfigTable"][name] = topics["topicConfigTable"][TOPIC] | settings
    path.write_text(json.dumps(topics))
    try:
        made.start()
        until(lambda: knows_topic(made.names), "the broker has registered", timeout_s=90)
        yield made
    finally:
        made.close()


class Sending:
    """A producer that sends numbers, on a thread, and goes to the other broker when the first one refuses."""

    def __init__(self, before: Clients, after: Clients) -> None:
        self.sent: list[int] = []
        self.failed: set[int] = set()
        self._producer = before.producer(TOPIC)
        self._after = after
        self._stop = Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                self._producer.send([Outgoing(TOPIC, b"%d" % number)])
            except ClientError:
                self.failed.add(number)
                try:
                    self._producer = self._after.producer(TOPIC)
                except ClientError:
                    time.sleep(0.1)  # it is not there yet
                continue
            self.sent.append(number)
            number += 1

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)


def received(consumer: SimpleConsumer, *, invisible_s: int = INVISIBLE_S) -> list[Delivery]:
    try:
        return consumer.receive(invisible_s=invisible_s)
    except ClientError:
        return []  # RocketMQ's proxy does not know the client yet


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [int(each.body) for each in deliveries]


def send_transactions(clients: Clients) -> None:
    for topic, checker, outcomes in (
        (COMMITTED, "commit", ("commit", "rollback", "none")),
        (ROLLED_BACK, "rollback", ("commit", "none")),
    ):
        producer = clients.producer(topic, checker=checker)
        for outcome in outcomes:
            producer.send_in_transaction(Outgoing(topic, outcome.encode()), outcome)


def test_nothing_is_lost_and_what_was_acknowledged_does_not_come_again(
    rocketmq: RocketMQ, start_broker: StartBroker, start_clients: StartClients, tmp_path: Path
) -> None:
    before, store = start_clients("python", rocketmq.endpoint), tmp_path / "store"
    settings = {"store.segment_size": SEGMENT_SIZE}
    broker = start_broker(store=store, settings=settings, after_cut_over=True)
    after = start_clients("python", broker.endpoint)
    sending = Sending(before, after)
    try:
        until(lambda: len(sending.sent) > 100, "messages were sent", timeout_s=90)
        consumer = before.simple_consumer(TOPIC, group=GROUP, await_s=2)
        acknowledged: list[int] = []
        in_hand: list[int] = []
        while len(acknowledged) < 100:
            deliveries = received(consumer)
            consumer.ack(deliveries[5:])
            in_hand += numbers(deliveries[:5])
            acknowledged += numbers(deliveries[5:])
        send_transactions(before)
        time.sleep(4)  # RocketMQ stores within 3 s which transactions are resolved
        last = received(consumer)
        ended = Follower(f"127.0.0.1:{rocketmq.broker_port}", store, "--cut-over").wait()
        assert ", 0 bytes behind" in ended
        assert broker.ready_or_ended() is None, broker.words()
        consumer.ack(last)  # too late: Quarry does not know of it
        until(lambda: len(sending.sent) > sending.sent.index(max(sending.failed) - 1) + 50, "again", timeout_s=60)
    finally:
        sending.end()
    answering = [after.producer(COMMITTED, checker="commit"), after.producer(ROLLED_BACK, checker="rollback")]
    came: list[int] = []
    consumer = after.simple_consumer(TOPIC, group=GROUP, await_s=2)

    def has_all() -> bool:
        deliveries = received(consumer)
        consumer.ack(deliveries)
        came.extend(numbers(deliveries))
        return set(came) | set(acknowledged) >= set(sending.sent)

    until(has_all, "every message was received", timeout_s=INVISIBLE_S + 60)
    assert not set(came) & (set(acknowledged) - sending.failed)
    assert set(in_hand) | set(numbers(last)) <= set(came), "what was in the hands of a consumer comes again"
    assert len(came) == len(set(came)) or set(came) & sending.failed

    later = after.simple_consumer(COMMITTED, ROLLED_BACK, group="later", await_s=2)
    found: list[tuple[str, bytes]] = []

    def has_transactions() -> bool:
        deliveries = received(later)
        later.ack(deliveries)
        found.extend((each.topic, each.body) for each in deliveries)
        return len(found) >= 3 and len(answering[1].checked()) > 0

    until(has_transactions, "transactions are over", timeout_s=90)
    assert sorted(found) == [(COMMITTED, b"commit"), (COMMITTED, b"none"), (ROLLED_BACK, b"commit")]
    after.close()
    broker.stop()
    assert quarry("verify", str(store)).returncode == 0
