"""`quarry ping`, against a broker in a process of its own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from quarry_mq.cli.context_file import FILE_VARIABLE
from quarry_mq.cli.online.ping.trips import paced, stats_of
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from tests.cli.online_runner import Quarry
from tests.e2e.broker import PROJECT, SMALL_SEGMENTS, Broker, clean_environment

NOBODY = "127.0.0.1:1"
FAST = ("--count", 3, "--interval", 0)


@pytest.fixture(scope="module")
def quarry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quarry]:
    directory = tmp_path_factory.mktemp("ping")
    broker = Broker(directory / "store", logs=directory / "logs", environment=SMALL_SEGMENTS)
    try:
        quarry = Quarry(broker.start())
        for name, kind in (("pinged", "normal"), ("in-order", "fifo"), ("later", "delay")):
            quarry.run("topic", "create", name, "--type", kind)
        yield quarry
        broker.stop()
    finally:
        broker.close()


def known(quarry: Quarry) -> tuple[object, ...]:
    """What a broker knows of its topics, groups, clients and messages."""
    with grpc.insecure_channel(quarry.broker.admin) as channel:
        stub = AdminServiceStub(channel)
        topics = [each for page in stub.ListTopics(pb.ListTopicsRequest(include_system=True)) for each in page.topics]
        groups = [each for page in stub.ListGroups(pb.ListGroupsRequest()) for each in page.groups]
    broker = quarry.broker
    return topics, groups, broker.stat("quarry_clients"), broker.stat("quarry_messages_stored_total")


def test_both_ports_answer_and_nothing_is_written(quarry: Quarry) -> None:
    before = known(quarry)
    *tries, summary = quarry.rows("ping", *FAST)
    assert [each["try"] for each in tries] == [1, 2, 3]
    for name in ("messaging", "admin"):
        times = sorted(each["times"][name] for each in tries)
        stats = summary["figures"][name]
        assert times[0] > 0
        assert (stats["minMs"], stats["p50Ms"], stats["maxMs"], stats["answered"]) == (*times, 3)
    assert (summary["tries"], summary["isLate"]) == (3, False)
    assert known(quarry) == before


def test_people_see_a_line_for_each_try_and_a_summary(quarry: Quarry) -> None:
    lines = quarry.run("ping", *FAST).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["1", "2", "3"]
    assert lines[0].split()[1::3] == ["messaging", "admin"]
    assert [line.split()[:4] for line in lines[4:]] == [
        ["messaging", "3", "of", "3"],
        ["admin", "3", "of", "3"],
    ]


def test_one_port_alone_is_tried(quarry: Quarry) -> None:
    assert set(quarry.rows("ping", *FAST, "--ports", "admin", "--endpoint", NOBODY)[-1]["figures"]) == {"admin"}
    assert set(quarry.rows("ping", *FAST, "--ports", "messaging", "--admin", NOBODY)[-1]["figures"]) == {"messaging"}


@pytest.mark.parametrize("topic", ["pinged", "in-order"])
def test_messages_go_into_a_topic_and_are_found_there(quarry: Quarry, topic: str) -> None:
    *before, stored = known(quarry)
    *tries, summary = quarry.rows("ping", *FAST, "--topic", topic)
    for each in tries:
        assert 0 < each["times"]["send"] < each["times"]["roundTrip"]
    assert summary["figures"]["roundTrip"]["answered"] == 3
    left = quarry.rows("browse", topic)
    assert len(left) == 3
    assert all((each["tag"], each["properties"]) == ("quarry-ping", {"quarry-ping": "test"}) for each in left)
    *after, stored_now = known(quarry)
    assert after == before
    assert stored_now == float(str(stored)) + 3


def test_a_topic_that_takes_no_such_messages_is_refused(quarry: Quarry) -> None:
    before = known(quarry)
    assert quarry.hint("ping", *FAST, "--topic", "pingd") == "did you mean pinged?"
    assert "takes no NORMAL messages" in quarry.run("ping", *FAST, "--topic", "later", status=2)
    assert "needs both ports" in quarry.result("ping", "--topic", "pinged", "--ports", "admin").stderr
    assert known(quarry) == before


def test_a_port_that_nobody_listens_on_is_told(quarry: Quarry) -> None:
    result = quarry.result("ping", *FAST, "--endpoint", NOBODY)
    assert result.exit_code == 2
    assert f"{NOBODY}: no answer from a broker" in result.stderr
    assert "hint: start a broker" in result.stderr
    told = quarry.result("ping", *FAST, "--admin", NOBODY, "--json")
    assert told.exit_code == 2
    *tries, summary = map(json.loads, told.stdout.splitlines())
    assert [each["times"]["admin"] for each in tries] == [None] * 3
    assert NOBODY in tries[0]["failures"][0]
    assert summary["figures"]["admin"] == {"answered": 0, "minMs": None, "p50Ms": None, "p99Ms": None, "maxMs": None}
    assert summary["figures"]["messaging"]["answered"] == 3
    assert "no answer" in quarry.run("ping", *FAST, "--topic", "pinged", "--endpoint", NOBODY, status=2)


def test_a_port_that_accepts_and_says_nothing_is_told(quarry: Quarry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        ended = quarry.run("ping", "--count", 1, "--timeout", 0.2, "--endpoint", address, status=2)
    assert address in ended


def test_who_is_slower_than_the_limit_ends_with_status_1(quarry: Quarry) -> None:
    assert "slower than 0.001 ms" in quarry.run("ping", *FAST, "--within-ms", 0.001, status=1)


@pytest.mark.slow
def test_a_broker_that_stops_for_a_while_is_late_and_not_gone(quarry: Quarry) -> None:
    with running(quarry.broker, "--count", "9", "--interval", "0.1", "--within-ms", "400", "--json") as ping:
        assert ping.stdout is not None
        ping.stdout.readline()
        quarry.broker.signal(signal.SIGSTOP)
        try:
            time.sleep(0.7)
        finally:
            quarry.broker.signal(signal.SIGCONT)
        summary = json.loads(ping.stdout.read().splitlines()[-1])
        assert ping.wait(20) == 1
    assert summary["isLate"] is True
    assert max(each["maxMs"] for each in summary["figures"].values()) > 400
    assert [each["answered"] for each in summary["figures"].values()] == [9, 9]


@pytest.mark.slow
def test_who_is_interrupted_gets_the_summary(quarry: Quarry) -> None:
    with running(quarry.broker, "--count", "100", "--interval", "0.05") as ping:
        assert ping.stdout is not None
        ping.stdout.readline()
        ping.send_signal(signal.SIGINT)
        rest = ping.stdout.read()
        assert ping.wait(20) == 130
    assert "P50" in rest
    assert rest.splitlines()[-1].startswith("admin")


def running(broker: Broker, *words: str) -> subprocess.Popen[str]:
    """`quarry ping` in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "quarry_mq.cli.main",
        "ping",
        *words,
        "--endpoint",
        broker.endpoint,
        "--admin",
        broker.admin,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=PROJECT, env=clean_environment(), text=True)


def test_times_go_by_from_one_try_to_the_next() -> None:
    clock = ManualClock()
    numbers = paced(3, 60.0, clock)
    assert next(numbers) == 1
    clock.advance(60.0)  # the first try took as long as the interval: the second comes at once
    assert next(numbers) == 2
    clock.advance(90.0)
    assert list(numbers) == [3]


def test_stats_are_those_of_the_nearest_rank() -> None:
    assert stats_of([0.004, 0.001, 0.003, 0.002]) == {
        "answered": 4,
        "minMs": 1.0,
        "p50Ms": 2.0,
        "p99Ms": 4.0,
        "maxMs": 4.0,
    }
    assert stats_of([])["p99Ms"] is None


def test_the_context_says_where_the_broker_is(quarry: Quarry, tmp_path: Path) -> None:
    file = tmp_path / "contexts.toml"
    file.write_text(f'[here]\nendpoint = "{quarry.broker.endpoint}"\nadmin = "{quarry.broker.admin}"\n')
    rows = Quarry(None, "--context", "here", environment={FILE_VARIABLE: str(file)}).rows("ping", *FAST)
    assert rows[-1]["figures"]["admin"]["answered"] == 3
