"""`quarry replica`: what it shows, what it asks for, what it refuses; and what doctor and concerns say of copies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from quarry_mq.cli.demo import NO_REMOTING
from quarry_mq.cli.doctor import live
from quarry_mq.cli.doctor.findings import Verdict
from quarry_mq.cli.main import app
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.replicas.role import Epoch, Role, RoleFiles
from quarry_mq.server.replicas.status import FollowingFile, ReplicaStatus
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.fs import PosixCopyingDisk
from tests.e2e.broker import NO_CONSOLE, SMALL_SEGMENTS, Broker, environment_of, quarry, until
from tests.replicas.copies import Copies
from tests.schemas import assert_documented

FOLLOWS = ReplicaStatus(name="b", primary="a", is_connected=True)
COPY = Role(
    "0" * 32, 3, is_primary=False, epochs=(Epoch(1, 0, 7), Epoch(3, 500, 8)), origin="new", segment_size=1 << 20
)
PRIMARY = Role(
    "0" * 32, 3, is_primary=True, epochs=(Epoch(1, 0, 7), Epoch(3, 500, 8)), origin="new", segment_size=1 << 20
)


def replica(*words: object) -> Result:
    arguments = ["replica", *map(str, words)]
    done = CliRunner().invoke(app, arguments)
    assert_documented(arguments, done.stdout)
    return done


def is_asked(root: Path, what: str) -> bool:
    return RoleFiles(PosixCopyingDisk(), root).is_asked(what)


def with_role(root: Path, role: Role) -> Path:
    RoleFiles(PosixCopyingDisk(), root).save(role)
    return root


# -- without a process


def test_the_next_start_of_a_stopped_copy_is_the_primary(tmp_path: Path) -> None:
    root = with_role(tmp_path, COPY)
    clock = ManualClock()
    status = replace(FOLLOWS, position=900, lag_bytes=100, lag_changes=3, lag_s=0.2, heard_at_ms=clock.wall_ms())
    FollowingFile(PosixCopyingDisk(), root, clock).note(status, is_running=False)
    done = replica("promote", "--store", root)
    assert done.exit_code == 0, done.output
    assert f"no process follows in {root}: its next start is the primary" in done.stdout
    assert "the copy last heard of a at" in done.stdout
    assert "it missed 100 B of its log and 3 changes then, and had missed the oldest of it for 200 ms" in done.stdout
    assert is_asked(root, "promote")
    told = json.loads(replica("promote", "--store", root, "--json").stdout)
    assert (told["role"], told["running"], told["term"], told["logEnd"]) == ("copy", False, 3, 900)
    assert (told["followed"], told["missingBytes"], told["missingChanges"], told["lagSeconds"]) == ("a", 100, 3, 0.2)


def test_a_copy_that_is_being_seeded_is_promoted_by_an_order_alone(tmp_path: Path) -> None:
    root = with_role(tmp_path, COPY)
    status = replace(FOLLOWS, is_connected=False, is_seeding=True)
    FollowingFile(PosixCopyingDisk(), root, ManualClock()).note(status, is_running=False)
    done = replica("promote", "--store", root)
    assert (done.exit_code, "although it is being seeded" in done.output) == (2, True), done.output
    assert not is_asked(root, "promote")
    assert replica("promote", "--store", root, "--yes").exit_code == 0
    assert is_asked(root, "promote")


def test_an_empty_folder_is_not_promoted(tmp_path: Path) -> None:
    done = replica("promote", "--store", tmp_path)
    assert (done.exit_code, "there is no replication/role.json" in done.output) == (2, True)
    assert not is_asked(tmp_path, "promote")


@pytest.mark.parametrize(
    ("role", "words", "reason"),
    [
        (PRIMARY, ("promote",), "it is the primary already, of term 3"),
        (Role("0" * 32, 3), ("promote",), "the copy was emptied and not seeded"),
        (PRIMARY, ("seed", "--yes"), "it is the primary, from which the others are seeded"),
        (COPY, ("seed",), "--yes does it without asking"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, role: Role, words: tuple[str, ...], reason: str) -> None:
    root = with_role(tmp_path, role)
    command, *rest = words
    done = replica(command, "--store", root, *rest)
    assert (done.exit_code, reason in done.output) == (2, True), done.output
    assert not is_asked(root, command)


def test_a_store_without_copies_is_neither_promoted_nor_seeded(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / ("0" * 20)).write_bytes(bytes(4_096))
    for words in (("promote", "--yes"), ("seed", "--yes")):
        done = replica(words[0], "--store", tmp_path, *words[1:])
        assert (done.exit_code, "cop" in done.output) == (2, True), done.output
    assert not (tmp_path / "replication").exists()


def test_a_copy_is_seeded_by_an_order(tmp_path: Path) -> None:
    root = with_role(tmp_path, COPY)
    done = replica("seed", "--store", root, "--yes")
    assert (done.exit_code, "the copy is emptied and seeded at its next start" in done.stdout) == (0, True)
    assert is_asked(root, "seed")


def test_a_damaged_role_is_named(tmp_path: Path) -> None:
    (tmp_path / "replication").mkdir()
    (tmp_path / "replication" / "role.json").write_text("{")
    done = replica("promote", "--store", tmp_path)
    assert (done.exit_code, "role.json" in done.output) == (2, True), done.output


def test_the_file_of_a_copy_says_whether_its_process_still_follows(tmp_path: Path) -> None:
    clock = ManualClock()
    status = replace(FOLLOWS, is_connected=False, problem="a: connection refused", heard_at_ms=clock.wall_ms())
    file = FollowingFile(PosixCopyingDisk(), tmp_path, clock)
    assert file.read() is None
    file.note(status)
    last = file.read()
    assert last is not None
    assert last.status == status
    clock.advance(7)
    assert last.is_fresh(clock.wall_ms())
    assert status.text(clock.wall_ms()).startswith("no primary: a: connection refused, last heard of 7 s ago, 0 bytes")
    clock.advance(60)
    assert not last.is_fresh(clock.wall_ms())


def test_doctor_warns_of_a_copy_that_follows_nobody(tmp_path: Path) -> None:
    settings = BrokerSettings.model_validate(
        {
            "store": {"directory": tmp_path},
            "replication": {"mode": "async", "replica": "b", "peers": ["a=127.0.0.1:1"], "key_file": "key"},
        }
    )
    clock, file = ManualClock(), FollowingFile(PosixCopyingDisk(), tmp_path, ManualClock())
    assert live.followed(settings, clock) is None
    file.note(replace(FOLLOWS, position=7, lag_bytes=2, lag_changes=1, lag_s=0.25))
    (fine,) = live.copy(live.followed(settings, clock))
    assert (fine.verdict, fine.seen) == (Verdict.FINE, "follows a: 0.2 s, 2 bytes and 1 change behind")
    file.note(replace(FOLLOWS, is_connected=False, problem="a: connection refused"))
    (away,) = live.copy(live.followed(settings, clock))
    assert (away.verdict, away.seen) == (Verdict.WARNING, "follows nobody: a: connection refused")
    clock.advance(60)
    assert live.followed(settings, clock) is None, "its process has ended"
    assert [*live.copy(None)] == []


# -- with processes


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copies]:
    """A primary a with a copy b; c is named and not there."""
    copies = Copies(tmp_path_factory.mktemp("copies"), "abc")
    try:
        copies["a"].start()
        copies.start("b")
        copies.wait_for_all("a")
        yield copies
    finally:
        copies.close()


def metrics(broker: Broker) -> dict[str, float]:
    lines = broker.get("/metrics")[1].splitlines()
    rows = (line.rpartition(" ") for line in lines if line.startswith("quarry_repl"))
    return {name: float(value) for name, _, value in rows}


def doctor(broker: Broker, copies: Copies, name: str) -> dict[str, str]:
    """The verdicts of the checks that are made once."""
    settings = {
        "network.listen": broker.endpoint,
        "network.admin": broker.admin,
        "network.http": broker.http,
        **copies_settings(copies, name),
    }
    done = quarry("doctor", "--store", str(broker.store), "--json", environment=environment_of(settings))
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {each["check"]: each["verdict"] for each in rows}


def copies_settings(copies: Copies, name: str) -> dict[str, object]:
    peers = json.dumps([f"{each}=127.0.0.1:{port}" for each, port in copies.ports.items()])
    return {
        "replication.mode": "async",
        "replication.key_file": copies.key,
        "replication.replica": name,
        "replication.peers": peers,
    }


def test_the_primary_lists_its_copies(copies: Copies) -> None:
    rows = [json.loads(line) for line in replica("list", "--admin", copies["a"].admin, "--json").stdout.splitlines()]
    assert [(each["name"], each["role"], each["connected"]) for each in rows] == [
        ("a", "primary", True),
        ("b", "copy", True),
        ("c", "copy", False),
    ]
    primary, copy, away = rows
    assert (primary["term"], primary["address"], primary["missingBytes"]) == (1, None, None)
    assert (copy["seeding"], copy["missingBytes"], copy["missingChanges"], copy["lagSeconds"]) == (False, 0, 0, 0.0)
    assert copy["dispatchedOffset"] == primary["dispatchedOffset"]
    assert (away["address"], away["missingBytes"], away["lagSeconds"]) == (None, None, None)
    shown = replica("list", "--admin", copies["a"].admin).stdout.splitlines()
    assert shown[0].split() == [
        "NAME",
        "ROLE",
        "TERM",
        "CONNECTED",
        "SEEDING",
        "ADDRESS",
        "MISSING",
        "MISSING",
        "CHANGES",
        "LAG",
    ]
    assert re.match(r"b +copy +- +yes +no +127\.0\.0\.1:\d+ +0 B +0 +0 s$", shown[2])


def test_metrics_say_who_is_the_primary(copies: Copies) -> None:
    primary, copy = metrics(copies["a"]), metrics(copies["b"])
    assert (primary["quarry_replica_primary"], copy["quarry_replica_primary"]) == (1, 0)
    assert (primary["quarry_replication_term"], copy["quarry_replication_term"]) == (1, 1)
    assert primary['quarry_replica_connected{replica="b"}'] == copy['quarry_replica_connected{replica="b"}'] == 1
    assert primary['quarry_replica_connected{replica="c"}'] == 0


def test_doctor_beside_a_copy_takes_nothing_for_in_use(copies: Copies) -> None:
    found = doctor(copies["b"], copies, "b")
    assert found["copy"] == "fine"
    assert not {"ports", "broker", "health"} & found.keys()
    assert "fault" not in found.values(), found


def test_a_running_copy_is_promoted_and_says_what_it_missed(copies: Copies) -> None:
    root = copies["b"].store
    done = replica("promote", "--store", root)
    assert (done.exit_code, "although its primary a runs" in done.output) == (2, True), done.output
    copies["a"].stop()
    until(lambda: "no primary" in copies.says("b"), "b notices")
    done = replica("promote", "--store", root, "--timeout", "60")
    assert done.exit_code == 0, done.output
    assert "the copy last heard of a at" in done.stdout
    assert "it is the primary now" in done.stdout
    assert copies["b"].ready_or_ended() is None
    done = replica("promote", "--store", root)
    assert (done.exit_code, "it is the primary already, of term 2" in done.output) == (2, True), done.output
    copies.start("a")
    copies.wait_for_all("b")
    assert metrics(copies["a"])["quarry_replication_term"] == 2


def test_a_broker_without_copies_says_so(tmp_path: Path) -> None:
    broker = Broker(
        tmp_path / "store", logs=tmp_path, environment={**SMALL_SEGMENTS, **NO_CONSOLE, **NO_REMOTING}
    ).start()
    try:
        done = replica("list", "--admin", broker.admin)
        assert (done.exit_code, "no copies: replication.mode is off" in done.stdout) == (0, True)
        assert replica("list", "--admin", broker.admin, "--json").stdout == ""
    finally:
        broker.close()
