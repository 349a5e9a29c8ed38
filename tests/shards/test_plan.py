"""Settings of each shard: its own store, name and ports, and nothing that others have."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quarry_mq.cli import shards as command
from quarry_mq.server.settings.broker_settings import BrokerSettings, SettingsInvalid, load_settings
from quarry_mq.server.shards.plan import cluster_settings, plan_shards, variables_of
from quarry_mq.store.security.sealer import read_keys

TLS = {"tls_certificate": "a.crt", "tls_key": "a.key"}


def settings(**sections: Mapping[str, object]) -> BrokerSettings:
    return BrokerSettings.model_validate(sections)


def problem(count: int, **network: object) -> str:
    with pytest.raises(SettingsInvalid) as caught:
        plan_shards(settings(network=network), count)
    return str(caught.value)


def test_each_shard_has_its_own_store_name_and_ports() -> None:
    first, second, third = plan_shards(settings(store={"directory": "/data"}, broker={"name": "shop"}), 3)
    assert first.name == "shard-0"
    assert first.settings == {
        "store.directory": "/data/shard-0",
        "broker.name": "shop-0",
        "network.listen": "127.0.0.1:8081",
        "network.admin": "127.0.0.1:8082",
        "network.http": "127.0.0.1:9464",
        "network.console": "127.0.0.1:8083",
        "network.rocketmq_ha": "off",
        "network.tls_directory": "/data/tls",
    }
    assert second.settings["network.listen"] == "127.0.0.1:8181"
    assert third.name == "shard-2"
    assert third.settings == {
        "store.directory": "/data/shard-2",
        "broker.name": "shop-2",
        "network.listen": "127.0.0.1:8281",
        "network.admin": "127.0.0.1:8282",
        "network.http": "127.0.0.1:9664",
        "network.console": "127.0.0.1:8283",
        "network.rocketmq_ha": "off",
        "remoting.listen": "127.0.0.1:11111",
        "remoting.names_listen": "127.0.0.1:10076",
        "remoting.fast_listen": "off",
        "network.tls_directory": "/data/tls",
    }


def test_addresses_that_clients_are_sent_to_move_with_the_ports() -> None:
    network = {
        **TLS,
        "listen": "127.0.0.1:8081",
        "advertise": "mq.example:18081",
        "tls_listen": "[::1]:8443",
        "tls_advertise": "mq.example:18443",
    }
    shard = plan_shards(settings(network=network), 2)[1]
    assert shard.settings["network.listen"] == "127.0.0.1:8181"
    assert shard.settings["network.advertise"] == "mq.example:18181"
    assert shard.settings["network.tls_listen"] == "[::1]:8543"
    assert shard.settings["network.tls_advertise"] == "mq.example:18543"
    cluster = {"members": ["10.0.0.2:8082"], "key_file": "/cluster.key", "advertise": "10.0.0.1:8082"}
    shards = plan_shards(settings(cluster=cluster), 2)
    assert [each.settings["cluster.advertise"] for each in shards] == ["10.0.0.1:8082", "10.0.0.1:8182"]


def test_files_of_two_stores_are_not_uploaded_to_one_place() -> None:
    shard = plan_shards(settings(index={"tiered": True, "upload_to": "s3://bucket/index/"}), 2)[1]
    assert shard.settings["index.upload_to"] == "s3://bucket/index/shard-1"


@pytest.mark.parametrize("key", ["listen", "admin", "http", "console"])
def test_port_0_is_refused(key: str) -> None:
    assert problem(2, **{key: "127.0.0.1:0"}).startswith(f"network.{key} = 127.0.0.1:0: ")


def test_ports_of_remoting_that_are_set_move_from_the_first_shard_on() -> None:
    """The default ones of the first shard stay a default, which may be taken."""
    shards = plan_shards(settings(remoting={"listen": "10.0.0.1:10911", "names_listen": "off"}), 2)
    assert [shard.settings["remoting.listen"] for shard in shards] == ["10.0.0.1:10911", "10.0.0.1:11011"]
    assert [shard.settings["remoting.names_listen"] for shard in shards] == ["off", "off"]


def test_a_console_that_is_off_is_off_for_all() -> None:
    for network in ({"console": "off"}, {**TLS, "admin_tls": True, "admin_client_ca": "/ca.crt"}):
        shards = plan_shards(settings(network=network), 2)
        assert [shard.settings["network.console"] for shard in shards] == ["off", "off"]


def test_the_shard_that_would_get_no_port_is_named() -> None:
    text = problem(3, http="127.0.0.1:65400")
    assert "network.http = 127.0.0.1:65400: shard-2 would get port 65600" in text
    plan_shards(settings(network={"http": "127.0.0.1:65400"}), 2)


@pytest.mark.parametrize(
    ("network", "both"),
    [
        ({"listen": "127.0.0.1:8081", "admin": "127.0.0.1:8181"}, ("listen of shard-1", "admin of shard-0", "8181")),
        ({"listen": "127.0.0.1:8081", "http": "127.0.0.1:8081"}, ("listen of shard-0", "http of shard-0", "8081")),
        (
            {"plain_text": "everywhere", "listen": "0.0.0.0:8081", "http": "127.0.0.1:8181"},
            ("listen of shard-1", "http of shard-0", "8181"),
        ),
        (
            {**TLS, "tls_listen": "127.0.0.1:9000", "advertise": "a:8081", "tls_advertise": "a:8181"},
            ("advertise of shard-1", "tls_advertise of shard-0", "8181"),
        ),
    ],
)
def test_two_ports_that_would_be_one_are_named(network: dict[str, object], both: tuple[str, ...]) -> None:
    text = problem(2, **network)
    assert all(each in text for each in both), text


def test_one_port_on_two_hosts_is_two() -> None:
    network: dict[str, object] = {"listen": "127.0.0.1:8081", "admin": "127.0.0.2:8181", "http": "127.0.0.3:8081"}
    assert len(plan_shards(settings(network=network), 2)) == 2


def test_a_shard_reads_the_rest_where_a_single_broker_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, below the environment, below flags; and what is its own above all of them."""
    file = tmp_path / "quarry.toml"
    file.write_text("[broker]\nname = 'file'\n[limits]\nopen_calls = 77\n[network]\nlisten = '127.0.0.1:7001'\n")
    monkeypatch.setenv("QUARRY_DELIVERY_BATCH_MAX", "5")
    monkeypatch.setenv("QUARRY_NETWORK", '{"admin": "127.0.0.1:7002", "stop_grace_ms": 1}')
    monkeypatch.setenv("QUARRY_STORE_DIRECTORY", "/environment")
    monkeypatch.setenv("quarry_network_http", "127.0.0.1:7003")
    given = load_settings(file, {"store": {"directory": Path("/flags")}})
    shard = plan_shards(given, 2)[1]

    environment = command._environment({}, replaced=shard.variables) | shard.variables
    assert "quarry_network_http" not in environment
    monkeypatch.delenv("quarry_network_http")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    read = load_settings(file)
    assert (read.store.directory, read.broker.name) == (Path("/flags/shard-1"), "file-1")
    assert (read.network.listen, read.network.admin) == ("127.0.0.1:7101", "127.0.0.1:7102")
    assert read.network.http == "127.0.0.1:7103"
    assert (read.limits.open_calls, read.delivery.batch_max, read.network.stop_grace_ms) == (77, 5, 1)


