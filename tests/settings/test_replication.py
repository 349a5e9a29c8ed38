"""Settings of copies of a store: what they need, how peers are written, and where the port may listen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from quarry_mq.server.settings.broker_settings import BrokerSettings, SettingsInvalid
from quarry_mq.server.shards.plan import plan_shards

PEERS = ["a=10.0.0.1:8084", "b=10.0.0.2:8084"]


def settings(network: dict[str, Any] | None = None, **replication: Any) -> BrokerSettings:
    given = {"mode": "async", "replica": "a", "peers": PEERS, "key_file": "key", **replication}
    return BrokerSettings.model_validate({"network": network or {}, "replication": given})


def test_a_broker_has_no_copies_by_itself() -> None:
    section = BrokerSettings().replication
    assert (section.is_on, section.others) == (False, {})
    assert not BrokerSettings().for_store().has_copies


def test_all_machines_may_have_the_same_list() -> None:
    for name, other in (("a", "b"), ("b", "a")):
        found = settings(replica=name)
        assert [*found.replication.others] == [other]
        assert found.for_store().has_copies
    assert str(settings().replication.others["b"]) == "10.0.0.2:8084"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"key_file": None}, "mode needs key_file"),
        ({"peers": []}, "mode needs peers"),
        ({"peers": ["a=10.0.0.1:8084"]}, "mode needs peers"),
        ({"peers": ["10.0.0.2:8084"]}, "is not name=host:port"),
        ({"peers": ["b=10.0.0.2"]}, "peers"),
        ({"replica": ""}, "replica"),
        ({"replica": "a b"}, "replica"),
        ({"mode": "sync"}, "mode"),
    ],
)
def test_what_is_missing_or_wrong_is_named(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        settings(**change)


@pytest.mark.parametrize("mode", ["file", "double_write"])
def test_queue_files_have_no_copies(mode: str) -> None:
    given = {"mode": "async", "replica": "a", "peers": PEERS, "key_file": "key"}
    with pytest.raises(ValidationError, match="finish the migration of the queues first"):
        BrokerSettings.model_validate({"consume_queue": {"mode": mode}, "replication": given})


def test_plain_text_on_another_address_than_loopback_has_to_be_allowed() -> None:
    private = {"replication": "10.0.0.1:8084"}
    with pytest.raises(ValidationError, match="replication"):
        settings(private)
    assert settings({**private, "plain_text": ["replication"]}).network.replication == "10.0.0.1:8084"
    with pytest.raises(ValidationError, match="replication_tls needs tls_certificate"):
        settings({**private, "replication_tls": True})
    files = {"tls_certificate": Path("a.crt"), "tls_key": Path("a.key")}
    assert settings({**private, **files, "replication_tls": True}).network.replication_tls


def test_shards_of_one_supervisor_have_no_copies() -> None:
    with pytest.raises(SettingsInvalid, match=r"replication\.mode: shards of one supervisor have no copies"):
        plan_shards(settings(), 2)
