"""Starts and stops of a broker as load balancers, probes and service managers see them."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from bench import scratch_store
from quarry_mq.kv.options import MIB
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server.process.stop import STATUS_STOP_HUNG
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.settings import Durability, StoreSettings
from tests.e2e.broker import Broker, environment_of, quarry, until
from tests.e2e.clients import Outgoing
from tests.e2e.conftest import QUICK, StartBroker, StartClients

TOPIC: Final = "orders"
RECORDS: Final = 1_000_000
PROBE_TIMEOUT_S: Final = 1.0
"""What Kubernetes gives a probe unless told otherwise."""


def events(logs: Path) -> Iterator[dict[str, Any]]:
    for line in (logs / "broker.err").read_text().splitlines():
        yield json.loads(line)


def test_a_broker_serves_on_while_load_balancers_learn_of_its_end(
    start_broker: StartBroker, start_clients: StartClients, tmp_path: Path
) -> None:
    """And a second signal ends that."""
    broker = start_broker(settings={"network.drain_delay_ms": 60_000})
    producer = start_clients("python", broker.endpoint).producer(TOPIC)
    producer.send([Outgoing(TOPIC, b"before")])
    broker.signal(signal.SIGTERM)
    until(lambda: broker.get("/readyz") == (503, "stopping\n"), "readiness is red")
    assert broker.get("/healthz")[0] == 200
    producer.send([Outgoing(TOPIC, b"meanwhile")])
    broker.signal(signal.SIGTERM)
    assert broker.ended(timeout_s=10) == 0
    assert not StorePaths(broker.store).abort.exists()
    told = [event["event"] for event in events(tmp_path / "broker-0")]
    assert told[-3:] == ["stopping", "stopping without delay", "stopped"]
    producer.kill()


@pytest.mark.slow
def test_a_stop_that_hangs_ends_with_a_status_of_its_own_and_the_next_start_recovers(
    start_broker: StartBroker, start_clients: StartClients, tmp_path: Path
) -> None:
    broker = start_broker(settings={"network.stop_grace_ms": 100, "network.stop_rest_ms": 1_000})
    broker.stop()
    broker.launch(program="tests.e2e.hanging_stop")
    assert broker.ready_or_ended() is None
    clients = start_clients("python", broker.endpoint)
    producer = clients.producer(TOPIC)
    producer.send([Outgoing(TOPIC, b"%d" % number) for number in range(20)])
    began_s = time.monotonic()
    broker.signal(signal.SIGTERM)
    assert broker.ended(timeout_s=60) == STATUS_STOP_HUNG
    assert time.monotonic() - began_s > 1
    assert StorePaths(broker.store).abort.exists()
    *_, last = events(tmp_path / "broker-0")
    assert last["event"] == "the stop takes too long, the process ends: the next start recovers"
    assert last["step"] == "flushing and closing the store"
    producer.kill()
    broker.start()
    consumer = start_clients("python", broker.endpoint).simple_consumer(TOPIC, group="billing", await_s=1)
    assert len(consumer.receive_until(20)) == 20
    consumer.close()
    broker.stop()


# -- starts that take long


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without queues: recovery has to read all of its log."""
    root = tmp_path_factory.mktemp("long") / "store"
    settings = StoreSettings(root=root, durability=Durability.ASYNC, segment_size=64 * MIB)
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
    queues = scratch_store.QUEUES
    store.topics.create(Topic(scratch_store.TOPIC, TopicType.NORMAL, read_queues=queues, write_queues=queues))
    messages = scratch_store.make_messages(Random(5), 4_096, body_sizes=range(20, 21))
    for _ in range(RECORDS // len(messages)):
        store.messages.append(messages)
        store.messages.dispatch(store.messages.appended_up_to)
    store.close()
    shutil.rmtree(root / "consumequeue_rocksdb")
    return root


@pytest.fixture
def recovering(long_log: Path, tmp_path: Path) -> Iterator[Broker]:
    """A broker that was launched on a copy of it, some way into its recovery."""
    shutil.copytree(long_log, tmp_path / "store")
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment_of(QUICK))
    broker.launch()
    until(lambda: progress(broker) >= 1, "it recovers")
    yield broker
    broker.close()


def progress(broker: Broker) -> int:
    """How far its recovery is in percent; -1 when it does not recover."""
    found = re.search(r"recovering, (\d+) %", page(broker, "/readyz")[1])
    return int(found[1]) if found else -1


def page(broker: Broker, path: str) -> tuple[int, str]:
    try:
        return broker.get(path)
    except (urllib.error.URLError, ConnectionError):
        return 0, ""


@pytest.mark.slow
def test_no_probe_ends_a_broker_that_recovers(recovering: Broker) -> None:
    """rmq#9587: a liveness probe that fails meanwhile starts the recovery over, for ever."""
    seen: list[int] = []
    slowest_s = 0.0
    while (percent := progress(recovering)) >= 0:
        seen.append(percent)
        asked_s = time.monotonic()
        assert recovering.get("/healthz") == (200, "live\n")
        slowest_s = max(slowest_s, time.monotonic() - asked_s)
    until(lambda: page(recovering, "/readyz") == (200, "ready\n"), "it is ready")
    assert seen == sorted(seen)
    assert len(set(seen)) > 5, f"progress is visible: {seen}"
    assert slowest_s < PROBE_TIMEOUT_S
    recovering.stop()


@pytest.mark.slow
def test_a_broker_that_recovers_can_be_stopped_and_goes_on_at_the_next_start(
    recovering: Broker, tmp_path: Path
) -> None:
    assert progress(recovering) < 50, "it is told to stop in time"
    began_s = time.monotonic()
    recovering.stop()
    assert time.monotonic() - began_s < 60
    assert "stopped before the store was open" in [event["event"] for event in events(tmp_path / "logs")]
    recovering.start()
    recovering.stop()
    done = quarry("verify", str(recovering.store), timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
