"""The log is checked in the background: damage that nobody reads is a concern, and ends with the damage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.broker import Broker, environment_of, quarry, until
from tests.hostile.caller import Client

SETTINGS = {
    "store.segment_size": "1MiB",
    "store.durability": "async",
    "limits.body_size": "256KiB",
    "verification.interval_ms": 1_000,
    "metrics.lag_interval_ms": 500,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment_of(SETTINGS))
    yield broker
    broker.close()


def overview(broker: Broker) -> dict[str, Any]:
    done = quarry("overview", "--admin", broker.admin, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def kinds(broker: Broker) -> list[str]:
    return [each["kind"] for each in overview(broker)["concernDetails"]]


def flip(path: Path, at: int) -> None:
    """Change one bit of a file that the broker has mapped."""
    with path.open("r+b") as file:
        file.seek(at)
        (octet,) = file.read(1)
        file.seek(at)
        file.write(bytes([octet ^ 1]))


@pytest.mark.slow
def test_a_byte_that_nobody_reads_is_found_and_the_concern_ends_with_the_damage(broker: Broker) -> None:
    broker.start()
    with Client(broker.endpoint) as client:
        for number in range(60):
            client.send("orders", f"order-{number}", 100_000)
    segment = sorted((broker.store / "commitlog").glob("0*"))[1]
    until(lambda: broker.stat("quarry_log_check_read_bytes_total") > 0, "the first sweep")
    assert kinds(broker) == []
    flip(segment, 300_000)
    until(lambda: "damage-met" in kinds(broker), "a sweep finds the damage")
    (concern,) = [each for each in overview(broker)["concernDetails"] if each["kind"] == "damage-met"]
    assert f"commitlog/{segment.name}: the record at offset" in concern["text"]
    assert "the body does not match its CRC" in concern["text"]
    assert concern["command"] == "quarry recover STORE --replace-damaged --dry-run"
    assert broker.stat("quarry_damage_met_total") >= 1
    lines = [line for line in broker.words(last=100_000).splitlines() if "damaged data" in line]
    (line,) = [each for each in lines if "a concern" not in each]
    assert str(segment) in line
    until(lambda: broker.stat("quarry_log_check_damaged_records") == 1, "the sweep ends")
    sweeps = [
        json.loads(line)
        for line in quarry("verification", "list", "--admin", broker.admin, "--json").stdout.splitlines()
    ]
    assert all((each["percent"] is not None) == (each["state"] == "running") for each in sweeps)
    differing = next(each for each in sweeps if each["state"] == "differ")
    assert differing["by"] == "the broker"
    status = quarry("verification", "status", str(differing["id"]), "--admin", broker.admin, "--json")
    assert status.returncode == 1
    assert [each["differences"] for each in json.loads(status.stdout)["checks"]] == [1]
    flip(segment, 300_000)
    until(lambda: "damage-met" not in kinds(broker), "the concern ends when the record is whole again")
    until(lambda: broker.stat("quarry_log_check_damaged_records") == 0, "a sweep without damage")
    assert overview(broker)["logCheckedAt"] is not None


@pytest.mark.slow
def test_a_file_that_is_cut_short_under_a_running_broker_is_told_and_does_not_end_it(broker: Broker) -> None:
    """Through a mapping, whoever reads behind the end of the file ends the process."""
    broker.start()
    with Client(broker.endpoint) as client:
        for number in range(60):
            client.send("orders", f"order-{number}", 100_000)
    segment = sorted((broker.store / "commitlog").glob("0*"))[1]
    whole = segment.read_bytes()
    with segment.open("r+b") as file:
        file.truncate(500_000)
    until(lambda: "damage-met" in kinds(broker), "a sweep finds it")
    (text,) = [each["text"] for each in overview(broker)["concernDetails"] if each["kind"] == "damage-met"]
    assert f"{segment.name}: the file has 500000 bytes, a segment of this log 1048576" in text
    with segment.open("r+b") as file:
        file.seek(500_000)
        file.write(whole[500_000:])
    until(lambda: "damage-met" not in kinds(broker), "it is whole again")
