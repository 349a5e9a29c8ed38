"""`quarry browse`, `storage`, `topic spans`, `pending` and `lite backlog`, against a broker in a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quarry_mq.cli.main import app
from quarry_mq.cli.online.maintenance import storage
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.lite_attributes import BIND_TOPIC
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.metadata import Group, Topic, TopicType
from quarry_mq.store.metadata.lite import light_queue_name
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.settings import StoreSettings
from tests.cli.online_runner import Quarry
from tests.conformance.client import Client, message, producer_settings
from tests.conformance.lite import GROUP, PARENT, LiteClient
from tests.conformance.lite import send as send_lite
from tests.e2e.broker import PROJECT, Broker
from tests.store.assembly import message as record

START_MS = ManualClock().wall_ms()
MODULE = import_module("quarry_mq.cli.online.messages.browse")
"""Its command has the same name."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One whose topic `orders` has twelve messages, a second apart, and whose topic `P` has two lite topics."""
    directory = tmp_path_factory.mktemp("browse")
    fill(directory / "store")
    broker = Broker(directory / "store", logs=directory / "logs")
    try:
        yield broker.start()
        broker.stop()
    finally:
        broker.close()


def fill(root: Path) -> None:
    clock = ManualClock()
    settings = StoreSettings(root=root, segment_size=16 * 1024 * 1024)
    store = open_store(settings, disk=PosixDisk(), clock=clock, report=lambda _: None)
    store.topics.create(Topic("orders", TopicType.NORMAL, 3, 3))
    store.topics.create(Topic("P", TopicType.LITE, 1, 1))
    store.topics.create(Topic("delayed", TopicType.DELAY, 1, 1))
    store.topics.create(Topic("halves", TopicType.TRANSACTION, 1, 1))
    store.topics.create(Topic(PARENT, TopicType.LITE, 1, 1))
    store.groups.create(Group(GROUP, attributes={BIND_TOPIC: PARENT}))
    for number in range(12):
        body = f"order {number}".encode()
        store.messages.append([record("orders", number % 3, body, TAGS="ab"[number % 2], size=str(number))])
        clock.advance(1)
    for name in ("alice", "alice", "bob"):
        store.messages.append([record("P", INNER_MULTI_DISPATCH=light_queue_name("P", name))])
    store.messages.dispatch(store.messages.flush())
    store.close()


@pytest.fixture
def quarry(broker: Broker) -> Quarry:
    return Quarry(broker)


def bodies(quarry: Quarry, *words: object) -> list[int]:
    return [int(each["body"].removeprefix("order ")) for each in quarry.rows("browse", "orders", *words)]


def at(second: int) -> str:
    return datetime.fromtimestamp(START_MS / 1000 + second, UTC).isoformat()


def test_messages_are_browsed_from_any_place(quarry: Quarry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "PAGE_ROWS", 5)
    everything = list(range(12))
    assert bodies(quarry) == everything[::-1]
    assert bodies(quarry, "--from", "earliest") == everything
    assert bodies(quarry, "--limit", 7) == everything[:4:-1]
    assert bodies(quarry, "--from", at(4)) == everything[4:]
    assert bodies(quarry, "--from", at(4), "--backwards") == everything[4::-1]
    assert bodies(quarry, "--queue", 1) == [10, 7, 4, 1]
    assert bodies(quarry, "--queue", 1, "--from", 2) == [7, 10]
    assert bodies(quarry, "--queue", 1, "--from", 2, "--backwards") == [7, 4, 1]
    assert [each["topic"] for each in quarry.rows("browse", "P", "--lite-topic", "alice")] == ["P", "P"]
    line, body = quarry.run("browse", "orders", "--limit", 1).splitlines()
    assert "orders/2@3" in line
    assert body == "order 11"


def test_the_broker_filters(quarry: Quarry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "PAGE_ROWS", 2)
    assert bodies(quarry, "--tag", "a || c") == [10, 8, 6, 4, 2, 0]
    assert bodies(quarry, "--sql", "size > 7 AND TAGS = 'b'") == [11, 9]
    assert bodies(quarry, "--contains", "er 1") == [11, 10, 1]
    assert quarry.run("browse", "orders", "--tag", "c", status=1) == "no messages\n"


def test_refusals_are_one_line(quarry: Quarry) -> None:
    assert quarry.run("browse", "nothing", status=2).strip() == "topic: no topic nothing"
    assert quarry.hint("browse", "nothing") == "`quarry topic create nothing` creates it"
    assert "offset: queue or lite_topic" in quarry.run("browse", "orders", "--from", "3", status=2)
    assert "filter.expression" in quarry.run("browse", "orders", "--sql", "a >", status=2)
    for words in (("--from", "soon"), ("--sql", "a = 1", "--tag", "b"), ("--follow", "--from", "earliest")):
        assert "Invalid value" in quarry.run("browse", "orders", *words, status=2)


