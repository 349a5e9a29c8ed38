"""Opens Spark sessions for our own commands and tests, and finds the Java that Spark runs on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from quarry_mq.pipeline.data_source import register
from quarry_mq.pipeline.source.options import SPLIT_BYTES

VERSION_MINIMUM: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)')
_ANSWER_TIMEOUT_S: Final = 30.0


class JavaMissing(Exception):
    """No Java that Spark can run on was found. The text says what to do."""


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the program `java` that Spark will start: that of JAVA_HOME, or else the first on PATH.

    Raises JavaMissing when there is none, or an older one than 17.
    """
    home = environment.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else shutil.which("java", path=environment.get("PATH"))
    origin = "JAVA_HOME" if home else "PATH"
    if found is None or not os.access(found, os.X_OK):
        where = f"in JAVA_HOME ({home})" if home else "on PATH, and JAVA_HOME is not set"
        raise JavaMissing(f"Spark needs Java {VERSION_MINIMUM} or newer: there is no java {where}")
    version = _version_of(Path(found))
    if version is None or version < VERSION_MINIMUM:
        said = "does not say its version" if version is None else f"is Java {version}"
        raise JavaMissing(f"Spark needs Java {VERSION_MINIMUM} or newer: {found}, from {origin}, {said}")
    return Path(found)


def _version_of(java: Path) -> int | None:
    """Return the first number of the version that `java -version` prints, thus 1 for 1.8."""
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(told.stderr) or _VERSION.search(told.stdout)
    return int(match[1]) if match else None


def open_session(name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session that knows the format `quarry`: the running one, or a new one.

    `master` None takes that of `spark-submit` or the configuration, and all cores of this machine where there is
    none. `settings` come before our own. Raises JavaMissing, WorkersUnusable.
    """
    find_java()
    # workers must run this interpreter: another one may lack what tasks need
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in {**_DEFAULTS, **(settings or {})}.items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    spark = builder.getOrCreate()
    register(spark)
    return spark


@contextmanager
def shuffles_for(spark: SparkSession, log_bytes: int) -> Iterator[None]:
    """Give the shuffles of the block as many partitions as this much of a log needs.

    Spark's own number is 200, for a thousand messages too, and each task costs more than a thousand messages do. A
    number that was chosen for the session stays.
    """
    if spark.sparkContext.getConf().contains(_PARTITIONS) or spark.conf.get(_PARTITIONS) != _SPARKS_OWN:
        yield
        return
    spark.conf.set(_PARTITIONS, shuffle_partitions(log_bytes, spark.sparkContext.defaultParallelism))
    try:
        yield
    finally:
        spark.conf.unset(_PARTITIONS)


def shuffle_partitions(log_bytes: int, cores: int) -> int:
    """Return the number of partitions: all cores have work if there is a split for each, and no partition is large."""
    splits, large = -(-log_bytes // SPLIT_BYTES), -(-log_bytes // _PARTITION_LOG_BYTES)
    return max(1, min(splits, cores), min(large, _PARTITIONS_MAX))


_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_SPARKS_OWN: Final = "200"
_PARTITION_LOG_BYTES: Final = 512 << 20
"""Log bytes for one partition of a shuffle. What is shuffled of a message is a part of the message."""
_PARTITIONS_MAX: Final = 10_000
_DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Spark's own default is INT96, which is no type for times any more
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
