"""Dry runs of deletions: what would go is told, nothing goes, and what is not there is refused as by the command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.messaging import MessagingClient
from quarry_mq.client.requests import Subscription
from tests.cli.online_runner import Quarry
from tests.e2e.broker import SMALL_SEGMENTS, Broker
from tests.verify.stores import fill


@pytest.fixture(scope="module")
def quarry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quarry]:
    directory = tmp_path_factory.mktemp("dry")
    broker = Broker(directory / "store", logs=directory / "logs", environment=SMALL_SEGMENTS)
    try:
        yield Quarry(broker.start())
        broker.stop()
    finally:
        broker.close()


def test_topics_and_groups(quarry: Quarry) -> None:
    quarry.run("topic", "create", "orders", "--queues", 2)
    quarry.run("produce", "orders", "x", "--count", 5)
    quarry.run("consume", "orders", "--group", "billing", "--limit", 2)
    in_orders = {"topics": ["orders"], "topicsOnline": 0, "waiting": 3, "inFlight": 0}
    assert quarry.row("group", "delete", "billing", "--dry-run") == {"dryRun": True, "group": "billing", **in_orders}
    told = quarry.row("group", "forget", "billing", "--topic", "orders", "--dry-run")
    assert told == {"dryRun": True, "group": "billing", **in_orders}
    with MessagingClient(Endpoint(quarry.broker.endpoint), subscription=Subscription(group="billing", topic="orders")):
        assert quarry.row("topic", "delete", "orders", "--dry-run") == {
            "dryRun": True,
            "topic": "orders",
            "queues": 2,
            "messages": 5,
            "groups": ["billing"],
            "groupsOnline": 1,
        }
    assert quarry.row("topic", "show", "orders")["name"] == "orders"
    assert quarry.row("lag", "billing", "--topic", "orders")["messages"] == 3
    quarry.run("group", "create", "idle")
    assert quarry.row("group", "delete", "idle", "--dry-run")["topics"] == []


def test_lite_topics_and_users(quarry: Quarry) -> None:
    quarry.run("topic", "create", "sessions", "--type", "lite")
    stdin = b'{"body": "hello", "liteTopic": "one"}'
    quarry.run("produce", "sessions", "--file", "-", "--json-lines", stdin=stdin)
    told = quarry.row("lite", "delete", "sessions", "one", "--dry-run")
    assert (told["messages"], told["subscribers"]) == (1, 0)
    assert quarry.row("lite", "show", "sessions", "one")["maxOffset"] == 1


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "delete", "ghost"),
        ("group", "delete", "ghost"),
        ("group", "forget", "ghost", "--topic", "orders"),
        ("lite", "delete", "ghost", "one"),
        ("user", "delete", "ghost"),
    ],
)
def test_what_is_not_there_is_refused_as_by_the_command(quarry: Quarry, words: tuple[str, ...]) -> None:
    assert "ghost" in quarry.run(*words, "--dry-run", status=2)


def test_a_restore_is_checked_and_not_made(tmp_path: Path) -> None:
    offline = Quarry(None)
    fill(tmp_path / "store")
    made = offline.row("backup", tmp_path / "store", tmp_path / "backups")
    told = offline.row("restore", tmp_path / "backups", tmp_path / "new", "--dry-run")
    assert (told["files"], told["bytes"], told["logEnd"]) == (made["files"], made["bytes"], made["logEnd"])
    assert not (tmp_path / "new").exists()
    assert "not empty" in offline.run("restore", tmp_path / "backups", tmp_path / "store", "--dry-run", status=2)
    segment = next(Path(made["backup"]).rglob("commitlog/0*"))
    segment.chmod(0o600)
    with segment.open("r+b") as file:
        file.write(b"\xff")
    result = offline.result("restore", tmp_path / "backups", tmp_path / "new", "--dry-run")
    assert (result.exit_code, segment.name in result.stderr) == (1, True)
