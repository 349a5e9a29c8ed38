"""`quarry bench`, against a broker in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from quarry_mq.cli.context_file import FILE_VARIABLE
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from tests.certificates import make_tls
from tests.cli.online_runner import Quarry
from tests.e2e.broker import PROJECT, SMALL_SEGMENTS, Broker, clean_environment, until

NOBODY = "127.0.0.1:1"
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def quarry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quarry]:
    directory = tmp_path_factory.mktemp("bench")
    broker = Broker(directory / "store", logs=directory / "logs", environment=SMALL_SEGMENTS)
    try:
        yield Quarry(broker.start())
        broker.stop()
    finally:
        broker.close()


def counters(broker: Broker) -> dict[str, float]:
    names = ("quarry_messages_stored_total", "quarry_messages_acknowledged_total", "quarry_clients")
    return {name: broker.stat(name) for name in names}


def names(broker: Broker) -> tuple[list[str], list[str]]:
    """Topics and groups."""
    with grpc.insecure_channel(broker.admin) as channel:
        stub = AdminServiceStub(channel)
        topics = [each for page in stub.ListTopics(pb.ListTopicsRequest(include_system=True)) for each in page.topics]
        groups = [each for page in stub.ListGroups(pb.ListGroupsRequest()) for each in page.groups]
    return sorted(each.name for each in topics), sorted(each.name for each in groups)


def test_stats_agree_with_the_brokers_and_nothing_is_left_after(quarry: Quarry) -> None:
    before, there = counters(quarry.broker), names(quarry.broker)
    row = quarry.row("bench", "--count", 300, "--size", 2000, "--queues", 3, "--producers", 2, "--consumers", 2)
    after = counters(quarry.broker)
    assert {name: after[name] - before[name] for name in after} == {
        "quarry_messages_stored_total": 300,
        "quarry_messages_acknowledged_total": 300,
        "quarry_clients": 0,
    }
    for side in ("sent", "received"):
        stats = row[side]
        assert (stats["messages"], stats["bytes"]) == (300, 600_000)
        assert stats["mbPerSecond"] == pytest.approx(stats["perSecond"] * 2000 / 1e6, rel=0.01)
        assert 0 < stats["p50Ms"] <= stats["p99Ms"] <= stats["p999Ms"] <= stats["maxMs"]
    assert (row["queues"], row["errors"], row["missing"], row["again"]) == (3, {}, 0, 0)
    assert names(quarry.broker) == there


def test_the_rate_is_kept(quarry: Quarry) -> None:
    row = quarry.row("bench", "--rate", 300, "--duration", 1)
    assert row["sent"]["messages"] == 300
    assert row["sent"]["perSecond"] == pytest.approx(300, rel=0.2)  # the last answers may be late
    assert row["received"]["messages"] == row["sent"]["messages"]


def test_people_see_a_table(quarry: Quarry) -> None:
    there = names(quarry.broker)
    text = quarry.run("bench", "--count", 20, "--consumers", 0, "--topic", "made-for-it")
    rows = {line[:10].strip(): line[10:].split() for line in text.splitlines()}
    assert rows["topic"] == ["made-for-it,", "8", "queues,", "removed"]
    assert rows["errors"] == ["none"]
    assert rows["sent"][0] == "20"
    assert "received" not in rows
    assert names(quarry.broker) == there


def test_a_topic_that_is_there_is_written_into_on_demand_and_stays(quarry: Quarry) -> None:
    quarry.run("topic", "create", "shared", "--queues", 2)
    quarry.run("produce", "shared", "of somebody else")
    there, before = names(quarry.broker), counters(quarry.broker)
    refused = quarry.result("bench", "--topic", "shared", "--count", 10)
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert counters(quarry.broker) == before
    row = quarry.row("bench", "--topic", "shared", "--count", 10, "--yes")
    assert (row["sent"]["messages"], row["received"]["messages"], row["queues"]) == (10, 10, 2)
    assert len(quarry.rows("browse", "shared", "--tag", "quarry-bench")) == 10
    assert names(quarry.broker) == there


def test_bodies_that_are_larger_than_a_window_go_as_well(quarry: Quarry) -> None:
    row = quarry.row("bench", "--size", 1_000_000, "--count", 12)
    assert (row["sent"]["bytes"], row["received"]["messages"], row["errors"]) == (12_000_000, 12, {})


def test_errors_are_counted_by_their_code(quarry: Quarry) -> None:
    quarry.run("topic", "create", "read-only", "--permission", "read")
    row = quarry.rows("bench", "--topic", "read-only", "--yes", "--count", 3, status=1)[0]
    assert row["errors"] == {"send FORBIDDEN": 3}
    assert row["sent"] == {
        **dict.fromkeys(("messages", "bytes"), 0),
        **dict.fromkeys(("perSecond", "mbPerSecond"), 0.0),
        **dict.fromkeys(("p50Ms", "p99Ms", "p999Ms", "maxMs")),
    }


def test_a_port_that_nobody_listens_on_is_told_and_nothing_is_left(quarry: Quarry) -> None:
    there = names(quarry.broker)
    assert f"{NOBODY}: no answer from a broker" in quarry.run("bench", "--endpoint", NOBODY, status=2)
    assert f"{NOBODY}: no answer from a broker" in quarry.run("bench", "--admin", NOBODY, status=2)
    assert names(quarry.broker) == there


def running(broker: Broker, *words: str) -> subprocess.Popen[str]:
    """`quarry bench` in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "quarry_mq.cli.main",
        "bench",
        *words,
        "--endpoint",
        broker.endpoint,
        "--admin",
        broker.admin,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=PROJECT, env=clean_environment(), text=True)


