"""Jobs on a standalone cluster of two workers, beside the same jobs in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quarry_mq.cli.offline.record_text import json_line
from tests.cli.spark_runner import SPARK, quarry
from tests.conftest import GoldenStore
from tests.pipeline.cluster import Cluster
from tests.pipeline.test_rebuild import differences, families, open_and_close, without_database
from tests.verify.faults import FAULTS, fill_everything
from tests.verify.stores import verified

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BOTH = {0, 1}


def test_a_rebuild_on_two_workers_is_that_of_one_process(cluster: Cluster, golden_copy: GoldenStore) -> None:
    root = golden_copy("file-clean") / "store"
    there = root.with_name("there")
    root.rename(there)
    here = golden_copy("file-clean") / "store"
    for each in (here, there):
        without_database(each)
    ran = cluster.quarry("rebuild", there, "--split-mib", 1, "--json")
    assert ran.status == 0, ran.errors
    done = quarry("rebuild", here, "--split-mib", 1, "--json", *SPARK)
    assert done.returncode == 0, done.stderr
    assert ran.workers == BOTH
    told, expected = json.loads(ran.output), json.loads(done.stdout)
    assert [told[name] for name in ("units", "queues", "dispatchedUpTo")] == [
        expected[name] for name in ("units", "queues", "dispatchedUpTo")
    ]
    assert families(there) == families(here)
    open_and_close(there)
    assert differences(there) == []


def test_a_verification_on_two_workers_finds_what_one_process_finds(cluster: Cluster, tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill_everything(root)
    agreed = cluster.quarry("verify", root, "--json")
    assert (agreed.status, agreed.workers) == (0, BOTH), agreed.errors
    for fault in FAULTS:
        if fault.name in ("swapped offsets", "lost index item", "gap in a light queue"):
            fault.plant(root)
    expected = verified(root)
    ran = cluster.spark_submit("verify", root, "--output", tmp_path / "verdict", "--json")
    assert (ran.status, ran.workers) == (1, BOTH), ran.errors
    assert json.loads((tmp_path / "verdict" / "verdict.json").read_text()) == expected.as_json()
    lines = [line for line in ran.output.splitlines() if line.startswith("{")]
    assert sorted(lines[:-1]) == sorted(json_line(each.as_json()) for each in expected.differences)


def test_statistics_of_two_workers_are_those_of_one_process(cluster: Cluster, golden_store: GoldenStore) -> None:
    root = golden_store("rocks-clean") / "store"
    ran = cluster.spark_submit("stats", root, "--json")
    assert ran.status == 0, ran.errors
    assert ran.workers == BOTH
    done = quarry("stats", root, "--json", *SPARK)
    assert done.returncode == 0, done.stderr
    assert json.loads(ran.output.splitlines()[-1]) == json.loads(done.stdout)


def test_damage_that_a_worker_meets_is_told_with_file_and_offset(cluster: Cluster, golden_copy: GoldenStore) -> None:
    root = golden_copy("rocks-clean") / "store"
    path = root / "commitlog" / f"{0:020}"
    with path.open("r+b") as file:
        file.seek(95)
        file.write(b"\xff\xfe")
    ran = cluster.quarry("stats", root)
    assert ran.status == 1, ran.errors
    assert ran.errors.splitlines()[-1] == f"{path}: offset 0: the body does not match its CRC"
