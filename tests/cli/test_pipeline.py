"""`quarry pipeline …` as people run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, entry_key
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.kind import inspect_store
from quarry_mq.store.message import QueueOffset
from tests.cli.spark_runner import SPARK, quarry
from tests.conftest import GoldenStore
from tests.verify.stores import ORDERS, delete, fill, queue_rows, verified

pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_rebuild_makes_the_queues(golden_copy: GoldenStore) -> None:
    root = golden_copy("file-clean") / "store"
    done = quarry("rebuild", root, "--json", *SPARK)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["units"] > 100
    assert told["aside"] is None
    assert inspect_store(PosixDisk(), root).rocksdb_directory.name == "consumequeue_rocksdb"


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_export_writes_files_and_goes_on_where_it_ended(golden_store: GoldenStore, tmp_path: Path) -> None:
    root, place = golden_store("file-kill") / "store", tmp_path / "out"
    done = quarry("export", root, place, "--body", "none", "--since", "2020-01-01", "--incremental", "--json", *SPARK)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["messages"] > 100
    assert told["files"] == len(list(place.glob("topic=*/day=*/*.parquet")))


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_verify_says_what_quarry_verify_says(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root)
    with queue_rows(root) as engine:
        delete(engine, ENTRIES_FAMILY, entry_key(ORDERS, QueueOffset(3)))
    report = verified(root)
    done = quarry("verify", root, "--output", tmp_path / "verdict", "--json", *SPARK)
    assert done.returncode == 1, done.stderr
    difference, verdict = map(json.loads, done.stdout.splitlines())
    assert (difference, verdict) == (report.differences[0].as_json(), report.as_json())
    assert json.loads((tmp_path / "verdict" / "verdict.json").read_text()) == verdict


def test_a_time_that_is_none_is_refused(golden_store: GoldenStore, tmp_path: Path) -> None:
    done = quarry("export", golden_store("file-kill") / "store", tmp_path, "--since", "yesterday")
    assert done.returncode == 2
    assert "'yesterday' is neither a date like" in " ".join(done.stderr.split())


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_damage_is_told_in_one_line_that_names_file_and_offset(golden_copy: GoldenStore) -> None:
    root = golden_copy("rocks-clean") / "store"
    path = root / "commitlog" / f"{0:020}"
    with path.open("r+b") as file:
        file.seek(95)
        file.write(b"\xff\xfe")
    done = quarry("rebuild", root, *SPARK)
    assert (done.returncode, done.stdout) == (1, "")
    assert "StoreDamaged" not in done.stderr
    # among what Spark's own workers may say when they are stopped in the middle of writing
    assert done.stderr.splitlines().count(f"{path}: offset 0: the body does not match its CRC") == 1


def test_without_java_the_message_says_what_is_needed(golden_copy: GoldenStore, tmp_path: Path) -> None:
    done = quarry("rebuild", golden_copy("rocks-clean") / "store", JAVA_HOME=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.strip() == f"Spark needs Java 17 or newer: there is no java in JAVA_HOME ({tmp_path})"


def test_an_old_java_is_named_with_its_version(golden_copy: GoldenStore, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    done = quarry("rebuild", golden_copy("rocks-clean") / "store", JAVA_HOME=str(tmp_path))
    assert done.returncode == 2
    assert f"{java}, from JAVA_HOME, is Java 11" in done.stderr


def test_without_spark_the_message_says_how_to_install_it(golden_copy: GoldenStore, tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError('No module named pyspark', name='pyspark')\n")
    done = quarry("rebuild", golden_copy("rocks-clean") / "store", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.strip() == "pyspark is missing: pip install 'quarry-mq[pipeline]'"


def test_a_setting_without_a_value_is_refused(golden_copy: GoldenStore) -> None:
    done = quarry("rebuild", golden_copy("rocks-clean") / "store", "--conf", "spark.ui.enabled")
    assert done.returncode == 2
    assert done.stderr.strip() == "--conf 'spark.ui.enabled': NAME=VALUE is needed"
