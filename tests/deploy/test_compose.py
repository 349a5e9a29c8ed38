"""deploy/compose.yaml agrees with the image, and its check of health tells what the broker tells."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from quarry_mq.cli.demo import free_ports
from quarry_mq.server.process.stop import StopTimes
from quarry_mq.server.settings.broker_settings import load_settings
from tests.deploy.manifests import DEPLOY, ROOT, Object
from tests.e2e.broker import Broker

COMPOSE: Object = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
BROKER: Object = COMPOSE["services"]["broker"]
IMAGE_SETTINGS = load_settings(DEPLOY / "image" / "quarry.toml")


def test_it_is_built_as_the_image_is() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert BROKER["image"] == f"quarry:{version}"
    context = (DEPLOY / BROKER["build"]["context"]).resolve()
    assert context == ROOT
    assert (context / BROKER["build"]["dockerfile"]).samefile(DEPLOY / "image" / "Dockerfile")
    assert "command" not in BROKER
    assert "entrypoint" not in BROKER


def test_the_store_lies_on_a_named_volume_and_nothing_else_can_be_written() -> None:
    """rocketmq-docker#115."""
    (volume,) = BROKER["volumes"]
    name, folder = volume.split(":")
    assert name in COMPOSE["volumes"]
    assert IMAGE_SETTINGS.store.directory.is_relative_to(folder)
    assert BROKER["read_only"] is True
    assert BROKER["tmpfs"] == ["/tmp"]
    assert BROKER["cap_drop"] == ["ALL"]
    assert BROKER["security_opt"] == ["no-new-privileges:true"]


def test_ports_are_published_on_this_machine_under_their_own_numbers() -> None:
    """Clients are told the address that they dialled, which the broker's own number is a part of."""
    network = IMAGE_SETTINGS.network
    console = BROKER["environment"]["QUARRY_NETWORK_CONSOLE"]
    open_ports = {each.rpartition(":")[2] for each in (network.listen, network.http, console)}
    assert {tuple(each.split(":")) for each in BROKER["ports"]} == {("127.0.0.1", port, port) for port in open_ports}


def test_it_has_the_time_that_it_takes_to_stop() -> None:
    stop = StopTimes.of(IMAGE_SETTINGS.network, IMAGE_SETTINGS.cluster)
    given = re.fullmatch(r"(\d+)s", BROKER["stop_grace_period"])
    assert given is not None
    assert int(given[1]) >= stop.total_s + 5


def test_the_check_of_health_is_green_while_clients_are_served(tmp_path: Path) -> None:
    kind, program, *arguments = BROKER["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python")
    (port,) = set(re.findall(r"http://127\.0\.0\.1:(\d+)/readyz", arguments[-1]))
    assert IMAGE_SETTINGS.network.http.endswith(f":{port}")

    def healthy(http: str) -> bool:
        words = [sys.executable, *arguments[:-1], arguments[-1].replace(f"127.0.0.1:{port}", http)]
        return subprocess.run(words, stderr=subprocess.DEVNULL, timeout=30, check=False).returncode == 0

    (nobody,) = free_ports(1)
    assert not healthy(f"127.0.0.1:{nobody}")
    broker = Broker(tmp_path / "store", logs=tmp_path)
    try:
        broker.start()
        assert healthy(broker.http)
    finally:
        broker.close()
