"""A broker that is broken on purpose tells the same in all places, and the command that it names cures it.

Each test breaks one thing as bad luck does, with `quarry serve` in a process of its own, and asks all that an operator
looks at: the log, `/readyz`, `quarry doctor`, `quarry overview` and the metric on which the alert QuarryConcern fires.
A disk that is truly full is in `tests/hostile/test_full_disk.py`.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import socket
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import trustme

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from tests.conformance.client import Client, consumer_settings
from tests.conftest import GoldenStore
from tests.e2e.broker import DISK_OF_THE_TESTS, Broker, environment_of, quarry, until
from tests.e2e.debian import unpacked

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
        self.environment: Mapping[str, str] = DISK_OF_THE_TESTS
        self.broker = Broker(self.store, logs=directory / "logs", environment=DISK_OF_THE_TESTS)
        self.user = ""
        """The user that the commands run as, whose secret is in the file of this name."""

    def under(self, environment: Mapping[str, str]) -> None:
        """Run the broker and all commands in this environment, too."""
        self.environment = {**self.environment, **environment}
        self.broker = Broker(self.store, logs=self.directory / "logs", environment=self.environment)

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
        lines = quarry("doctor", "--json", environment=self._environment()).stdout.splitlines()
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

    def agree_on(self, kind: str) -> dict[str, Any]:
        """Wait for a concern of this kind, and hold all places to it: they say the same. Returns the concern."""
        until(lambda: kind in self.alerting(), f"the alert of {kind} fires")
        found = self.concerns()[kind]
        words = ageless(found["text"].partition(":")[0])[:60]
        assert words in ageless(self.doctor_sees("concerns"))
        assert words in ageless(self.run("top", "--once", "--admin", self.broker.admin))
        logged = [line for line in self.broker.words(last=100_000).splitlines() if "a concern" in line and kind in line]
        assert any(found["command"] in line.replace('\\"', '"') for line in logged), logged
        return found

    def cure(self, concern: dict[str, Any], *more: str) -> str:
        """Run the command that the concern names; returns what it printed. A person is asked whether a group may move;
        a script says it.
        """
        program, *words = shlex.split(concern["command"])
        assert program == "quarry"
        confirmed = ("--yes",) if {"reset-offset", "forget"} & set(words) else ()
        return self.run(*words, *confirmed, *more, "--admin", self.broker.admin)

    def _environment(self) -> dict[str, str]:
        own = {
            "store.directory": self.store,
            "network.listen": self.broker.endpoint,
            "network.admin": self.broker.admin,
            "network.http": self.broker.http,
        }
        return {**self.environment, **environment_of({**self.settings, **own}), **self._context()}

    def _context(self) -> dict[str, str]:
        if not self.user:
            return {}
        contexts = self.directory / "contexts.toml"
        contexts.write_text(f'[{self.user}]\nuser = "{self.user}"\nsecret_file = "{self.user}.secret"\n')
        return {"QUARRY_CONTEXTS": str(contexts), "QUARRY_CONTEXT": self.user}

    def keep_secret(self, user: str, secret: str) -> None:
        path = self.directory / f"{user}.secret"
        path.touch(0o600)
        path.write_text(secret)


def ageless(text: str) -> str:
    """The text without the spans of time in it, which grow, and without its layout."""
    return " ".join(re.sub(r"\b\d+ (d|h|min|s)\b", "", text).split())


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
    found = patient.agree_on("sends-refused")
    status, text = patient.broker.get("/readyz")
    assert (status, text.startswith("ready, but sends are refused: ")) == (200, True)
    assert found["command"] == "quarry storage"
    [(check, seen)] = [each for each in patient.faults() if "sends are refused" in each[1] and each[0] != "disk"]
    assert (check, found["text"] in seen) == ("concerns", True)
    patient.cure(found)  # it shows what takes the space; making some is left to a person
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
    found = {kind: patient.agree_on(kind) for kind in ("queue-blocked", "damage-met")}
    assert patient.broker.get("/readyz") == (200, "ready\n")
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


def test_a_key_that_does_not_fit_its_certificate(patient: Patient) -> None:
    files = patient.directory / "server.pem", patient.directory / "server.key"
    authority = trustme.CA()
    ours, other = authority.issue_cert("127.0.0.1"), authority.issue_cert("127.0.0.1")
    files[0].write_bytes(ours.cert_chain_pems[0].bytes())
    ours.private_key_pem.write_to_path(files[1])
    files[1].chmod(0o600)
    patient.settings |= {"network.tls": "optional", "network.tls_certificate": files[0], "network.tls_key": files[1]}
    patient.start()
    assert patient.faults() == []
    other.private_key_pem.write_to_path(files[1])
    found = patient.agree_on("tls-files-refused")
    assert (found["severity"], found["command"]) == ("warning", "quarry doctor")
    assert patient.broker.get("/readyz") == (200, "ready\n")
    assert [check for check, _ in patient.faults()] == ["certificate"]
    patient.send("1")  # the certificate that was loaded is still used
    patient.broker.stop()
    patient.broker.launch(settings=patient.settings)
    assert patient.broker.ready_or_ended() == 2
    assert str(files[1]) in patient.broker.words().splitlines()[-1]
    [(check, seen)] = patient.faults()
    assert (check, str(files[1]) in seen) == ("certificate", True)
    ours.private_key_pem.write_to_path(files[1])
    assert patient.faults() == []
    patient.start()
    other.private_key_pem.write_to_path(files[1])
    patient.agree_on("tls-files-refused")
    ours.private_key_pem.write_to_path(files[1])
    until(lambda: "tls-files-refused" not in patient.concerns(), "right files end the concern")


def secured(patient: Patient) -> Path:
    """Give the store a key and an administrator, whom the commands run as from now on; returns the file of the key."""
    key = patient.directory / "security.key"
    patient.run("security", "new-key", key)
    made = patient.run("user", "bootstrap", patient.store, "admin", "--key-file", key, "--json")
    patient.keep_secret("admin", json.loads(made)["secret"])
    patient.user = "admin"
    patient.settings |= {"security.key_file": key, "security.authentication": True}
    return key


def test_a_key_that_does_not_open_the_secrets_of_users(patient: Patient) -> None:
    right = secured(patient)
    patient.start()
    patient.send("1")
    patient.broker.stop()
    wrong = patient.directory / "another.key"
    patient.run("security", "new-key", wrong)
    patient.settings["security.key_file"] = wrong
    patient.broker.launch(settings=patient.settings)
    assert patient.broker.ready_or_ended() == 2
    told = patient.broker.words().splitlines()[-1]
    [(check, seen)] = patient.faults()
    assert check == "secrets"
    assert "it was sealed with a key that is not in security.key_file" in seen
    assert seen in told
    patient.settings["security.key_file"] = right
    assert patient.faults() == []
    patient.start()
    patient.broker.stop()

    # the key is lost: the administrator gets another secret, sealed with the new key
    patient.settings["security.key_file"] = wrong
    made = patient.run("user", "bootstrap", patient.store, "admin", "--key-file", wrong, "--force", "--json")
    patient.keep_secret("admin", json.loads(made)["secret"])
    assert patient.faults() == []
    patient.start()
    patient.send("2")


def test_a_client_with_a_wrong_secret(patient: Patient) -> None:
    secured(patient)
    patient.start()
    patient.run("user", "create", "billing", "--super", "--admin", patient.broker.admin)
    patient.keep_secret("billing", "not the secret of billing")
    patient.user = "billing"
    for words in (("produce", TOPIC, "1", "--endpoint", patient.broker.endpoint), ("topic", "list")):
        for _ in range(3):
            where = () if "--endpoint" in words else ("--admin", patient.broker.admin)
            done = quarry(*words, *where, environment=patient._environment())
            assert done.returncode != 0
            assert "no enabled user has this name and this secret" in done.stderr
    patient.user = "admin"
    found = patient.agree_on("calls-denied")
    assert "port were denied. Their secret is not that of user billing." in found["text"]
    assert found["command"] == "quarry user add-secret billing"
    assert patient.broker.get("/readyz") == (200, "ready\n")
    assert patient.faults() == []  # nothing is wrong with the broker: it is a warning
    patient.keep_secret("billing", json.loads(patient.cure(found, "--json"))["secret"])
    patient.user = "billing"
    patient.send("1")
    assert patient.run("topic", "list", "--admin", patient.broker.admin)


def test_a_clock_that_was_set_back(patient: Patient) -> None:
    library = next(unpacked("libfaketime").rglob("libfaketimeMT.so.1"))
    clock = patient.directory / "clock"
    clock.write_text("+0")
    patient.under(
        {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
    )
    patient.start()
    patient.send("1")
    clock.write_text("-3600")
    found = patient.agree_on("clock-behind-log")
    assert re.search(r"the clock is (1 h|59 min 5\d s) behind the last message of the log", found["text"])
    assert found["command"] == "timedatectl set-ntp true"
    assert patient.broker.get("/readyz") == (200, "ready\n")
    assert {check for check, _ in patient.faults()} == {"clock", "concerns"}  # files of the future are there, too
    patient.send("2")
    assert sorted(patient.received()) == ["1", "2"]
    patient.broker.stop()
    assert "clock" in [check for check, _ in patient.faults()]
    patient.start()
    patient.agree_on("clock-behind-log")
    clock.write_text("+0")  # as the command does that the concern names
    until(lambda: "clock-behind-log" not in patient.concerns(), "the clock has reached the log")
    assert patient.faults() == []
    until(lambda: "a concern has ended" in patient.broker.words(last=100_000), "the log says so")


def test_stuck_groups(patient: Patient) -> None:
    patient.settings["metrics.lag_limit_ms"] = 1_000
    patient.start()
    patient.run("topic", "create", TOPIC, "--queues", 1, "--admin", patient.broker.admin)
    patient.run("group", "create", GROUP, "--admin", patient.broker.admin)
    asyncio.run(acknowledges_nothing(patient))
    patient.send("3")
    found = patient.agree_on("group-without-consumer")
    assert found["command"] == f"quarry group forget {GROUP} --topic {TOPIC}"
    patient.cure(found)
    until(lambda: "group-without-consumer" not in patient.alerting(), "the concern ends")


async def acknowledges_nothing(patient: Patient) -> None:
    async with Client(patient.broker.endpoint) as client:
        await client.declare(consumer_settings(GROUP, TOPIC, kind=definition.PUSH_CONSUMER))
        await asyncio.to_thread(patient.send, "1", "2")
        received = await client.receive(GROUP, TOPIC, count=2, polling_s=5, invisible_s=300)
        assert len(received.messages) == 2
        found = await asyncio.to_thread(patient.agree_on, "group-acknowledges-nothing")
        assert patient.broker.get("/readyz") == (200, "ready\n")
        assert found["command"] == f"quarry group consumers {GROUP}"
        assert "client@" in await asyncio.to_thread(patient.cure, found)  # it names who has to be looked at
        await client.ack(GROUP, TOPIC, *received.handles)
        await asyncio.to_thread(until, lambda: "group-acknowledges-nothing" not in patient.alerting(), "it ends")


def test_dead_letters_that_nobody_sent_again(patient: Patient) -> None:
    patient.settings["delivery.invisible_time_min_ms"] = 100
    patient.start()
    patient.run("group", "create", GROUP, "--max-attempts", 1, "--admin", patient.broker.admin)
    patient.send("1")
    asyncio.run(fails_once(patient))
    found = patient.agree_on("dead-letters")
    assert "has 1 dead letter that nobody sent again" in found["text"]
    assert found["command"] == f"quarry dead-letters resend {GROUP}"
    assert patient.broker.get("/readyz") == (200, "ready\n")
    patient.cure(found)
    assert patient.received() == ["1"]
    until(lambda: "dead-letters" not in patient.alerting(), "the concern ends")


async def fails_once(patient: Patient) -> None:
    async with Client(patient.broker.endpoint) as client:
        await client.declare(consumer_settings(GROUP, TOPIC))
        received = await client.receive(GROUP, TOPIC, count=1, polling_s=5, invisible_s=0.1)
        assert [each.body for each in received.messages] == [b"1"]
        await client.receive(GROUP, TOPIC, count=1, polling_s=2)


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
    assert patient.agree_on("certificate")["severity"] == "fault"
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
