"""A broker of RocketMQ beside the cluster is followed by a pod, and moves to it when that is declared."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.peers.rocketmq import RocketMQ
from quarry_mq.store.settings import Durability
from tests.deploy.manifests import ROOT
from tests.kubernetes.cluster import LAPTOP, Cluster
from tests.kubernetes.namespaces import Failed, wait_until
from tests.kubernetes.release import Release
from tests.remoting.test_java_clients import HERE as REMOTING
from tests.remoting.test_java_clients import remoting_classes

TOPIC = "orders"
SEGMENT_SIZE = 16 * 1024 * 1024
FOLLOWED_TIMEOUT_S = 180.0
REGISTERED_TIMEOUT_S = 90.0


class Laptop(RocketMQ):
    """Apache RocketMQ 5.5.0 on the network of the laptop."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        properties = {"mappedFileSizeCommitLog": SEGMENT_SIZE, "brokerIP1": LAPTOP}
        super().__init__(directory, Durability.ASYNC, topic=TOPIC, queues=4, groups=[], properties=properties)
        self._cluster = cluster
        self._front = self.broker_port
        self._started: list[str] = []

    @property
    def address(self) -> str:
        return f"{LAPTOP}:{self.broker_port}"

    def broker_command(self) -> list[str]:
        file = self._configuration / "broker.conf"
        return self._java("org.apache.rocketmq.broker.BrokerStartup", "-c", file, heap="512m")

    def _launch(self, command: list[str]) -> None:
        name = f"rocketmq-{len(self._started)}"
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        self._started.append(name)
        self._cluster.within.start(name, "env", *variables, *command, network="laptop")

    def _wait_for(self, port: int) -> None:
        wait_until(lambda: self._listens(port), f"RocketMQ listens on port {port}", REGISTERED_TIMEOUT_S)

    def _listens(self, port: int) -> bool:
        return self._holds(f"import socket; socket.create_connection(('127.0.0.1', {port}))")

    def _holds(self, program: str) -> bool:
        try:
            self._cluster.outside("env", f"PYTHONPATH={ROOT}", sys.executable, "-c", program)
        except Failed:
            return False
        return True

    def start(self) -> None:
        super().start()
        knows = f"from tests.remoting.test_fleet import knows_topic; assert knows_topic({self.names!r})"
        wait_until(lambda: self._holds(knows), "the broker has registered", REGISTERED_TIMEOUT_S)

    def send(self, class_path: str, numbers: range) -> None:
        """Send numbers by a client of RocketMQ 4."""
        options = [f"-Dfirst={numbers.start}", f"-Dlast={numbers.stop}", "-Drocketmq.client.logUseSlf4j=true"]
        words = ["java", *options, "-cp", f"{REMOTING / 'java' / 'src'}:{class_path}", "Scenarios", self.names, TOPIC]
        self._cluster.outside(*words, "fleet-send")

    def close(self) -> None:
        for name in self._started:
            if self._cluster.within.is_running(name):
                self._cluster.within.stop(name)


@pytest.fixture
def rocketmq(cluster: Cluster, tmp_path: Path) -> Iterator[Laptop]:
    made = Laptop(cluster, tmp_path / "rocketmq")
    try:
        made.start()
        yield made
    finally:
        made.close()


def migration(release: Release) -> dict[str, Any]:
    found: dict[str, Any] = release.cluster.get("migration", "quarry", release.namespace)
    return found


def wait_for_phase(release: Release, *phases: str) -> None:
    def is_reached() -> bool:
        try:
            return migration(release).get("status", {}).get("phase") in phases
        except Failed:
            return False

    try:
        wait_until(is_reached, f"the phase is {phases}", FOLLOWED_TIMEOUT_S)
    except Failed as late:
        said = release.cluster.kubectl("get", "pods,events,migration", "-n", release.namespace, "--output=wide")
        logs = release.cluster.kubectl("logs", "deployment/quarry-operator", "--tail=20", "-n", release.namespace)
        raise Failed(f"{late}\n{said[-4000:]}\n{logs[-4000:]}") from late


def container(release: Release, name: str) -> dict[str, Any]:
    statuses = release.cluster.get("pod", "quarry-0", release.namespace)["status"]["containerStatuses"]
    return next(dict(each) for each in statuses if each["name"] == name)


def numbers_of(release: Release, count: int) -> list[int]:
    lines = release.quarry("tail", TOPIC, "--from", "earliest", "--limit", str(count), "--json").splitlines()
    return sorted(int(json.loads(line)["body"]) for line in lines)


def test_a_broker_of_rocketmq_moves_to_a_pod_when_that_is_declared(
    release: Release, rocketmq: Laptop, tmp_path_factory: pytest.TempPathFactory
) -> None:
    classes, events = remoting_classes("4.9.8", tmp_path_factory), "events.events.k8s.io"
    rocketmq.send(classes, range(200))
    release.install({"follow": {"from": rocketmq.address}, "operator": {"enabled": True}}, is_complete=False)
    wait_for_phase(release, "CaughtUp")
    assert (container(release, "follow")["ready"], container(release, "broker")["ready"]) == (True, False)
    rocketmq.send(classes, range(200, 300))

    began_s = time.monotonic()
    patch = ("patch", "migration", "quarry", "--type=merge", '--patch={"spec": {"cutOver": true}}')
    release.cluster.kubectl(*patch, "--namespace", release.namespace)
    wait_for_phase(release, "Served")
    status = migration(release)["status"]
    print(
        f"\nserved {time.monotonic() - began_s:.1f} s after the patch, messages refused {status['downtimeSeconds']} s"
    )
    assert numbers_of(release, 300) == list(range(300))
    told = [each["reason"] for each in release.cluster.all(events, release.namespace) if "Migration" in str(each)]
    assert {"CaughtUp", "CuttingOver", "Served"} <= set(told)
    with pytest.raises(Failed, match="cutOver cannot be taken back"):
        release.cluster.kubectl(*(each.replace("true", "false") for each in patch), "--namespace", release.namespace)

    release.delete_pod("quarry-0")
    assert numbers_of(release, 300) == list(range(300))
    assert "running" in container(release, "follow")["state"], "it rests"
    assert container(release, "follow")["restartCount"] == 0
    release.quarry("produce", TOPIC, "300")

    release.change({"follow": {"from": ""}})
    assert len(release.cluster.get("pod", "quarry-0", release.namespace)["spec"]["containers"]) == 1
    assert numbers_of(release, 301) == list(range(301))
