"""A broker that starts with files and RocksDB in disagreement says so, and repairs on request alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quarry_mq.store.layout.queue_phase import QueueMode, QueuePhase
from tests.cli.offline_runner import lines
from tests.e2e.broker import Broker, environment_of, until
from tests.migration.test_repairing import spoil
from tests.store.test_queue_modes import opened, send


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    store = opened(tmp_path / "store", QueueMode.DOUBLE_WRITE)
    send(store, 40)
    store.identity.queue_phase = QueuePhase.VERIFIED.value
    store.close()
    settings = {"store.segment_size": "64KiB", "limits.body_size": "16KiB"}
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment_of(settings))
    yield broker
    broker.close()


def status(broker: Broker) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(broker.administer("migration", "status", "--json"))
    return found


def test_disagreement_at_a_start_is_told_and_repaired_on_request(broker: Broker) -> None:
    broker.start()
    until(lambda: status(broker)["startDifferences"] == {}, "the check at the start is through")
    broker.stop()
    spoil(broker.store)
    broker.start()
    until(lambda: bool(status(broker)["startDifferences"]), "the check at the start has found it")
    told = status(broker)
    assert told["startDifferences"] == {"maximum": 1}
    assert [each["queue"] for each in told["differences"]] == ["orders/0"]
    broker.stop()
    (done,) = lines("migrate", broker.store, "--repair")
    assert {each["topic"] for each in done["queues"]} == {"orders", "%LMQ%lite"}
    assert done["left"]["differences"] == {}
    broker.start()
    until(lambda: status(broker)["startDifferences"] == {}, "the check at the start is through")
