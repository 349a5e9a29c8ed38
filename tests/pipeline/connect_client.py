"""A client of Spark Connect, in a process of its own: `connect_client.py URL STORE FOLDER` prints what it reads."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from quarry_mq.pipeline.data_source import register


def main(url: str, store: str, folder: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    register(spark)
    log = spark.read.format("quarry").load(store)
    copied = f"{folder}/copied"
    stream = spark.readStream.format("quarry").load(store).writeStream.format("parquet").option("path", copied)
    query = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    filtered = spark.read.format("quarry").option("pushFilters", True).load(store).filter("queueId = 0")
    told = {
        "session": type(spark).__module__,
        "messages": {row["topic"]: row["count"] for row in log.groupBy("topic").count().collect()},
        "streamed": spark.read.parquet(copied).count(),
        "filtered": filtered.count(),
        "expected": log.filter("queueId = 0").count(),
        "queues": spark.read.format("quarry").option("table", "queues").load(store).count(),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
