"""The commands for a live broker, against one in a process of its own."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from pathlib import Path

import pytest

from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.messaging import MessagingClient
from quarry_mq.client.requests import Subscription
from tests.cli.online_runner import Quarry
from tests.cli.said import hint_in
from tests.e2e.broker import PROJECT, SMALL_SEGMENTS, Broker, until

_NUMBERS = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("online")
    broker = Broker(directory / "store", logs=directory / "logs", environment=SMALL_SEGMENTS)
    try:
        yield broker.start()
        broker.stop()
    finally:
        broker.close()


@pytest.fixture
def quarry(broker: Broker) -> Quarry:
    return Quarry(broker)


@pytest.fixture
def topic(quarry: Quarry) -> str:
    """A topic of its own, with two queues."""
    name = f"orders-{next(_NUMBERS)}"
    quarry.run("topic", "create", name, "--queues", 2)
    return name


# Topics.


def test_a_topics_life(quarry: Quarry) -> None:
    made = quarry.row("topic", "create", "life", "--type", "fifo", "--queues", 3, "--attribute", "owner=shop")
    assert made == {
        "name": "life",
        "type": "fifo",
        "readQueues": 3,
        "writeQueues": 3,
        "permission": "read-write",
        "attributes": {"owner": "shop"},
    }
    changed = quarry.row("topic", "update", "life", "--permission", "read", "--queues", 4, "--attribute", "owner=")
    assert changed == {**made, "permission": "read", "readQueues": 4, "writeQueues": 4, "attributes": {}}
    queues = [{"queueId": number, "minOffset": 0, "maxOffset": 0} for number in range(4)]
    assert quarry.row("topic", "show", "life") == {**changed, "queues": queues}
    assert changed in quarry.rows("topic", "list")
    assert quarry.rows("topic", "list", "--prefix", "lif") == [changed]
    assert quarry.row("topic", "delete", "--yes", "life") == {"deleted": "life"}
    assert quarry.rows("topic", "list", "--prefix", "lif") == []


def test_topics_for_people(quarry: Quarry, topic: str) -> None:
    shown = quarry.run("topic", "show", topic)
    assert f"name          {topic}\n" in shown
    assert "permission    read-write\n" in shown
    listed = quarry.run("topic", "list", "--prefix", topic).splitlines()
    assert listed[0].split() == ["NAME", "TYPE", "READ", "QUEUES", "WRITE", "QUEUES", "PERMISSION"]
    assert listed[1].split() == [topic, "normal", "2", "2", "read-write"]


def test_refusals_are_one_line_and_exit_with_two(quarry: Quarry, topic: str) -> None:
    assert quarry.run("topic", "show", "ghost", status=2) == "no topic ghost\n"
    assert quarry.run("topic", "create", topic, status=2) == f"topic {topic} exists\n"
    assert quarry.run("group", "show", "ghost", status=2) == "no group ghost\n"
    for refused in (
        quarry.run("topic", "create", "two words", status=2),
        quarry.run("produce", "two words", "body", status=2),
        quarry.run("consume", "two words", status=2),
    ):
        assert "two words" in refused
        assert refused.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("topic", "create", "x", "--type", "odd"), "odd"),
        (("topic", "create", "x", "--queues", "0"), "--queues"),
        (("topic", "create", "x", "--attribute", "novalue"), "novalue"),
        (("group", "create", "x", "--retry-delays", "1,two"), "1,two"),
        (("group", "reset-offset", "--yes", "g", "--topic", "t", "--to", "middle"), "middle"),
        (("produce", "x", "y", "--property", "=v"), "=v"),
        (("produce", "x", "y", "--count", "0"), "--count"),
    ],
)
def test_wrong_options_are_named(quarry: Quarry, arguments: tuple[str, ...], word: str) -> None:
    assert word in quarry.run(*arguments, status=2)


def test_a_broker_that_is_not_there_is_named() -> None:
    for arguments in (
        ["topic", "list", "--admin"],
        ["produce", "t", "x", "--endpoint"],
        ["consume", "t", "--endpoint"],
        ["migration", "status", "--admin"],
        ["verification", "begin", "--admin"],
        ["job", "cancel", "1", "--admin"],
    ):
        result = Quarry(None).result(*arguments, "127.0.0.1:1")
        assert result.exit_code == 2
        assert result.stderr.startswith("127.0.0.1:1: no answer from a broker")
        assert "quarry serve" in hint_in(result.stderr)


def test_an_address_without_a_port_is_refused() -> None:
    result = Quarry(None).result("produce", "t", "x", "--endpoint", "localhost")
    assert result.exit_code == 2
    assert result.stderr.startswith("localhost: ")


# Groups.


def test_a_groups_life(quarry: Quarry) -> None:
    made = quarry.row("group", "create", "life", "--fifo", "--max-attempts", 3, "--retry-delays", "1, 5,60")
    assert made == {
        "name": "life",
        "fifo": True,
        "maxAttempts": 3,
        "enabled": True,
        "backoff": {"delaysMs": [1_000, 5_000, 60_000]},
        "attributes": {},
    }
    changed = quarry.row("group", "update", "life", "--disable", "--no-fifo")
    assert changed == {**made, "fifo": False, "enabled": False}
    assert quarry.row("group", "show", "life") == changed
    assert quarry.rows("group", "list", "--prefix", "life") == [changed]
    assert "life" in quarry.run("group", "list")
    quarry.run("group", "delete", "--yes", "life")
    assert quarry.rows("group", "list", "--prefix", "life") == []


def test_lite_topics_and_their_groups_are_made_by_options(quarry: Quarry) -> None:
    made = quarry.row("topic", "create", "sessions", "--type", "lite", "--lite-topic-ttl-minutes", 60)
    assert (made["type"], made["attributes"]) == ("lite", {"lite.topic.expiration": "60"})
    quarry.run("topic", "update", "sessions", "--lite-topic-ttl-minutes", -1)
    assert quarry.row("topic", "show", "sessions")["attributes"] == {"lite.topic.expiration": "-1"}

    options = ("--lite-parent", "sessions", "--lite-model", "exclusive", "--lite-quota", 5)
    quarry.run("group", "create", "agents", *options)
    attributes = {"lite.bind.topic": "sessions", "lite.sub.model": "Exclusive", "lite.sub.client.quota": "5"}
    assert quarry.row("group", "show", "agents")["attributes"] == attributes
    quarry.run("group", "update", "agents", "--lite-model", "shared")
    assert quarry.row("group", "show", "agents")["attributes"] == {**attributes, "lite.sub.model": "Shared"}
    assert "lite.bind.topic is sessions" in quarry.run("group", "update", "agents", "--lite-parent", "more", status=2)
    said_twice = ("--lite-quota", 5, "--attribute", "lite.sub.client.quota=6")
    assert "--lite-quota" in quarry.run("group", "update", "agents", *said_twice, status=2)
    quarry.run("group", "delete", "--yes", "agents")
    quarry.run("topic", "delete", "--yes", "sessions")


# Messages.


def test_a_message_goes_round_whole(quarry: Quarry, topic: str) -> None:
    sent = quarry.row(
        "produce", topic, "grüße", "--tag", "paid", "--key", "k1", "--key", "k2", "--property", "colour=blue"
    )
    assert sent["topic"] == topic
    received = quarry.row("consume", topic, "--group", f"{topic}-readers", "--limit", 1)
    assert received["messageId"] == sent["messageId"]
    assert received["queueOffset"] == sent["queueOffset"] == 0
    assert (received["body"], received["tag"], received["keys"]) == ("grüße", "paid", ["k1", "k2"])
    assert received["properties"] == {"colour": "blue"}
    assert received["deliveryAttempt"] == 1
    assert received["bornTimestamp"] <= received["storeTimestamp"]


def test_a_body_that_is_no_text_is_read_from_standard_input(quarry: Quarry, topic: str) -> None:
    quarry.run("produce", topic, stdin=b"\xff\x00\xfe")
    received = quarry.row("consume", topic, "--group", f"{topic}-readers", "--limit", 1)
    assert base64.b64decode(received["bodyBase64"]) == b"\xff\x00\xfe"
    assert "body" not in received


def test_many_messages_are_consumed_until_none_comes(quarry: Quarry, topic: str) -> None:
    sent = [row["messageId"] for row in quarry.rows("produce", topic, "x", "--count", 50)]
    assert len(set(sent)) == 50
    group = ("--group", f"{topic}-readers", "--timeout", 0.1)
    assert {row["messageId"] for row in quarry.rows("consume", topic, *group)} == set(sent)
    assert quarry.rows("consume", topic, *group) == []


def test_without_acknowledgement_messages_come_again(quarry: Quarry, topic: str) -> None:
    quarry.run("produce", topic, "again")
    group = ("--group", f"{topic}-readers", "--limit", 1, "--timeout", 10)
    first = quarry.row("consume", topic, *group, "--no-ack", "--invisible", 1)
    second = quarry.row("consume", topic, *group)
    assert second["messageId"] == first["messageId"]
    assert (first["deliveryAttempt"], second["deliveryAttempt"]) == (1, 2)


def test_tags_filter(quarry: Quarry, topic: str) -> None:
    for tag in ("a", "b", "c"):
        quarry.run("produce", topic, tag, "--tag", tag)
    rows = quarry.rows("consume", topic, "--group", f"{topic}-readers", "--tag", "a || c", "--timeout", 0.1)
    assert {row["body"] for row in rows} == {"a", "c"}


def test_a_group_goes_back_and_on(quarry: Quarry, topic: str) -> None:
    quarry.run("produce", topic, "x", "--count", 4)
    group = f"{topic}-readers"
    assert len(quarry.rows("consume", topic, "--group", group, "--timeout", 0.1)) == 4
    told = quarry.rows("group", "reset-offset", group, "--topic", topic, "--to", "earliest", "--dry-run")
    assert told == [{"queueId": number, "previousOffset": 2, "newOffset": 0} for number in (0, 1)]
    assert quarry.rows("consume", topic, "--group", group, "--timeout", 0.1) == []
    quarry.run("group", "reset-offset", "--yes", group, "--topic", topic, "--to", "1", "--queue", 1)
    assert len(quarry.rows("consume", topic, "--group", group, "--timeout", 0.1)) == 1
    quarry.run("group", "reset-offset", "--yes", group, "--topic", topic, "--to", "earliest")
    assert len(quarry.rows("consume", topic, "--group", group, "--timeout", 0.1)) == 4


def test_a_group_goes_back_to_a_time(quarry: Quarry, topic: str) -> None:
    quarry.run("produce", topic, "x", "--count", 4)
    group = f"{topic}-readers"
    [*_, last] = quarry.rows("consume", topic, "--group", group, "--timeout", 0.1)
    stored = datetime.fromtimestamp(last["storeTimestamp"] / 1000, UTC)

    def told(time: datetime) -> list[int]:
        reset = ("group", "reset-offset", group, "--topic", topic, "--dry-run", "--to", time.isoformat())
        return [row["newOffset"] for row in quarry.rows(*reset)]

    assert told(stored - timedelta(hours=1)) == [0, 0]
    assert told(stored + timedelta(seconds=1)) == [2, 2]
    assert told((stored - timedelta(hours=1)).astimezone(timezone(timedelta(hours=5)))) == [0, 0]
    assert told((stored + timedelta(hours=1)).astimezone().replace(tzinfo=None)) == [2, 2], "the local clock's"


def test_queues_of_a_live_broker_are_counted(quarry: Quarry, topic: str) -> None:
    before = quarry.row("queues", "--summary", "--admin", quarry.broker.admin)
    quarry.run("produce", topic, "x", "--count", 40)
    after = quarry.row("queues", "--summary", "--admin", quarry.broker.admin, "--limit", 1)
    ordinary = [each["kinds"]["ordinary"] for each in (before, after)]
    assert [ordinary[1][name] - ordinary[0][name] for name in ("queues", "entries", "empty")] == [2, 40, 0]
    assert after["largest"][0]["entries"] >= 20
    assert set(after["disk"]) == {"rocksdb"}
    assert after["rocksdb"]["default.memtable_bytes"] > 0
    text = quarry.run("queues", "--summary", "--admin", quarry.broker.admin)
    assert f"{ordinary[1]['queues']:,}" in text
    assert "pending compaction" in text


@pytest.mark.parametrize(
    "words", [("--summary",), (), ("--admin", "127.0.0.1:1"), ("--admin", "127.0.0.1:1", "--summary", "STORE")]
)
def test_what_to_count_must_be_said(quarry: Quarry, words: tuple[str, ...]) -> None:
    assert "--admin" in quarry.run("queues", *words, status=2)


def test_people_see_the_message_and_its_labels(quarry: Quarry, topic: str) -> None:
    quarry.run("produce", topic, "hello", "--tag", "paid", "--key", "k", "--property", "a=b")
    head, body = quarry.run("consume", topic, "--group", f"{topic}-readers", "--limit", 1).splitlines()
    assert body == "hello"
    assert "/0@0" in head or "/1@0" in head
    assert head.endswith("tag=paid  keys=k  a=b")


def test_tail_shows_messages_and_leaves_no_group(quarry: Quarry, topic: str) -> None:
    quarry.run("produce", topic, "x", "--count", 3)
    rows = quarry.rows("tail", topic, "--from", "earliest", "--limit", 3)
    assert [row["body"] for row in rows] == ["x"] * 3
    assert quarry.rows("group", "list", "--prefix", "quarry-tail-") == []
    # Nothing is taken away from groups that read the topic.
    assert len(quarry.rows("consume", topic, "--group", f"{topic}-readers", "--timeout", 0.1)) == 3


_HEED_INTERRUPTS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from quarry_mq.cli.main import main
main()
"""
"""Tests that run in the background of a shell inherit that SIGINT is ignored.

Not done with `preexec_fn`: a process that is forked while grpc runs here may end in it, grpc#43055.
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tail_that_is_told_to_stop_leaves_no_group(quarry: Quarry, topic: str, number: signal.Signals) -> None:
    """Also while it waits for messages, as it mostly does."""
    command = [sys.executable, "-c", _HEED_INTERRUPTS, "tail", topic, "--from", "earliest"]
    command += ["--admin", quarry.broker.admin, "--endpoint", quarry.broker.endpoint]
    quarry.run("produce", topic, "shown")
    with subprocess.Popen(
        command,
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as tail:
        assert tail.stdout is not None
        assert topic in tail.stdout.readline()
        assert tail.stdout.readline() == "shown\n"
        until(lambda: quarry.broker.stat("quarry_waiting_polls") == 1, "it waits")
        tail.send_signal(number)
        try:
            out, words = tail.communicate(timeout=30)
        finally:
            tail.kill()
    assert (tail.returncode, out, words) == (0, "", "")
    assert quarry.rows("group", "list", "--prefix", "quarry-tail-") == []


def test_tail_of_no_topic_makes_none(quarry: Quarry) -> None:
    """rmq#9792: looking at something must not create it."""
    assert quarry.run("tail", "ghost-tail", status=2) == "no topic ghost-tail\n"
    assert quarry.rows("topic", "list", "--prefix", "ghost-tail") == []
    assert quarry.rows("group", "list", "--prefix", "quarry-tail-") == []


