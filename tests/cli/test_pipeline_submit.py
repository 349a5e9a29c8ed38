"""Jobs that `spark-submit` runs, with the script that PySpark ships."""

from __future__ import annotations

import json

import pytest

from quarry_mq.cli.pipeline import COMMANDS
from tests.cli.spark_runner import SPARK, spark_submit
from tests.conftest import GoldenStore

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("java")]


@pytest.mark.slow
def test_a_job_runs_in_the_session_that_spark_submit_configured(golden_copy: GoldenStore) -> None:
    root = golden_copy("file-clean") / "store"
    done = spark_submit((*SPARK, "--conf", "spark.log.level=INFO"), "rebuild", root, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["units"] > 100
    assert "INFO" in done.stderr, "what is logged is for spark-submit to say"


@pytest.mark.slow
def test_a_finding_is_the_exit_status_of_spark_submit(golden_copy: GoldenStore) -> None:
    root = golden_copy("rocks-clean") / "store"
    path = root / "commitlog" / f"{0:020}"
    with path.open("r+b") as file:
        file.seek(95)
        file.write(b"\xff\xfe")
    done = spark_submit((*SPARK, "--conf", "spark.log.level=OFF"), "stats", root)
    assert done.returncode == 1, done.stderr
    # spark-submit puts what Python writes to its standard error into its own standard output
    assert done.stdout.splitlines()[-1] == f"{path}: offset 0: the body does not match its CRC"


def test_every_job_can_be_submitted() -> None:
    done = spark_submit((*SPARK, "--conf", "spark.log.level=OFF"), "--help")
    assert done.returncode == 0, done.stderr
    for command in COMMANDS.registered_commands:
        assert command.callback is not None
        assert f" {command.callback.__name__.replace('_', '-')} " in done.stdout
