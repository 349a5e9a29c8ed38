"""Tests of backups to an object store and of the way back."""

from __future__ import annotations

import time

from tests.kubernetes.images import RCLONE
from tests.kubernetes.namespaces import wait_until
from tests.kubernetes.release import GRPC, NAME, Release
from tests.kubernetes.table import Table

BUCKET = "backups"
SENT_S = 5


def test_backup_to_an_object_store_and_back(release: Release, table: Table, object_store: str) -> None:
    """Messages that were sent before the backup are there after the restore, also when the store was lost."""
    cluster, namespace = release.cluster, release.namespace
    settings = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": object_store}
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
    # it waits until the broker is away
    cluster.kubectl("create", "job", "restore", f"--from=cronjob/{NAME}-0-restore", "--namespace", namespace)
    wait_until(lambda: waits(release), "the restore waits for the broker")
    cluster.kubectl("scale", "statefulset", NAME, "--replicas=0", "--namespace", namespace)
    release.wait_for_job("restore")
    cluster.kubectl("scale", "statefulset", NAME, "--replicas=1", "--namespace", namespace)
    release.wait_until_rolled_out()
    table.add("backup to an object store, restore", results, time.monotonic() - began_s)
    assert release.messages(GRPC.topic) == stored
    folders = cluster.exec(f"{NAME}-0", "ls", "/var/lib/quarry", namespace=namespace, container="broker").split()
    assert [each.partition("-")[0] for each in folders if each.startswith("store")] == ["store", "store.before"]


def waits(release: Release) -> bool:
    """Return whether there is no machine for the pod of the job."""
    pods = release.cluster.all("pod", release.namespace, "job-name=restore")
    reasons = [condition.get("reason") for pod in pods for condition in pod["status"].get("conditions", ())]
    return "Unschedulable" in reasons