def test_commands_leave_no_client_after(quarry: Quarry, topic: str) -> None:
    quarry.run("produce", topic, "x")
    quarry.run("consume", topic, "--group", f"{topic}-readers", "--limit", 1)
    assert "quarry_clients 0.0" in quarry.broker.get("/metrics")[1].splitlines()


def test_a_consumer_and_what_it_has_before_it_are_seen(quarry: Quarry, topic: str) -> None:
    group = f"{topic}-group"
    quarry.run("group", "create", group)
    with MessagingClient(
        Endpoint(quarry.broker.endpoint), subscription=Subscription(group=group, topic=topic, expression="a || b")
    ) as client:
        (row,) = quarry.rows("client", "list", "--group", group)
        assert (row["group"], row["topics"], row["language"], row["address"]) == (group, [topic], "PYTHON", "127.0.0.1")
        assert quarry.rows("client", "list", "--topic", topic) == [row]
        assert row in quarry.rows("client", "list")
        shown = quarry.run("client", "list", "--group", group).splitlines()
        assert [line.split()[0] for line in shown] == ["CLIENT", row["clientId"]]
        assert (row["kind"], row["isLite"]) == ("simple consumer", False)
        assert row in quarry.rows("client", "list", "--type", "consumer")
        with MessagingClient(Endpoint(quarry.broker.endpoint)):
            (producer,) = quarry.rows("client", "list", "--type", "producer")
        assert (producer["kind"], producer["group"], producer["topics"]) == ("producer", None, [])
        for _ in range(3):
            quarry.run("produce", topic, "body", "--tag", "a")
        assert len(client.receive(limit=1, invisible_s=30, wait_s=5)) == 1
        (in_topic, whole) = quarry.rows("lag", group)
        assert (in_topic["topic"], in_topic["messages"], in_topic["inFlight"], in_topic["ready"]) == (topic, 3, 1, 2)
        assert 0 <= in_topic["delaySeconds"] < 60
        assert {**whole, "delaySeconds": 0} == {**in_topic, "topic": "*", "delaySeconds": 0}
        assert len(quarry.rows("lag", group, "--topic", topic)) == 1
        stats = quarry.row("stats")
        assert (stats["consumers"], stats["connections"] >= 1) == (1, True)
    assert quarry.rows("client", "list", "--group", group) == []
    quarry.run("topic", "create", f"{topic}-unread")
    assert "never read" in quarry.run("lag", group, "--topic", f"{topic}-unread", status=2)
    assert "no group nobody" in quarry.run("lag", "nobody", status=2)
    assert "no group nobody" in quarry.run("client", "list", "--group", "nobody", status=2)
    assert "no topic nothing" in quarry.run("client", "list", "--topic", "nothing", status=2)


def test_topics_and_groups_outlive_a_restart(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs")
    try:
        quarry = Quarry(broker.start())
        topic = quarry.row("topic", "create", "kept", "--queues", 5)
        group = quarry.row("group", "create", "kept", "--max-attempts", 2)
        broker.restart()
        assert quarry.rows("topic", "list") == [topic]
        assert quarry.row("group", "show", "kept") == group
        broker.stop()
    finally:
        broker.close()
