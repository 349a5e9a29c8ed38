"""The consume queues of a running broker go from files to RocksDB and back, while clients send and receive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.e2e.broker import Broker, environment_of, quarry, until
from tests.hostile.caller import Client

SETTINGS = {
    "store.segment_size": "1MiB",
    "store.durability": "async",
    "limits.body_size": "256KiB",
    "topics.default_queues": 1,
    "delivery.new_group_start": "earliest",
    "delivery.polling_min_ms": 0,
    "delivery.polling_max_ms": 100,
    "network.stop_grace_ms": 500,
    "consume_queue.units_per_file": 500,
    "expiry.start_delay_ms": 3_600_000,
}
TOPICS = [f"orders-{number}" for number in range(6)]
GROUP = "readers"
SIZE = 400
BEFORE = 150
"""Messages of each topic that are there before anything else."""
PHASES = ["file", "double_write", "backfilling", "verified", "reading_rocksdb", "rocksdb"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment_of(SETTINGS))
    yield broker
    broker.close()


class Traffic:
    """Somebody who sends to all topics in turn, and somebody who reads all of them, until told to stop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sending, self._reading = Event(), Event()
        self.sent: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        self.got: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        self.failures: list[BaseException] = []
        self._threads = [Thread(target=self._guarded, args=(work,)) for work in (self._send, self._read)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop sending, read the rest, and stop."""
        self._sending.set()
        self._threads[0].join(60)
        try:
            until(lambda: bool(self.failures) or self.got == self.sent, "everything is read")
        finally:
            self._reading.set()
            self._threads[1].join(60)
        assert not self.failures, self.failures

    def send(self, client: Client, topic: str) -> None:
        name = f"{topic}-{len(self.sent[topic]):05d}"
        client.send(topic, name, SIZE)
        self.sent[topic].append(name)

    def _guarded(self, work: Any) -> None:
        try:
            with Client(self._broker.endpoint) as client:
                work(client)
        except BaseException as error:
            self.failures.append(error)

    def _send(self, client: Client) -> None:
        while not self._sending.is_set():
            for topic in TOPICS:
                self.send(client, topic)

    def _read(self, client: Client) -> None:
        for topic in TOPICS:
            client.subscribe(GROUP, topic)
        while not self._reading.is_set():
            for topic in TOPICS:
                self.got[topic] += client.receive(GROUP, topic, polling_s=0.01)


def migration(broker: Broker, *arguments: str) -> Any:
    return json.loads(broker.administer("migration", *arguments, "--json"))


@pytest.mark.slow
def test_there_and_back_and_there_again_while_clients_go_on(broker: Broker) -> None:
    """rmq#8600: after RocketMQ's switch the older messages could not be read; here nobody notices."""
    broker.start(settings={"consume_queue.mode": "file"})
    traffic = Traffic(broker)
    with Client(broker.endpoint) as client:
        for _ in range(BEFORE):
            for topic in TOPICS:
                traffic.send(client, topic)
    broker.stop()
    broker.start()
    assert migration(broker, "status")["phase"] == "file"
    traffic.start()
    walked = []
    for phase in PHASES[1:5]:
        walked.append(migration(broker, "advance", "--wait")["phase"])
        assert migration(broker, "status")["phase"] == phase
    walked += [migration(broker, "rollback")["phase"] for _ in range(4)]
    assert not list(broker.store.glob("consumequeue_rocksdb/*"))
    walked += [migration(broker, "advance", "--wait")["phase"] for _ in PHASES[1:]]
    assert walked == [*PHASES[1:5], *PHASES[3::-1], *PHASES[1:]]
    status = migration(broker, "status")
    assert [step["to"] for step in status["steps"]] == walked
    assert status["report"]["units"] >= BEFORE * len(TOPICS)
    assert status["report"]["differences"] == {}
    until(lambda: not (broker.store / "consumequeue").exists(), "the files are removed")
    traffic.end()
    assert traffic.got == traffic.sent, "no loss, no gap, no reordering"
    stats = broker.get("/metrics")[1]
    assert 'quarry_queue_migration_phase{phase="rocksdb"} 1.0' in stats
    refused = quarry("migration", "rollback", "--admin", broker.admin)
    assert (refused.returncode, "--to file" in refused.stderr) == (2, True)
    broker.stop()
    verified = quarry("verify", str(broker.store), "--json", timeout_s=120)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    broker.start()
    with Client(broker.endpoint) as client:
        client.subscribe("late", TOPICS[0])
        got: list[str] = []
        while received := client.receive("late", TOPICS[0], polling_s=0.1):
            got += received
    assert got == traffic.sent[TOPICS[0]]
    broker.stop()


@pytest.mark.slow
def test_a_broker_that_is_killed_in_any_phase_goes_on_there(broker: Broker) -> None:
    broker.start(settings={"consume_queue.mode": "file", "consume_queue.backfill_rate": "100KiB"})
    traffic = Traffic(broker)

    def send() -> None:
        with Client(broker.endpoint) as client:
            for topic in TOPICS:
                for _ in range(20):
                    traffic.send(client, topic)

    send()
    broker.kill()
    broker.start()
    for phase in PHASES[1:]:
        assert migration(broker, "advance", "--wait")["phase"] == phase
        send()
        broker.kill()
        broker.start()
        assert migration(broker, "status")["phase"] == phase
    with Client(broker.endpoint) as client:
        for topic in TOPICS:
            client.subscribe(GROUP, topic)
            while received := client.receive(GROUP, topic, polling_s=0.1):
                traffic.got[topic] += received
    assert traffic.got == traffic.sent
    broker.stop()
