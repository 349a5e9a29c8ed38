"""Tests of what the cluster enforces for a release: who reaches which port, and where pods may run."""

from __future__ import annotations

import time

from tests.kubernetes.cluster import CLIENTS, Cluster
from tests.kubernetes.namespaces import Failed, wait_until
from tests.kubernetes.release import NAME, Release, new_key

PORTS = {"grpc": 8081, "admin": 8082, "console": 8083, "http": 9464}
LATE_S = 5
CONNECT = """
import socket, sys
for word in sys.argv[1:]:
    host, _, port = word.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
        print(word, "open")
    except ConnectionRefusedError:
        print(word, "refused")
    except OSError:
        print(word, "closed")
"""


def reached(cluster: Cluster, pod: str, namespace: str, *addresses: str, container: str = "") -> dict[str, bool]:
    """Return which addresses a pod reaches. A policy answers with a refusal or not at all."""
    output = cluster.exec(pod, "python", "-c", CONNECT, *addresses, namespace=namespace, container=container)
    return {address: word == "open" for address, word in (line.split() for line in output.splitlines())}


def ports_reached(release: Release, pod: str, namespace: str, to: str) -> set[str]:
    """Return the names of the broker's ports that a pod reaches."""
    addresses = {f"{release.address_of(to)}:{port}": name for name, port in PORTS.items()}
    container = "broker" if pod.startswith(NAME) else ""
    found = reached(release.cluster, pod, namespace, *addresses, container=container)
    return {addresses[address] for address, is_open in found.items() if is_open}


def test_who_reaches_what(release: Release) -> None:
    """Strangers reach messages and metrics, members reach each other, and brokers reach nothing else."""
    cluster, namespace = release.cluster, release.namespace
    release.secret("quarry-cluster", {"cluster.key": new_key()})
    console = {"console": {"enabled": True, "exposed": True}}
    release.install({"replicas": 2, **console})
    release.wait_for_members(2)
    first, second = release.pods
    strangers = f"client-{cluster.node(1).name}"
    wait_until(lambda: ports_reached(release, strangers, CLIENTS, second) == {"grpc", "http"}, "policies are enforced")
    assert ports_reached(release, first, namespace, second) == {"grpc", "admin", "http"}
    elsewhere = [f"{cluster.get('pod', strangers, CLIENTS)['status']['podIP']}:80", "10.96.0.1:443"]
    assert not any(reached(cluster, first, namespace, *elsewhere, container="broker").values())

    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": CLIENTS}}}
    nobody = {"podSelector": {"matchLabels": {"app": "nobody"}}}
    admitted = {"clients": [nobody], "metrics": [nobody], "console": [here], "admins": [here]}
    release.change({"networkPolicy": admitted})
    wait_until(lambda: ports_reached(release, strangers, CLIENTS, second) == {"admin", "console"}, "policies change")
    assert release.members()
    assert all(each["reachable"] for each in release.members())


def test_hard_spread_keeps_shards_on_different_nodes(release: Release) -> None:
    """The third of three shards on two nodes waits until there is a node without another one."""
    release.secret("quarry-cluster", {"cluster.key": new_key()})
    release.install({"replicas": 3, "spread": "hard"}, is_complete=False)
    wait_until(lambda: len(scheduled(release)) == 2 and len(phases(release, "Pending")) == 1, "two of three pods run")
    time.sleep(LATE_S)  # the scheduler looks at the third one again
    nodes = [release.node_of(pod) for pod in scheduled(release)]
    assert len(nodes) == len(set(nodes)) == 2
    (waiting,) = phases(release, "Pending")
    conditions = release.cluster.get("pod", waiting, release.namespace)["status"]["conditions"]
    assert [each["reason"] for each in conditions if each["type"] == "PodScheduled"] == ["Unschedulable"]


def scheduled(release: Release) -> list[str]:
    return [pod for pod in release.pods if _phase(release, pod) == "Running"]


def phases(release: Release, phase: str) -> list[str]:
    return [pod for pod in release.pods if _phase(release, pod) == phase]


def _phase(release: Release, pod: str) -> str:
    try:
        return str(release.cluster.get("pod", pod, release.namespace)["status"]["phase"])
    except Failed:
        return ""
