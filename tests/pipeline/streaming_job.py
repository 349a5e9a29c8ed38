"""A job that reads a topic into files and into another topic, until it is killed or there is nothing left.

Run by `test_stream_kills.py` as a process of its own.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from quarry_mq.pipeline.session import open_session
from tests.pipeline.conftest import SETTINGS

BATCH_MAX = 60


def started(spark: SparkSession, options: argparse.Namespace, name: str) -> StreamingQuery:
    source = spark.readStream.format("quarry").options(
        endpoints=options.endpoint, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=str(BATCH_MAX)
    )
    rows: DataFrame = source.option("maxRecordsPerPartition", "20").load()
    if name == "files":
        writer = rows.writeStream.format("parquet").option("path", f"{options.directory}/landed")
    else:
        sent = rows.select("body", "keys").writeStream.format("quarry")
        writer = sent.option("endpoints", options.endpoint).option("topic", "copies")
    writer = writer.option("checkpointLocation", f"{options.directory}/{name}")
    return (writer.trigger(availableNow=True) if options.to_the_end else writer).start()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--to-the-end", action="store_true")
    options = parser.parse_args()
    spark = open_session("streaming job", master="local[2]", settings=SETTINGS)
    for query in [started(spark, options, name) for name in ("files", "copies")]:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
