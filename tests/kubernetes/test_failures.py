"""Tests of what happens to a release without its operator's doing, while clients send to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.kubernetes.cluster import READY_TIMEOUT_S, Cluster
from tests.kubernetes.namespaces import Failed, wait_until
from tests.kubernetes.release import CLIENTS_OF_A_CASE, NAME, Release, no_producer_stops, nothing_is_lost, some_shards
from tests.kubernetes.table import Table

SETTLED_S = 15
"""Time for members to agree on who has a message group now."""


@pytest.fixture(scope="module")
def shards(cluster: Cluster) -> Iterator[Release]:
    """Three shards on two nodes; each test leaves them as it found them."""
    with some_shards(cluster, "failures", 3) as made:
        yield made


def on(shards: Release, node: str) -> list[str]:
    """Return the pods on a node."""
    return [pod for pod in shards.pods if shards.node_of(pod) == node]


def is_replaced(shards: Release, pod: str, before: tuple[str, str]) -> bool:
    try:
        return shards.start_of(pod)[0] != before[0]
    except (Failed, ValueError, KeyError):
        return False  # there is none yet, or it has no container


def test_kill_of_a_broker(shards: Release, table: Table) -> None:
    """The broker's process is killed in its container, which is started again in the same pod."""
    killed = f"{NAME}-1"
    before = shards.start_of(killed)
    began_s = time.monotonic()
    with shards.flows() as results:
        kill = "kill -9 $(cat /proc/1/task/1/children)"
        shards.cluster.exec(killed, "sh", "-c", kill, namespace=shards.namespace, container="broker")
        wait_until(lambda: shards.start_of(killed)[1] != before[1], "the container is started again")
        shards.cluster.wait_for_pods(shards.namespace, killed)
    table.add("kill -9 of a broker", results, time.monotonic() - began_s)
    assert shards.start_of(killed)[0] == before[0]
    nothing_is_lost(results)


def test_drain_of_a_node(shards: Release, table: Table) -> None:
    """Evictions respect the disruption budget: one shard is away at a time. Volumes follow their pods."""
    moved = on(shards, "node1")
    assert moved
    began_s = time.monotonic()
    with shards.flows() as results:
        try:
            shards.cluster.kubectl(
                *("drain", "node1", "--pod-selector", f"app.kubernetes.io/name={NAME}"),
                *("--delete-emptydir-data", "--timeout=280s"),
            )
            shards.wait_until_rolled_out()
            assert on(shards, "node1") == []
        finally:
            shards.cluster.kubectl("uncordon", "node1")
    table.add("drain of a node", results, time.monotonic() - began_s)
    for pod in moved:
        shards.delete_pod(pod)
    no_producer_stops(results)


def test_stop_of_a_kubelet(shards: Release, table: Table) -> None:
    """Pods that nobody looks after serve on, and are replaced when the kubelet is back."""
    node = shards.cluster.node(1)
    left_alone = on(shards, node.name)
    assert left_alone
    before = {pod: shards.start_of(pod) for pod in left_alone}
    began_s = time.monotonic()
    with shards.flows() as results:
        node.stop_kubelet()
        try:
            wait_until(lambda: not node.is_ready(), "the node is lost")
            wait_until(lambda: shards.cluster.is_leaving(shards.namespace, left_alone[0]), "its pods are to leave")
        finally:
            node.start_kubelet()
        wait_until(node.is_ready, "the node is back")
        for pod in left_alone:
            wait_until(partial(is_replaced, shards, pod, before[pod]), f"{pod} is replaced", READY_TIMEOUT_S)
        shards.cluster.wait_for_pods(shards.namespace, *shards.pods)
    table.add("stop of a kubelet", results, time.monotonic() - began_s)
    nothing_is_lost(results)


def test_cut_of_a_network(shards: Release, table: Table) -> None:
    """A node that nobody reaches has its shards for itself until the network is back; the others go on."""
    node = shards.cluster.node(1)
    cut_off = on(shards, node.name)
    assert cut_off
    (asked, *_) = (pod for pod in shards.pods if pod not in cut_off)
    began_s = time.monotonic()
    with shards.flows() as results:
        node.cut_network()
        try:
            wait_until(lambda: not shards.is_reachable(cut_off[0], asked), "the others notice")
            wait_until(lambda: not node.is_ready(), "the node is lost")
        finally:
            node.restore_network()
        wait_until(node.is_ready, "the node is back")
        shards.cluster.wait_for_pods(shards.namespace, *shards.pods)
        wait_until(lambda: all(shards.is_reachable(pod, asked) for pod in shards.pods), "all members are reachable")
    table.add("cut of a node's network", results, time.monotonic() - began_s)
    nothing_is_lost(results)


def test_loss_of_a_volume(shards: Release, table: Table) -> None:
    """The member comes back empty: it takes topics and groups from the others, and is served like any other."""
    lost = f"{NAME}-2"
    shards.wait_for_members(3)
    began_s = time.monotonic()
    shards.cluster.kubectl("delete", "pvc", f"store-{lost}", "--namespace", shards.namespace, "--wait=false")
    shards.delete_pod(lost)
    shards.wait_for_members(3)
    assert {each.topic for each in CLIENTS_OF_A_CASE} <= set(shards.topics(lost))
    with shards.flows() as results:
        time.sleep(SETTLED_S)
    table.add("loss of a volume", results, time.monotonic() - began_s)
    nothing_is_lost(results)
    with shards.flows() as settled:
        time.sleep(1)
    table.add("after the loss of a volume", settled, time.monotonic() - began_s)
    assert not any(each.refused for each in settled), settled
