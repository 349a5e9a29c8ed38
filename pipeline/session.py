"""Opens Spark sessions for our own commands and tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from quarry_mq.pipeline.data_source import register
from quarry_mq.pipeline.java import find_java


def open_session(name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session that knows the format `quarry`: the running one, or a new one.

    `master` None takes that of `spark-submit` or the configuration, and all cores of this machine where there is
    none. `settings` come before our own. Raises JavaMissing.
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


_DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