def test_messages_are_followed_until_the_command_is_told_to_end(quarry: Quarry) -> None:
    words = ["browse", "orders", "--follow", "--tag", "t", "--json", "--admin", quarry.broker.admin]
    with subprocess.Popen(
        [sys.executable, "-m", "quarry_mq.cli.main", *words], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            send(quarry.broker, process.stdout)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


def send(broker: Broker, follower: Any) -> None:
    """Until one arrives: nobody knows when it begins to look."""
    runner = CliRunner()
    arrived: list[dict[str, Any]] = []
    reading = threading.Thread(target=lambda: arrived.append(json.loads(follower.readline())), daemon=True)
    reading.start()
    for _ in range(100):
        for tag in ("other", "t"):
            words = ["produce", "orders", f"with {tag}", "--tag", tag, "--endpoint", broker.endpoint]
            assert runner.invoke(app, words).exit_code == 0
        reading.join(0.2)
        if arrived:
            break
    assert [each["body"] for each in arrived] == ["with t"]


def test_storage_and_spans_are_shown(quarry: Quarry, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = quarry.rows("storage")
    assert (found["files"], found["logBegin"], found["retentionHours"]) == (1, 0, 72.0)
    assert found["oldestStoredAt"] == datetime.fromtimestamp(START_MS // 1000, UTC).isoformat().replace("+00:00", "Z")
    assert found["expiresNext"] is None
    assert found["parts"]["RocksDB"] >= 0
    (file,) = quarry.rows("storage", "--files")
    assert (file["name"], file["firstStoredAt"]) == ("0" * 20, found["oldestStoredAt"])
    families = {(each["database"], each["family"]) for each in quarry.rows("storage", "--rocksdb")}
    assert ("queues", "offset") in families or ("queues", "default") in families
    text = quarry.run("storage")
    assert "disk total" in text
    assert "\nRocksDB " in text

    monkeypatch.setattr(storage, "PAGE_ROWS", 2)
    spans = quarry.rows("topic", "spans", "orders")
    assert [(each["queue"], each["minOffset"]) for each in spans] == [(0, 0), (1, 0), (2, 0)]
    assert all(each["maxOffset"] >= 4 for each in spans)
    assert len(quarry.rows("topic", "spans", "orders", "--limit", 1)) == 1


def test_what_waits_is_shown(quarry: Quarry) -> None:
    (pending,) = quarry.rows("pending")
    assert (pending["dueInAnHour"], pending["dueOf"], pending["lateMs"]) == (0, 0, 0)
    assert quarry.rows("pending", "--list") == []
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)

    async def send_both() -> None:
        async with Client(quarry.broker.endpoint) as client:
            await client.declare(producer_settings("halves"))
            delayed = message("delayed", message_type=definition.DELAY)
            delayed.system_properties.delivery_timestamp.FromDatetime(due)
            await client.sent(delayed)
            await client.sent(message("halves", message_type=definition.TRANSACTION))

    asyncio.run(send_both())
    timer, half = quarry.rows("pending", "--list")
    assert (timer["kind"], timer["topic"], timer["checks"]) == ("timer", "delayed", None)
    assert abs(datetime.fromisoformat(timer["at"]) - due) <= timedelta(seconds=1)
    assert (half["kind"], half["topic"], half["checks"]) == ("transaction", "halves", 0)
    assert half["storedAt"] < half["at"]
    assert quarry.rows("pending")[0]["dueInADay"] == 1


def test_the_backlog_of_lite_topics_is_shown(quarry: Quarry) -> None:
    words = ("lite", "backlog", PARENT, "--group", GROUP)
    assert quarry.rows(*words) == []
    assert quarry.run("lite", "backlog", PARENT, "--group", "nobody", status=2).strip() == "group: no group nobody"

    async def backlog() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        async with LiteClient(quarry.broker.endpoint) as client:
            await client.start()
            await client.add("alice", "bob")
            for lite_topic, count in (("alice", 3), ("bob", 1)):
                await send_lite(client, lite_topic, *[b"hello"] * count)
            await client.got(count=1)
            lite_topics = await asyncio.to_thread(quarry.rows, *words)
            return lite_topics, await asyncio.to_thread(quarry.rows, *words, "--clients")

    lite_topics, clients = asyncio.run(backlog())
    assert sum(each["ready"] for each in lite_topics) == 3, "one was given to the client"
    assert {each["name"] for each in lite_topics} <= {"alice", "bob"}
    assert [(each["subscriptions"], each["wantsAll"]) for each in clients] == [(2, False)]