def test_the_members_of_a_cluster_are_all_admin_addresses_as_this_machine_reaches_them() -> None:
    network: dict[str, object] = {"plain_text": "everywhere", "admin": "0.0.0.0:8082", "http": "[::]:9464"}
    shards = plan_shards(settings(network=network, security={"open_admin": True}), 2)
    made = cluster_settings(shards, key_file=Path("/data/cluster.key"), members=["other:8082"])
    assert made["cluster.key_file"] == "/data/cluster.key"
    assert json.loads(made["cluster.members"]) == ["127.0.0.1:8082", "127.0.0.1:8182", "other:8082"]
    shards = plan_shards(settings(network={**network, "admin": "[::]:8082"}, security={"open_admin": True}), 1)
    assert json.loads(cluster_settings(shards, key_file=Path("k"))["cluster.members"]) == ["[::1]:8082"]
    assert set(variables_of(made)) == {"QUARRY_CLUSTER_MEMBERS", "QUARRY_CLUSTER_KEY_FILE"}


def test_the_key_of_a_cluster_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    plain = settings(store={"directory": tmp_path})
    shards = plan_shards(plain, 2)
    given: Any = SimpleNamespace(store=plain.store, cluster=SimpleNamespace(key_file=None, members=[]))
    made = [command._cluster_settings(given, shards) for _ in range(2)]
    file = tmp_path / "cluster.key"
    assert made[0] == made[1] == cluster_settings(shards, key_file=file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (key,) = read_keys(file)
    assert len(base64.urlsafe_b64decode(key)) == 32

    given.cluster.key_file = tmp_path / "own.key"
    assert command._cluster_settings(given, shards)["cluster.key_file"] == str(tmp_path / "own.key")
    assert not (tmp_path / "own.key").exists()


def test_sockets_that_somebody_keeps_open_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be those of one process, and of one port."""
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    with pytest.raises(SettingsInvalid, match="LISTEN_FDS"):
        command.become_supervisor(settings(network={"http": "127.0.0.1:0"}), 2, None)
