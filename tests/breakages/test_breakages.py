"""A broker that is broken on purpose tells the same in all places, and the command that it names cures it.

Each test breaks one thing as bad luck does, with `quarry serve` in a process of its own, and asks all that an operator
looks at: the log, `/readyz`, `quarry doctor`, `quarry overview` and the metric on which the alert QuarryConcern fires.
A wrong clock, stuck groups and dead letters need a clock that the test moves or many receives; they are in
`tests/conformance/test_concerns.py`. A disk that is truly full is in `tests/hostile/test_full_disk.py`.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import trustme

from tests.conftest import GoldenStore
from tests.e2e.broker import DISK_OF_THE_TESTS, Broker, environment_of, quarry, until

pytestmark = pytest.mark.slow

TOPIC: Final = "orders"
GROUP: Final = "billing"
FAST: Final[dict[str, object]] = {
    "metrics.lag_interval_ms": 200,
    "delivery.new_group_start": "earliest",
    "delivery.polling_min_ms": 0,
}


class Patient:
    """A broker, its settings, and all that tell how it is."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = directory / "store"
        self.settings: dict[str, object] = {**FAST}
        self.broker = Broker(self.store, logs=directory / "logs", environment=DISK_OF_THE_TESTS)

    def start(self) -> None:
        self.broker.start(settings=self.settings)

    def run(self, *words: object, status: int = 0) -> str:
        """Run a command with the broker's settings; returns what it printed."""
        done = quarry(*map(str, words), environment=self._environment())
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.run("produce", TOPIC, body, "--endpoint", self.broker.endpoint)

    def received(self) -> list[str]:
        """Return the bodies of all messages that the group gets, which are acknowledged."""
        words = ("consume", TOPIC, "--group", GROUP, "--limit", 10, "--timeout", 3, "--json")
        done = quarry(*map(str, words), "--endpoint", self.broker.endpoint, environment=self._environment())
        assert "Usage:" not in done.stderr, done.stderr
        return [json.loads(line)["body"] for line in done.stdout.splitlines()]

    def faults(self) -> list[tuple[str, str]]:
        """Return check and text of all faults that `doctor` finds; each has an advice."""
        done = quarry("doctor", "--json", environment=self._environment())
        found = [each for line in done.stdout.splitlines() if (each := json.loads(line))["verdict"] == "fault"]
        assert (done.returncode == 1) is bool(found)
        assert all(each["advice"] for each in found)
        return [(each["check"], each["seen"]) for each in found]

    def doctor_sees(self, check: str) -> str:
        lines = self.run("doctor", "--json").splitlines()
        return " ".join(each["seen"] for line in lines if (each := json.loads(line))["check"] == check)

    def concerns(self) -> dict[str, dict[str, Any]]:
        """Return the first concern of each kind, as `overview` shows them."""
        found = json.loads(self.run("overview", "--json", "--admin", self.broker.admin))["concernDetails"]
        return {each["kind"]: each for each in reversed(found)}

    def alerting(self) -> set[str]:
        """Return the kinds for which the alert QuarryConcern fires if they last."""
        lines = self.broker.get("/metrics")[1].splitlines()
        found = (re.match(r'quarry_concerns\{kind="([^"]+)".*\} ([0-9.]+)', line) for line in lines)
        return {each[1] for each in found if each and float(each[2]) > 0}

    def cure(self, concern: dict[str, Any]) -> None:
        """Run the command that the concern names. A person is asked whether a group may move; a script says it."""
        program, *words = shlex.split(concern["command"])
        assert program == "quarry"
        confirmed = ("--yes",) if "reset-offset" in words else ()
        self.run(*words, *confirmed, "--admin", self.broker.admin)

    def _environment(self) -> dict[str, str]:
        own = {
            "store.directory": self.store,
            "network.listen": self.broker.endpoint,
            "network.admin": self.broker.admin,
            "network.http": self.broker.http,
        }
        return {**DISK_OF_THE_TESTS, **environment_of({**self.settings, **own})}


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Patient]:
    made = Patient(tmp_path)
    yield made
    made.broker.close()


def test_kill_9(patient: Patient) -> None:
    patient.start()
    patient.send("1", "2")
    patient.broker.kill()
    assert "the last stop was not clean; a start recovers" in patient.doctor_sees("store")
    assert patient.faults() == []
    patient.start()
    assert "log recovered" in patient.broker.words(last=100_000)
    assert patient.broker.get("/readyz") == (200, "ready\n")
    assert sorted(patient.received()) == ["1", "2"]


