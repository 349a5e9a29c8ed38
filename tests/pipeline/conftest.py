"""One Spark session for the tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from quarry_mq.pipeline.session import JavaMissing, find_java, open_session
from tests.e2e.conftest import broker, start_broker, start_clients
from tests.pipeline.cluster import Cluster, standalone_cluster

__all__ = ["broker", "cluster", "java", "spark", "start_broker", "start_clients"]

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # jobs of a second: compiling thoroughly costs more than it brings
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
TIMEOUT_S = 600
"""Spark takes half a minute to start where other tests run beside it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def java() -> None:
    """For tests that cannot do without a Java that Spark runs on."""
    try:
        find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    """Spark on two cores of this machine."""
    session = open_session("tests", master="local[2]", settings=SETTINGS)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def cluster(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers in processes of their own. For slow tests."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
