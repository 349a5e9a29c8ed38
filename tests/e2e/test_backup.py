"""Backups of a live broker under load: one point in time, nothing torn, nothing acknowledged before it missing."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from tests.e2e.broker import PROJECT, Broker, clean_environment, quarry, until
from tests.e2e.clients import ClientProcess
from tests.e2e.conftest import StartBroker

SMALL_SEGMENTS = {"store.segment_size": 1024 * 1024}


def load_program(name: str, broker: Broker, home: Path, **options: object) -> ClientProcess:
    command = [sys.executable, "-m", f"tests.e2e.load.{name}", "--endpoint", broker.endpoint]
    for option, value in options.items():
        command += [f"--{option}", str(value)]
    return ClientProcess(command, directory=PROJECT, home=home)


@contextmanager
def sending(broker: Broker, acked: Path) -> Iterator[None]:
    """A producer that sends as fast as two calls at a time allow; `acked` gets what was acknowledged."""
    sender = load_program(
        "send", broker, acked.parent, topic="orders", prefix=acked.name, acked=acked, seed=1, concurrency=2
    )
    try:
        until(lambda: acked.exists() and len(ids(acked)) > 100, "a hundred messages are acknowledged")
        yield
        sender.close()
    finally:
        sender.kill()


def ids(acked: Path) -> set[str]:
    return set(acked.read_text().split())


def drained(broker: Broker, home: Path, group: str = "readers") -> list[str]:
    drain = load_program("drain", broker, home, topic="orders", group=group)
    try:
        found: list[str] = drain.next_line(120)["found"]
        drain.close()
    finally:
        drain.kill()
    return found


def run(*arguments: object, status: int = 0) -> list[dict[str, Any]]:
    done = quarry(*map(str, arguments), "--json", timeout_s=120)
    assert done.returncode == status, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def points_of(broker: Broker) -> list[Path]:
    folder = broker.store / "backup"
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_live_backup_is_one_point_in_time(tmp_path: Path, start_broker: StartBroker, durability: str) -> None:
    broker = start_broker(settings={**SMALL_SEGMENTS, "store.durability": durability})
    backups, early, acked = tmp_path / "backups", tmp_path / "early", tmp_path / "acked"
    with sending(broker, early):
        pass
    consumed = set(drained(broker, tmp_path))
    assert consumed == ids(early)
    with sending(broker, acked):
        before = ids(acked)
        first, *first_verdict = run("backup", "--admin", broker.admin, backups, "--verify")
        in_between = ids(acked)
        second, *second_verdict = run("backup", "--admin", broker.admin, backups, "--verify")
    assert (first_verdict[-1]["verdict"], second_verdict[-1]["verdict"]) == ("agree", "agree")
    assert first["live"]
    assert first["linkedBytes"] > 0, "closed segments and tables are linked"
    assert second["reusedBytes"] >= first["linkedBytes"] * 0.9, "the second backup holds what the first one has"
    assert points_of(broker) == [], "the points were given up"
    broker.stop()
    shutil.rmtree(broker.store)  # links keep what the backups share with it

    for number, (backup, wanted) in enumerate([(first, before), (second, in_between)]):
        store = tmp_path / f"restored-{number}"
        (restored,) = run("restore", backup["backup"], store)
        assert restored["logEnd"] == backup["logEnd"]
        assert run("verify", store)[-1]["verdict"] == "agree"
        again = start_broker(store=store, settings=SMALL_SEGMENTS)
        found = drained(again, tmp_path, group="auditors")
        missing = (wanted | consumed) - set(found)
        assert not missing, f"{len(missing)} acknowledged messages are missing"
        rest = set(drained(again, tmp_path))
        assert wanted <= rest, "a group is ahead of what it has received"
        assert not rest & consumed, "a group was set back"
        again.stop()


@pytest.mark.slow
def test_a_broker_without_a_message_is_backed_up(tmp_path: Path, start_broker: StartBroker) -> None:
    broker = start_broker(settings=SMALL_SEGMENTS)
    broker.administer("topic", "create", "orders")
    run("backup", "--admin", broker.admin, tmp_path / "backups")
    run("restore", tmp_path / "backups", tmp_path / "restored")
    again = start_broker(store=tmp_path / "restored", settings=SMALL_SEGMENTS)
    assert "orders" in again.administer("topic", "list")


@pytest.mark.slow
def test_a_command_that_is_killed_harms_nobody(tmp_path: Path, start_broker: StartBroker) -> None:
    """The broker serves on, the next backup works at once, and the next start removes what was left."""
    broker = start_broker(settings=SMALL_SEGMENTS)
    backups, acked = tmp_path / "backups", tmp_path / "acked"
    command = [sys.executable, "-m", "quarry_mq.cli.main", "backup", "--admin", broker.admin, str(backups), "--copy"]
    with sending(broker, acked):
        with Popen(command, cwd=PROJECT, env=clean_environment(), stdout=PIPE, stderr=PIPE) as killed:
            while not any(backups.glob("*/commitlog/*")) and killed.poll() is None:
                time.sleep(0.001)
            killed.kill()
        left = points_of(broker)
        (made,) = run("backup", "--admin", broker.admin, backups)
        assert points_of(broker) == left, "the lease of the killed one lasts, that of the other is given up"
    assert run("verify", backups)[-1]["verdict"] == "agree"
    assert all((each / "backup-manifest.json").exists() for each in backups.iterdir() if each.is_dir())
    assert Path(made["backup"]).parent == backups
    broker.restart()
    assert points_of(broker) == []
    assert ids(acked) <= set(drained(broker, tmp_path))


def test_a_backup_waits_for_a_broker_that_does_not_answer_yet(tmp_path: Path, start_broker: StartBroker) -> None:
    """Network policies of Kubernetes refuse the connections of a pod that has just started."""
    broker = start_broker()
    broker.stop()
    backups = tmp_path / "backups"
    command = [sys.executable, "-m", "quarry_mq.cli.main", "backup", "--admin", broker.admin, str(backups)]
    with Popen([*command, "--timeout", "60"], cwd=PROJECT, env=clean_environment()) as waiting:
        refused = quarry(*command[3:], "--timeout", "2")
        assert (refused.returncode, waiting.poll()) == (2, None)
        assert "no answer from a broker" in refused.stderr
        broker.start()
        assert waiting.wait(60) == 0
    run("restore", backups, tmp_path / "restored")


def test_a_broker_keeps_others_from_reading_its_store_as_a_stopped_one(
    tmp_path: Path, start_broker: StartBroker
) -> None:
    broker = start_broker(settings=SMALL_SEGMENTS)
    done = quarry("backup", str(broker.store), str(tmp_path / "backups"))
    assert done.returncode == 2
    assert "a broker is running on this store" in done.stderr
    done = quarry("backup", "--admin", broker.admin, str(broker.store / "inside"))
    assert done.returncode == 2
    assert "must be outside" in done.stderr
    assert points_of(broker) == []