def test_a_disk_above_its_threshold(patient: Patient) -> None:
    used = shutil.disk_usage(patient.directory)
    if used.used / used.total < 0.02:
        pytest.skip("the disk is emptier than the smallest threshold")
    full = {"expiry.refuse_percent": 1, "expiry.force_percent": 1, "expiry.clean_percent": 1, "expiry.force": False}
    patient.settings |= full
    patient.start()
    until(lambda: "sends-refused" in patient.alerting(), "the alert fires")
    status, text = patient.broker.get("/readyz")
    assert (status, text.startswith("ready, but sends are refused: ")) == (200, True)
    found = patient.concerns()
    assert found["sends-refused"]["command"] == "quarry storage"
    [(check, seen)] = [each for each in patient.faults() if "sends are refused" in each[1] and each[0] != "disk"]
    assert (check, found["sends-refused"]["text"] in seen) == ("concerns", True)
    patient.cure(found["sends-refused"])  # it shows what takes the space; making some is left to a person
    patient.broker.stop()
    for name in full:
        del patient.settings[name]
    patient.start()
    patient.send("1")
    assert "sends-refused" not in patient.concerns()


def test_a_port_in_use(patient: Patient) -> None:
    host, _, port = patient.broker.endpoint.rpartition(":")
    with socket.create_server((host, int(port))):
        patient.broker.launch(settings=patient.settings)
        assert patient.broker.ready_or_ended() == 2
        assert patient.broker.endpoint in patient.broker.words().splitlines()[-1]
        [(check, seen)] = patient.faults()
        assert (check, patient.broker.endpoint in seen) == ("ports", True)
    assert patient.faults() == []
    patient.start()


def test_a_flipped_byte(patient: Patient) -> None:
    patient.start()
    patient.run("topic", "create", TOPIC, "--queues", 1, "--admin", patient.broker.admin)
    patient.send("first", "to be damaged", "third")
    patient.broker.stop()
    flip(patient.store / "commitlog", b"to be damaged")
    patient.start()
    assert patient.received() == ["first"]
    until(lambda: {"queue-blocked", "damage-met"} <= patient.alerting(), "the alerts fire")
    assert patient.broker.get("/readyz") == (200, "ready\n")
    found = patient.concerns()
    command = f"quarry group reset-offset {GROUP} --topic {TOPIC} --queue 0 --to 2"
    assert found["queue-blocked"]["command"] == command
    assert f"goes on behind the message with: {command}" in patient.broker.words(last=100_000)
    assert [check for check, _ in patient.faults()] == ["concerns", "concerns"]
    done = quarry("browse", TOPIC, "--from", "earliest", "--json", "--admin", patient.broker.admin)
    assert [json.loads(line)["body"] for line in done.stdout.splitlines()] == ["first", "third"]
    assert (done.returncode, "queue 0, offset 1 is passed over" in done.stderr) == (1, True)
    patient.cure(found["queue-blocked"])
    assert patient.received() == ["third"]
    assert "queue-blocked" not in patient.concerns()
    patient.broker.stop()
    patient.run("recover", patient.store, "--replace-damaged", status=1)
    patient.start()
    assert patient.concerns().keys() & {"queue-blocked", "damage-met"} == set()


def test_an_expired_certificate(patient: Patient) -> None:
    files = patient.directory / "server.pem", patient.directory / "server.key"
    authority = trustme.CA()

    def issue(days: int) -> None:
        issued = authority.issue_cert("127.0.0.1", not_after=datetime.now(UTC) + timedelta(days=days))
        files[0].write_bytes(issued.cert_chain_pems[0].bytes())
        issued.private_key_pem.write_to_path(files[1])
        files[1].chmod(0o600)

    issue(-1)
    patient.settings |= {"network.tls": "optional", "network.tls_certificate": files[0], "network.tls_key": files[1]}
    patient.start()
    until(lambda: "certificate" in patient.alerting(), "the alert fires")
    assert patient.concerns()["certificate"]["severity"] == "fault"
    assert {check for check, _ in patient.faults()} == {"certificate", "concerns"}
    issue(90)
    until(lambda: "certificate" not in patient.concerns(), "the new certificate is used at once", timeout_s=60)
    assert patient.faults() == []


def test_a_store_that_is_gone_comes_from_its_backup(patient: Patient) -> None:
    patient.start()
    patient.send("1")
    patient.broker.stop()
    backup = patient.directory / "backup"
    patient.run("backup", patient.store, backup)
    shutil.rmtree(patient.store)
    patient.run("restore", backup, patient.store)
    assert "stopped cleanly" in patient.doctor_sees("store") or "a start recovers" in patient.doctor_sees("store")
    patient.start()
    assert patient.broker.get("/readyz") == (200, "ready\n")
    assert patient.received() == ["1"]


def test_a_store_of_another_broker_is_taken_over(patient: Patient, golden_copy: GoldenStore) -> None:
    shutil.copytree(golden_copy("file-clean") / "store", patient.store)
    assert "file" in patient.doctor_sees("store")
    patient.start()
    assert patient.broker.get("/readyz") == (200, "ready\n")
    assert patient.faults() == []


def flip(log: Path, content: bytes) -> None:
    segment = next(each for each in sorted(log.iterdir()) if each.is_file() and content in each.read_bytes())
    with segment.open("r+b") as file:
        file.seek(segment.read_bytes().index(content))
        file.write(bytes([content[0] ^ 1]))
