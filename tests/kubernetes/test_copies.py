"""A node is lost: the copies on the other node are promoted, and the old primaries never come back as second ones."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from quarry_mq.server.replicas.primary import BEAT_INTERVAL_S
from tests.kubernetes.cluster import Node
from tests.kubernetes.namespaces import wait_until
from tests.kubernetes.release import GRPC, REMOTING, Release, Result, new_key
from tests.kubernetes.table import Table

PROMOTED_AFTER_S = 10
LOST_TIMEOUT_S = 120.0
BACK_TIMEOUT_S = 240.0
MESSAGE_BYTES: Final = 300
"""Bytes that a message of the flows takes in the log, about."""
RATE: Final = 10
"""Messages a second of each client."""


def install(release: Release, *, promotes: bool, storage_class: str = "") -> None:
    """Install two shards with copies, one of each on each node."""
    for name in ("cluster", "replication"):
        release.secret(f"quarry-{name}", {f"{name}.key": new_key()})
    release.install(
        {
            "replicas": 2,
            "warmCopies": 1,
            "copies": {"promoteAfterSeconds": PROMOTED_AFTER_S if promotes else 0},
            "operator": {"enabled": True},
            "store": {"storageClass": storage_class},
        }
    )
    wait_until(lambda: status(release).get("served") == "2/2", "both shards are served", LOST_TIMEOUT_S)
    release.wait_for_members(2)
    release.create_topics()


def status(release: Release) -> dict[str, Any]:
    found: dict[str, Any] = release.cluster.get("shardset", "quarry", release.namespace).get("status", {})
    return found


def primaries(release: Release) -> dict[int, str]:
    return {each["number"]: each["primary"] for each in status(release)["shards"] if "primary" in each}


def node_of_primary(release: Release) -> Node:
    """Return the node of the primary of the first shard."""
    return release.cluster.node(int(release.node_of(primaries(release)[0]).removeprefix("node")))


def is_whole(release: Release) -> bool:
    """Return whether each shard has a primary and a copy that follows."""
    rows = status(release).get("shards", ())
    return len(rows) == 2 and all("primary" in each and "copy" in each for each in rows)


def promotions(release: Release) -> list[str]:
    """The notes of the operator about promotions."""
    found = release.cluster.all("events.events.k8s.io", release.namespace)
    return [each["note"] for each in found if each["reason"] == "Promoted"]


@contextmanager
def lost(release: Release, node: Node, table: Table, case: str) -> Iterator[list[str]]:
    """Cut a node off and bring it back, while clients on the other node send and receive.

    The block runs once all shards are served by the other node; it is given the promoted pods.
    """
    other = 3 - node.number
    before = primaries(release)
    wait_until(lambda: is_whole(release), "copies follow", LOST_TIMEOUT_S)
    with release.flows(node=other, rate=RATE, clients=(GRPC, REMOTING)) as results:
        time.sleep(3)
        node.cut_network()
        began_s = time.monotonic()
        try:
            gone = [pod for pod in before.values() if release.node_of(pod) == node.name]
            assert gone, "a primary is on the node that is cut off"
            promoted = [f"quarry-copy-{number}" for number, pod in before.items() if pod in gone]
            yield promoted
            wait_until(lambda: set(promoted) <= set(primaries(release).values()), "copies serve", LOST_TIMEOUT_S)
            seconds = time.monotonic() - began_s
            time.sleep(5)  # what is sent to the promoted copies
        finally:
            node.restore_network()
    table.add(case, results, seconds)
    require_little_lost(results, release)


def most_lost(results: list[Result], shown_bytes: int) -> float:
    """Return the number of messages of the lag that was shown, and of the time since a copy has heard of it."""
    return shown_bytes / MESSAGE_BYTES + len(results) * RATE * BEAT_INTERVAL_S


def require_little_lost(results: list[Result], release: Release) -> None:
    """Check that no more is lost than the lag that the events have told, and what was sent after the last beat."""
    told = promotions(release)
    assert told
    shown = sum(int(note.partition(" missed ")[2].split()[0].replace(",", "")) for note in told if " missed " in note)
    assert sum(each.lost for each in results) <= most_lost(results, shown), (results, told)
    assert all(each.acknowledged for each in results)


def test_node_is_cut_off_and_the_operator_promotes(release: Release, table: Table) -> None:
    install(release, promotes=True)
    node = node_of_primary(release)
    with lost(release, node, table, "network of a node is cut, the operator promotes") as promoted:
        pass
    # the old primaries hear of the promotion, and become copies
    wait_until(lambda: is_whole(release), "the old primaries follow", BACK_TIMEOUT_S)
    assert set(promoted) <= set(primaries(release).values())
    for pod in promoted:
        old = f"quarry-{pod[-1]}"
        answer = release.cluster.exec(old, "python", "-c", REPLICA, namespace=release.namespace, container="broker")
        found = json.loads(answer)
        assert (found["role"], found["connected"]) == ("copy", True)


REPLICA = """
import urllib.request, urllib.error
try:
    print(urllib.request.urlopen("http://127.0.0.1:9464/replica", timeout=5).read().decode())
except urllib.error.HTTPError as error:
    print(error.read().decode())
"""


def test_disk_of_a_node_is_gone_and_a_command_promotes(release: Release, table: Table) -> None:
    """The node comes back with empty disks."""
    install(release, promotes=False, storage_class="local")
    node = node_of_primary(release)
    before = primaries(release)
    wait_until(lambda: is_whole(release), "copies follow", LOST_TIMEOUT_S)
    gone = [pod for pod in before.values() if release.node_of(pod) == node.name]
    with release.flows(node=3 - node.number, clients=(GRPC, REMOTING)) as results:
        time.sleep(3)
        node.stop_kubelet()
        node.lose_disk()
        began_s = time.monotonic()
        wait_until(lambda: not set(gone) & set(primaries(release).values()), f"{gone} are missed", LOST_TIMEOUT_S)
        for pod in gone:
            copy = f"quarry-copy-{pod[-1]}"
            told = status(release)["conditions"][0]["message"]
            assert f"kubectl exec {copy} -- quarry replica promote" in told
            release.quarry("replica", "promote", "--store", "/var/lib/quarry/store", pod=copy)
        wait_until(lambda: status(release).get("served") == "2/2", "all shards are served", LOST_TIMEOUT_S)
        seconds = time.monotonic() - began_s
        time.sleep(5)
    table.add("disk of a node is gone, a command promotes", results, seconds)
    lags = [each["missing"]["bytes"] for each in status(release)["shards"] if "missing" in each]
    assert sum(each.lost for each in results) <= most_lost(results, sum(lags))
    node.start_kubelet()
    wait_until(lambda: is_whole(release), "empty copies are seeded", BACK_TIMEOUT_S)
    assert {f"quarry-copy-{pod[-1]}" for pod in gone} <= set(primaries(release).values())
