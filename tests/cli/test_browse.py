"""`quarry browse`, `storage`, `topic spans`, `pending` and `lite backlog`, against a broker in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.online import storage
from store.clock import ManualClock
from store.disk import PosixDisk
from store.metadata import Group, Topic, TopicType
from store.metadata.lite import light_queue_name
from store.metadata.lite_attributes import BIND_TOPIC
from store.opening import open_store
from store.settings import StoreSettings
from tests.e2e.broker import PROJECT, Broker
from tests.store.assembly import message

START_MS = ManualClock().wall_ms()
MODULE = import_module("cli.online.browse")
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
    store.groups.create(Group("readers", attributes={BIND_TOPIC: "P"}))
    for number in range(12):
        body = f"order {number}".encode()
        store.messages.append([message("orders", number % 3, body, TAGS="ab"[number % 2], size=str(number))])
        clock.advance(1)
    for name in ("alice", "alice", "bob"):
        store.messages.append([message("P", INNER_MULTI_DISPATCH=light_queue_name("P", name))])
    store.messages.dispatch(store.messages.flush())
    store.close()


def run(broker: Broker, *words: object, status: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, words), "--admin", broker.admin])
    assert result.exit_code == status, result.output
    return result.stderr if status == 2 else result.stdout


def rows(broker: Broker, *words: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(broker, *words, "--json").splitlines()]


def bodies(broker: Broker, *words: object) -> list[int]:
    return [int(each["body"].removeprefix("order ")) for each in rows(broker, "browse", "orders", *words)]


def at(second: int) -> str:
    return datetime.fromtimestamp(START_MS / 1000 + second, UTC).isoformat()


def test_messages_are_browsed_from_any_place(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "PAGE_ROWS", 5)
    everything = list(range(12))
    assert bodies(broker) == everything[::-1]
    assert bodies(broker, "--from", "oldest") == everything
    assert bodies(broker, "--limit", 7) == everything[:4:-1]
    assert bodies(broker, "--from", at(4)) == everything[4:]
    assert bodies(broker, "--from", at(4), "--backwards") == everything[4::-1]
    assert bodies(broker, "--queue", 1) == [10, 7, 4, 1]
    assert bodies(broker, "--queue", 1, "--from", 2) == [7, 10]
    assert bodies(broker, "--queue", 1, "--from", 2, "--backwards") == [7, 4, 1]
    assert [each["topic"] for each in rows(broker, "browse", "P", "--lite", "alice")] == ["P", "P"]
    line, body = run(broker, "browse", "orders", "--limit", 1).splitlines()
    assert "orders/2@3" in line
    assert body == "order 11"


def test_the_broker_filters(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "PAGE_ROWS", 2)
    assert bodies(broker, "--filter", "a || c") == [10, 8, 6, 4, 2, 0]
    assert bodies(broker, "--sql", "size > 7 AND TAGS = 'b'") == [11, 9]
    assert bodies(broker, "--contains", "er 1") == [11, 10, 1]
    assert run(broker, "browse", "orders", "--filter", "c", status=1) == ""


def test_refusals_are_one_line(broker: Broker) -> None:
    assert run(broker, "browse", "nothing", status=2).splitlines() == [
        "topic: no topic nothing",
        "hint: `quarry topic create nothing` makes it",
    ]
    assert "offset: queue or lite_topic" in run(broker, "browse", "orders", "--from", "3", status=2)
    assert "filter.expression" in run(broker, "browse", "orders", "--sql", "a >", status=2)
    for words in (("--from", "soon"), ("--sql", "a = 1", "--filter", "b"), ("--follow", "--from", "oldest")):
        assert "Invalid value" in run(broker, "browse", "orders", *words, status=2)


def test_messages_are_followed_until_the_command_is_told_to_end(broker: Broker) -> None:
    words = ["browse", "orders", "--follow", "--filter", "t", "--json", "--admin", broker.admin]
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", *words], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            send(broker, process.stdout)
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


def test_storage_spans_pending_and_backlog_are_shown(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = rows(broker, "storage")
    assert (found["files"], found["logBegin"], found["retentionHours"]) == (1, 0, 72.0)
    assert found["oldestStoredAt"] == datetime.fromtimestamp(START_MS // 1000, UTC).isoformat().replace("+00:00", "Z")
    assert found["expiresNext"] is None
    assert found["RocksDB"] >= 0
    (file,) = rows(broker, "storage", "--files")
    assert (file["name"], file["firstStoredAt"]) == ("0" * 20, found["oldestStoredAt"])
    families = {(each["database"], each["family"]) for each in rows(broker, "storage", "--rocksdb")}
    assert ("queues", "offset") in families or ("queues", "default") in families
    assert "diskTotal" in run(broker, "storage")

    monkeypatch.setattr(storage, "PAGE_ROWS", 2)
    spans = rows(broker, "topic", "spans", "orders")
    assert [(each["queue"], each["minOffset"]) for each in spans] == [(0, 0), (1, 0), (2, 0)]
    assert all(each["maxOffset"] >= 4 for each in spans)
    assert len(rows(broker, "topic", "spans", "orders", "--limit", 1)) == 1

    (pending,) = rows(broker, "pending")
    assert (pending["dueInAnHour"], pending["dueOf"], pending["lateMs"]) == (0, 0, 0)
    assert rows(broker, "pending", "--list") == []

    assert rows(broker, "lite", "backlog", "P", "--group", "readers") == []
    assert rows(broker, "lite", "backlog", "P", "--group", "readers", "--clients") == []
    assert "group: no group nobody\n" in run(broker, "lite", "backlog", "P", "--group", "nobody", status=2)
