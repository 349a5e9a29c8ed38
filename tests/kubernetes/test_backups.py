"""Tests of backups to an object store and of the way back."""

from __future__ import annotations

import time

from tests.kubernetes.cluster import CLIENTS, Object
from tests.kubernetes.images import QUARRY, RCLONE, TOOLS
from tests.kubernetes.namespaces import wait_until
from tests.kubernetes.release import GRPC, NAME, Release
from tests.kubernetes.table import Table

STORE = "objects"
BUCKET = "backups"
RESTORE = """
mv /var/lib/quarry/store /var/lib/quarry/store-before
quarry restore /var/lib/quarry/from-backup /var/lib/quarry/store
"""
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


def restoring_pod(release: Release, claim: str) -> Object:
    """Return a pod with the image of the broker, a volume of a shard and rclone, as the documentation describes it."""
    restricted = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    environment = [{"secretRef": {"name": "quarry-backup"}}]
    mounts = [{"name": "store", "mountPath": "/var/lib/quarry"}, {"name": "tmp", "mountPath": "/tmp"}]
    common = {"imagePullPolicy": "Never", "securityContext": restricted, "volumeMounts": mounts}
    user = {"runAsNonRoot": True, "runAsUser": 10_001, "runAsGroup": 10_001, "fsGroup": 10_001}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "restore", "namespace": release.namespace},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
            "initContainers": [
                {
                    "name": "download",
                    "image": RCLONE,
                    "args": ["copy", f"store:{BUCKET}/quarry/{NAME}-0", "/var/lib/quarry/from-backup"],
                    "env": [{"name": "RCLONE_CONFIG", "value": "/tmp/rclone.conf"}],
                    "envFrom": environment,
                    **common,
                }
            ],
            "containers": [
                {
                    "name": "restore",
                    "image": QUARRY,
                    "command": ["sh", "-ec"],
                    "args": [RESTORE],
                    **common,
                }
            ],
            "volumes": [
                {"name": "store", "persistentVolumeClaim": {"claimName": claim}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }


def phase(release: Release) -> str:
    return str(release.cluster.get("pod", "restore", release.namespace)["status"]["phase"])


def test_backup_to_an_object_store_and_back(release: Release, table: Table) -> None:
    """Messages that were sent before the backup are there after the restore, also when the store was lost."""
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
    cluster.kubectl("scale", "statefulset", NAME, "--replicas=0", "--namespace", namespace)
    wait_until(lambda: not cluster.all("pod", namespace, "app.kubernetes.io/component=broker"), "the broker is away")
    cluster.apply(restoring_pod(release, f"store-{NAME}-0"))
    wait_until(lambda: phase(release) in {"Succeeded", "Failed"}, "the restore ends")
    said = cluster.kubectl("logs", "restore", "--all-containers", "--namespace", namespace)
    assert phase(release) == "Succeeded", said
    cluster.kubectl("scale", "statefulset", NAME, "--replicas=1", "--namespace", namespace)
    release.wait_until_rolled_out()
    table.add("backup to an object store, restore", results, time.monotonic() - began_s)
    assert release.messages(GRPC.topic) == stored
    cluster.kubectl("delete", "pod,service", STORE, "--namespace", CLIENTS, "--grace-period=0", "--force")
