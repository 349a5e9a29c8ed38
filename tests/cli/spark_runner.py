"""`quarry pipeline …` in processes of its own: as people run it, and as `spark-submit` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from quarry_mq.cli.pipeline import submit
from tests.schemas import assert_documented

SETTINGS = (
    "spark.ui.enabled=false",
    "spark.driver.memory=1g",
    "spark.sql.shuffle.partitions=4",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)
SPARK = ("--master", "local[2]", *(word for setting in SETTINGS for word in ("--conf", setting)))
SPARK_HOME = Path(pyspark.__file__).parent
TIMEOUT_S = 280


def quarry(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`quarry pipeline` to its end. The caller judges the exit status."""
    done = _run(sys.executable, "-m", "quarry_mq.cli.main", "pipeline", *arguments, **environment)
    assert_documented(["pipeline", *map(str, arguments)], done.stdout)
    return done


def spark_submit(options: tuple[str, ...], *arguments: object) -> subprocess.CompletedProcess[str]:
    """The same by `spark-submit`, which makes the session."""
    program = SPARK_HOME / "bin" / "spark-submit"
    return _run(program, *options, submit.__file__, *arguments, PYSPARK_PYTHON=sys.executable)


def _run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, words)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
