"""`quarry settings`, against a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.broker import Broker, environment_of, quarry
from tests.e2e.load.raw_client import Refused
from tests.hostile.caller import Client


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    settings = {"store.segment_size": "16MiB", "limits.clients": 9_000, "network.stop_grace_ms": 100}
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment_of(settings))
    try:
        yield broker.start()
        broker.stop()
    finally:
        broker.close()


def test_settings_are_listed_changed_kept_and_given_up(broker: Broker) -> None:
    listed = [json.loads(line) for line in broker.administer("settings", "list", "--json").splitlines()]
    sources = {each["key"]: each["source"] for each in listed}
    assert sources["limits.clients"] == "environment"
    assert sources["limits.topics_per_user"] == "default"
    assert "network.listen" not in sources
    changed = json.loads(broker.administer("settings", "set", "limits.topics_per_user", "1", "--json"))
    assert (changed["value"], changed["configured"], changed["source"]) == ("1", "10000", "live")
    with Client(broker.endpoint) as client:
        client.send("first", "1", 100)
        with pytest.raises(Refused, match="topics were already created"):
            client.send("second", "2", 100)
    broker.restart()
    with Client(broker.endpoint) as client, pytest.raises(Refused):
        client.send("second", "2", 100)
    for arguments, says in (
        (("set", "limits.topics_per_user", "some"), "limits.topics_per_user: "),
        (("set", "limits.topics_per_user", "/etc/passwd"), "limits.topics_per_user: "),
        (("set", "store.directory", "/tmp"), "store.directory: no setting that can be changed"),
        (("get", "network.tls_key"), "network.tls_key: no setting that can be changed"),
    ):
        done = quarry("settings", *arguments, "--admin", broker.admin)
        assert done.returncode == 2
        assert says in done.stderr
        assert "Traceback" not in done.stderr
    assert "live" in broker.administer("settings", "get", "limits.topics_per_user")
    assert "default" in broker.administer("settings", "reset", "limits.topics_per_user")
    with Client(broker.endpoint) as client:
        client.send("second", "2", 100)