def has_begun(broker: Broker, stored: float) -> None:
    until(lambda: broker.stat("quarry_messages_stored_total") > stored, "messages come")


def result_of(bench: subprocess.Popen[str], status: int) -> dict[str, Any]:
    assert bench.stdout is not None
    row: dict[str, Any] = json.loads(bench.stdout.read())
    assert bench.wait(30) == status
    return row


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=slow)])
def test_who_is_interrupted_leaves_nothing_after(quarry: Quarry, number: signal.Signals) -> None:
    broker = quarry.broker
    there, before = names(broker), counters(broker)
    with running(broker, "--duration", "60", "--rate", "200", "--json") as bench:
        has_begun(broker, before["quarry_messages_stored_total"])
        assert names(broker) != there
        bench.send_signal(number)
        row = result_of(bench, 130)
    assert row["isInterrupted"] is True
    assert row["sent"]["messages"] > 0
    assert names(broker) == there
    assert counters(broker)["quarry_clients"] == before["quarry_clients"]


@slow
def test_what_a_stopped_broker_holds_up_counts_as_late(quarry: Quarry) -> None:
    """A client that waits with its next message until the last one is answered would hardly see it."""
    broker = quarry.broker
    stored = broker.stat("quarry_messages_stored_total")
    words = ("--duration", "3", "--rate", "100", "--producers", "1", "--in-flight", "1", "--json")
    with running(broker, *words) as bench:
        has_begun(broker, stored)
        broker.signal(signal.SIGSTOP)
        time.sleep(1.0)
        broker.signal(signal.SIGCONT)
        row = result_of(bench, 0)
    assert row["sent"]["messages"] == 300
    # a hundred of them were due while nothing was answered, and are late by up to a second
    assert row["sent"]["maxMs"] > 900
    assert row["sent"]["p99Ms"] > 850
    assert row["sent"]["p50Ms"] < 500


@slow
def test_clients_come_back_when_the_broker_does(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs")
    try:
        broker.start()
        with running(broker, "--duration", "12", "--rate", "100", "--json") as bench:
            has_begun(broker, 0)
            broker.restart()
            has_begun(broker, 0)
            row = result_of(bench, 1)
        assert row["errors"]["send CONNECTION_LOST"] > 0
        assert row["missing"] == 0
        assert names(broker)[1] == []
        broker.stop()
    finally:
        broker.close()


@slow
@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_with_tls_and_as_a_user(front: str, tmp_path: Path) -> None:
    tls = make_tls(tmp_path)
    key, contexts = tmp_path / "key", tmp_path / "contexts.toml"
    plain = Quarry(None)
    plain.run("security", "new-key", key)
    secret = plain.row("user", "bootstrap", tmp_path / "store", "admin", "--key-file", key)["secret"]
    (tmp_path / "secret").write_text(secret)
    (tmp_path / "secret").chmod(0o600)
    settings: dict[str, object] = {
        **tls.settings(),
        "network.front": front,
        "network.admin_tls": True,
        "security.authentication": True,
        "security.authorization": True,
        "security.key_file": key,
    }
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs")
    contexts.write_text(
        f'[safe]\nendpoint = "{broker.endpoint}"\nadmin = "{broker.admin}"\ntls_ca = "{tls.authority_path}"\n'
        f'user = "admin"\nsecret_file = "secret"\n'
        f'[stranger]\nendpoint = "{broker.endpoint}"\nadmin = "{broker.admin}"\ntls_ca = "{tls.authority_path}"\n'
    )
    environment = {FILE_VARIABLE: str(contexts)}
    safe = Quarry(None, "--context", "safe", environment=environment)
    stranger = Quarry(None, "--context", "stranger", environment=environment)
    try:
        broker.start(settings=settings)
        row = safe.row("bench", "--count", 200)
        assert (row["sent"]["messages"], row["received"]["messages"], row["errors"]) == (200, 200, {})
        assert safe.rows("topic", "list") == safe.rows("group", "list") == []
        assert "not signed" in stranger.run("bench", status=2)
        safe.run("topic", "create", "pinged")
        assert safe.rows("ping", "--count", 2, "--interval", 0)[-1]["figures"]["messaging"]["answered"] == 2
        assert safe.rows("ping", "--count", 1, "--topic", "pinged")[-1]["figures"]["roundTrip"]["answered"] == 1
        assert "not signed" in stranger.run("ping", "--count", 1, "--ports", "messaging", status=2)
        assert "not signed" in stranger.run("ping", "--count", 1, "--ports", "admin", status=2)
        broker.stop()
    finally:
        broker.close()
