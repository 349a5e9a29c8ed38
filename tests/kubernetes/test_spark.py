"""Tests that type docs/spark-on-kubernetes.md into the cluster: Spark reads backups of the brokers there."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyarrow import dataset

from tests.deploy.manifests import ROOT
from tests.kubernetes import images
from tests.kubernetes.cluster import CLIENTS, CONTROL_PLANE, Cluster
from tests.kubernetes.namespaces import wait_until
from tests.kubernetes.objects import OBJECT_STORE, many_node_volume
from tests.kubernetes.reader import Reader
from tests.kubernetes.release import Release

PAGE: Final = ROOT / "docs" / "spark-on-kubernetes.md"
NAMESPACE: Final = "quarry"
SPARK_NAMESPACE: Final = "quarry-spark"
COUNT: Final = 100
"""Messages on each shard."""

USER: Final = 10_001
TIMEOUT_S: Final = 600.0

ROWS: Final = """
import json
from pyarrow import dataset, fs
s3 = fs.S3FileSystem(endpoint_override="127.0.0.1:5000", scheme="http", access_key="test", secret_key="test")
for shard in range(3):
    found = dataset.dataset(f"exports/orders/quarry-{shard}", filesystem=s3, format="parquet", partitioning="hive")
    for row in found.to_table().to_pylist():
        print(json.dumps({"shard": f"quarry-{shard}", "id": row["uniqKey"], "body": row["body"]}))
"""
"""Prints what the Job has uploaded."""


@pytest.fixture
def shards(cluster: Cluster, object_store: str) -> Iterator[Release]:
    """Three shards with messages of the topic of the page, and backups of all of them in the object store."""
    cluster.add_image(images.SPARK, images.build_spark())
    settings = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": object_store}
    keys = {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}
    backup = {"enabled": True, "destination": "store:backups/quarry", "rcloneImage": images.RCLONE}
    with cluster.namespace(NAMESPACE):
        made = Release(cluster, NAMESPACE)
        made.secret("quarry-backup", {f"RCLONE_CONFIG_STORE_{key}": text for key, text in (settings | keys).items()})
        made.install({"replicas": 3, "backup": backup})
        made.wait_for_members(3)
        made.quarry("topic", "create", "orders", "--queues", "4")
        for pod in made.pods:
            # the command sends to the broker that it begins with
            made.quarry("produce", "orders", "hello", "--count", str(COUNT), pod=pod)
        yield made


def test_a_job_exports_the_backups_of_all_shards(shards: Release, tmp_path: Path) -> None:
    for pod in shards.pods:
        shards.run_job(f"cronjob/{pod}-backup", f"backup-{pod}")
    sent = {(pod, identity) for pod in shards.pods for identity in shards.messages("orders", pod)}
    assert len(sent) == COUNT * len(shards.pods)
    said = Reader(shards.cluster, tmp_path, {}).follow(PAGE, "One pod for each shard")
    told = next(output for command, output in said.items() if command.startswith("kubectl logs"))
    assert told.count(" messages of the offsets ") == 3
    with shards.cluster.port_forward(f"pod/{OBJECT_STORE}", "5000:5000", namespace=CLIENTS):
        lines = shards.cluster.outside(sys.executable, "-c", ROWS).splitlines()
    rows = [json.loads(line) for line in lines]
    assert {each["body"] for each in rows} == {"hello"}
    assert sorted((each["shard"], each["id"]) for each in rows) == sorted(sent)


def test_executors_in_pods_of_their_own_read_a_backup(shards: Release, tmp_path: Path) -> None:
    cluster = shards.cluster
    shards.quarry("backup", "--admin", "127.0.0.1:8082", "/var/lib/quarry/by-hand")
    volume = cluster.get("pvc", "store-quarry-0", NAMESPACE)["spec"]["volumeName"]
    (backup,) = (each for each in (cluster.volumes / volume / "by-hand").iterdir() if each.is_dir())
    for name in ("store", "exports"):
        cluster.apply(many_node_volume(cluster.volumes / f"spark-{name}", SPARK_NAMESPACE, f"quarry-{name}"))
        os.chown(cluster.volumes / f"spark-{name}", USER, USER)
    shutil.copytree(backup, cluster.volumes / "spark-store" / "main", dirs_exist_ok=True)
    try:
        own = {"KUBERNETES": f"https://{CONTROL_PLANE}:6443"}
        Reader(cluster, tmp_path, own).follow(PAGE, "On several machines")
        wait_until(lambda: phases(cluster) == ["Succeeded"] * 2, "both jobs are complete", TIMEOUT_S)
        said = driver_logs(cluster)
        (figures,) = (json.loads(line) for line in said if line.startswith("{"))
        assert [(each["topic"], each["volume"]["messages"]) for each in figures["topics"]] == [("orders", COUNT)]
        assert any(line.startswith(f"{COUNT} messages of the offsets ") for line in said)
        exported = dataset.dataset(cluster.volumes / "spark-exports" / "orders", format="parquet", partitioning="hive")
        assert exported.count_rows() == COUNT
        # the tasks were run by executors
        assert any("(executor 1, partition 0," in line for line in said)
    finally:
        cluster.kubectl("delete", "namespace", SPARK_NAMESPACE, "--ignore-not-found", timeout_s=200)
        cluster.kubectl("delete", "persistentvolume", "spark-store", "spark-exports")
        for name in ("store", "exports"):
            shutil.rmtree(cluster.volumes / f"spark-{name}")


def phases(cluster: Cluster) -> list[str]:
    """Return how far all drivers are."""
    drivers = cluster.all("pod", SPARK_NAMESPACE, "spark-role=driver")
    return [each["status"]["phase"] for each in drivers]


def driver_logs(cluster: Cluster) -> list[str]:
    """Return the lines of all drivers."""
    words = ("logs", "--selector", "spark-role=driver", "--tail=-1", "--namespace", SPARK_NAMESPACE)
    return cluster.kubectl(*words).splitlines()
