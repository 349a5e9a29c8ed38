"""The job that test_sink_kills kills: from one topic into another, each row once, on executors in JVMs of their own."""

from __future__ import annotations

import argparse

from pyspark.sql import functions as sql

from quarry_mq.pipeline.session import open_session
from tests.pipeline.conftest import SETTINGS

BATCH_MAX = 400
RECORDS_PER_TASK = 100
ROW_MS = 10
"""Milliseconds that a row takes, so that a kill meets a task that has sent some of its messages."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--admin", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--deduplicate", default="true")
    options = parser.parse_args()
    # rows reach the sink in small portions, each of them after its rows have waited
    settings = {**SETTINGS, "spark.executor.memory": "512m", "spark.sql.execution.arrow.maxRecordsPerBatch": "10"}
    spark = open_session("sinking job", master=options.master, settings=settings)
    source = spark.readStream.format("quarry").options(
        endpoints=options.endpoint,
        subscribe="orders",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(BATCH_MAX),
        maxRecordsPerPartition=str(RECORDS_PER_TASK),
    )
    waited = sql.expr(f"substr(reflect('java.lang.Thread', 'sleep', {ROW_MS}L), 5)")  # without its word "null"
    rows = source.load().select(sql.concat(sql.col("body").cast("string"), waited).alias("body"), "keys")
    writer = rows.writeStream.format("quarry").options(
        endpoints=options.endpoint,
        topic="copies",
        maxInFlight="2",
        deduplicate=options.deduplicate,
        adminEndpoint=options.admin,
        checkpointLocation=f"{options.directory}/checkpoint",
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
