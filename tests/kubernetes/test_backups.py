"""Tests of backups to an object store and of the way back."""

from __future__ import annotations

import time

from tests.kubernetes.cluster import CLIENTS, Object
from tests.kubernetes.images import RCLONE, TOOLS
from tests.kubernetes.namespaces import wait_until
from tests.kubernetes.release import GRPC, NAME, Release
from tests.kubernetes.table import Table

STORE = "objects"
BUCKET = "backups"
SENT_S = 5


def object_store(namespace: str) -> list[Object]:
    """Return a pod with moto's S3 server, by other people than wrote what uploads, and its Service."""
    labels = {"app": STORE}
    container = {
        "name": STORE,
        "image": TOOLS,
        "imagePullPolicy": "Never",
        "command": ["moto_server", "--host", "0.0.0.0", "--port", "5000"],
        "readinessProbe": {"tcpSocket": {"port": 5000}, "periodSeconds": 1},
    }
    metadata = {"name": STORE, "namespace": namespace, "labels": labels}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": labels, "ports": [{"port": 5000}]},
        },
    ]


def test_backup_to_an_object_store_and_back(release: Release, table: Table) -> None:
    """After the restore a shard has the messages that were sent before the backup, and no others."""
    cluster, namespace = release.cluster, release.namespace
    cluster.apply(*object_store(CLIENTS))
    cluster.wait_for_pods(CLIENTS, STORE)
    settings = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": f"http://{STORE}.{CLIENTS}.svc.cluster.local:5000"}
    keys = {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}
    release.secret("quarry-backup", {f"RCLONE_CONFIG_STORE_{name}": text for name, text in (settings | keys).items()})
    release.install(
        {
            "backup": {
                "enabled": True,
                "destination": f"store:{BUCKET}/quarry",
                "rcloneImage": RCLONE,
                "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
            }
        }
    )
    release.create_topics()
    with release.flows(clients=(GRPC,)) as results:
        time.sleep(SENT_S)
    began_s = time.monotonic()
    release.run_job(f"cronjob/{NAME}-0-backup", "by-hand")
    stored = release.messages(GRPC.topic)
    assert len(stored) == results[0].acknowledged
    release.quarry("produce", GRPC.topic, "sent after the backup")
    cluster.kubectl("scale", "statefulset", NAME, "--replicas=0", "--namespace", namespace)
    wait_until(lambda: not cluster.all("pod", namespace, "app.kubernetes.io/component=broker"), "the broker is away")
    release.restore(f"{NAME}-0")
    cluster.kubectl("scale", "statefulset", NAME, "--replicas=1", "--namespace", namespace)
    release.wait_until_rolled_out()
    table.add("backup to an object store, restore", results, time.monotonic() - began_s)
    assert release.messages(GRPC.topic) == stored
    folders = cluster.exec(f"{NAME}-0", "ls", "/var/lib/quarry", namespace=namespace, container="broker").split()
    assert [each.partition("-")[0] for each in folders if each.startswith("store")] == ["store", "store.before"]
    cluster.kubectl("delete", "pod,service", STORE, "--namespace", CLIENTS, "--grace-period=0", "--force")
