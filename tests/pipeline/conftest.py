"""One Spark session for the tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pipeline.java import JavaMissing, find_java
from pipeline.session import open_session

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark on two cores of this machine."""
    try:
        find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    session = open_session("tests", master="local[2]", settings=SETTINGS)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
