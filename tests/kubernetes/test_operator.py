"""The operator of a release makes what resources declare, and lets a shard leave when its messages are consumed."""

from __future__ import annotations

import time
from typing import Any

from tests.kubernetes.namespaces import Failed, wait_until
from tests.kubernetes.release import GROUPS, GRPC, Release
from tests.kubernetes.table import Table

TIMEOUT_S = 240.0


def ready(release: Release, kind: str, name: str) -> bool:
    """Return whether the resource is as declared."""
    try:
        found = release.cluster.get(f"{kind}.mq.quarry.io", name, release.namespace)
    except Failed:
        return False
    conditions = found.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def wait_until_ready(release: Release, kind: str, name: str) -> None:
    wait_until(lambda: ready(release, kind, name), f"{kind} {name} is ready", TIMEOUT_S)


def declared(kind: str, name: str, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "mq.quarry.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def test_topics_are_declared_and_a_shard_leaves_by_the_operator(release: Release, table: Table) -> None:
    release.install({"replicas": 3, "operator": {"enabled": True}})
    release.wait_for_members(3)
    for client in (GRPC, GROUPS):
        is_fifo = bool(client.message_groups)
        topic = {"type": "fifo" if is_fifo else "normal", "queues": 8}
        release.cluster.apply(
            declared("Topic", client.topic, release.namespace, topic),
            declared("ConsumerGroup", client.consumer_group, release.namespace, {"fifo": is_fifo}),
        )
        wait_until_ready(release, "topics", client.topic)
        wait_until_ready(release, "consumergroups", client.consumer_group)
    began_s = time.monotonic()
    with release.flows(clients=(GRPC, GROUPS)) as results:
        release.change({"replicas": 2})
        wait_until(lambda: len(release.members()) == 2, "the third member was removed", TIMEOUT_S)
        wait_until_ready(release, "shardsets", "quarry")
    table.add("3 -> 2 by the operator", results, time.monotonic() - began_s)
    assert [(each.lost, each.refused, each.disordered) for each in results] == [(0, 0, 0)] * 2
    pods = release.cluster.all("pod", release.namespace, "app.kubernetes.io/component=broker")
    assert sorted(each["metadata"]["name"] for each in pods) == ["quarry-0", "quarry-1"]
