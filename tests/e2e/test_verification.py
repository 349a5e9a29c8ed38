"""`quarry verification`: the store of a live broker is verified while clients send, and the verdict is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from quarry_mq.kv import KeyRange
from quarry_mq.store.consumequeue import open_consume_queue_engine
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY
from tests.e2e.broker import Broker, environment_of, quarry
from tests.hostile.caller import Client

SETTINGS = {
    "store.segment_size": "1MiB",
    "store.durability": "async",
    "limits.body_size": "256KiB",
    "topics.default_queues": 1,
    "delivery.new_group_start": "earliest",
    "delivery.polling_min_ms": 0,
}
TOPICS = ("orders", "bills")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment_of(SETTINGS))
    yield broker
    broker.close()


def verification(broker: Broker, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = quarry("verification", *arguments, "--admin", broker.admin, "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def send(client: Client, count: int) -> None:
    for number in range(count):
        for topic in TOPICS:
            client.send(topic, f"{topic}-{number}", 500)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rocksdb", "file", "double_write"])
def test_a_live_store_agrees_while_clients_send(broker: Broker, mode: str) -> None:
    """rocketmq-dashboard#4451: begun, polled, and read again after a restart."""
    broker.start(settings={"consume_queue.mode": mode})
    ended = Event()

    def go_on() -> None:
        with Client(broker.endpoint) as client:
            while not ended.is_set():
                send(client, 1)

    with Client(broker.endpoint) as client:
        send(client, 200)
    sender = Thread(target=go_on)
    sender.start()
    try:
        found = verification(broker, "begin", "--wait", "--busy", "100")
    finally:
        ended.set()
        sender.join()
    assert (found["state"], found["first"], found["remark"]) == ("agree", [], None)
    checked = {each["check"]: each["checked"] for each in found["checks"]}
    assert checked["log"] >= 400
    assert ("records" in checked, "fileRecords" in checked) == (mode != "file", mode != "rocksdb")
    assert not list((broker.store / "backup").glob("*")), "the point is gone"
    broker.stop()
    broker.start()
    assert verification(broker, "status")["id"] == found["id"]
    assert verification(broker, "list")["state"] == "agree"


def test_what_differs_is_named_and_remembered(broker: Broker) -> None:
    broker.start()
    with Client(broker.endpoint) as client:
        send(client, 20)
    broker.stop()
    engine = open_consume_queue_engine(broker.store / "consumequeue_rocksdb", create=False)
    entries = engine.family(ENTRIES_FAMILY)
    key, _ = entries.scan(KeyRange(b"", None), limit=5)[-1]
    batch = engine.batch()
    batch.delete(entries, key)
    engine.write(batch)
    engine.close()
    broker.start()
    found = verification(broker, "begin", "--wait", code=1)
    assert found["state"] == "differ"
    assert [each["differences"] for each in found["checks"] if each["check"] == "records"] == [1]
    assert "bills/0@4" in found["first"][0]["text"]
    assert verification(broker, "status", str(found["id"]), code=1)["first"] == found["first"]


def test_there_has_to_be_one(broker: Broker) -> None:
    broker.start()
    for command in ("status", "cancel"):
        done = quarry("verification", command, "--admin", broker.admin)
        assert done.returncode == 2
        assert "there is no verification" in done.stderr
