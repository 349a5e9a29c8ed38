"""The log of a store as a stream."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from quarry_mq.pipeline.source import schema_of, stream_of
from quarry_mq.pipeline.source.options import InvalidOption, read_options
from quarry_mq.pipeline.source.store_stream import LOOK_INTERVAL_S, StoreStreamReader
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from tests.conftest import GoldenStore
from tests.pipeline.logs import write_store
from tests.pipeline.tables import Row, messages
from tests.pipeline.test_messages import write_checkpoint
from tests.scan.logs import random_messages, write_log
from tests.store.assembly import message


def stream(root: Path, **options: object) -> StoreStreamReader:
    given = {"path": str(root), "timestamps": "millis", **{name: str(value) for name, value in options.items()}}
    checked = read_options(given)
    return stream_of(checked, schema_of(checked))


def rows(reader: StoreStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("bytes_max", [1, 700, 5000, 1 << 30])
@pytest.mark.parametrize("split_bytes", [900, 1 << 30])
def test_batches_have_every_message_once(tmp_path: Path, bytes_max: int, split_bytes: int) -> None:
    write_log(PosixDisk(), random_messages(Random(5), 150), directory=StorePaths(tmp_path).commit_log).close()
    reader = stream(tmp_path, splitBytes=split_bytes)
    reader.prepareForTriggerAvailableNow()
    found, at = [], reader.initialOffset()
    batches = 0
    while (end := reader.latestOffset(at, ReadMaxBytes(bytes_max))) != at:
        assert rows(reader, at, end) == rows(reader, at, end)
        found += rows(reader, at, end)
        at, batches = end, batches + 1
    assert found == messages(tmp_path)
    assert (batches == 1) == (bytes_max == 1 << 30)


def test_of_a_running_store_what_becomes_durable_is_read(tmp_path: Path) -> None:
    write_log(PosixDisk(), random_messages(Random(9), 50), directory=StorePaths(tmp_path).commit_log).close()
    everything = messages(tmp_path)
    lock = PosixDisk().lock(StorePaths(tmp_path).lock)
    clock = ManualClock()
    try:
        write_checkpoint(tmp_path, everything[20]["phyOffset"])
        made = stream(tmp_path)
        reader = StoreStreamReader(made._reader, clock=clock)
        start = reader.initialOffset()
        first = reader.latestOffset(start, ReadAllAvailable())
        write_checkpoint(tmp_path, everything[40]["phyOffset"])
        assert reader.latestOffset(first, ReadAllAvailable()) == first, "it looks once a second"
        clock.advance(LOOK_INTERVAL_S)
        second = reader.latestOffset(first, ReadAllAvailable())
        assert rows(reader, start, first) + rows(reader, first, second) == everything[:40]
    finally:
        lock.release()


def test_a_position_that_the_log_does_not_have_is_told(tmp_path: Path) -> None:
    write_log(PosixDisk(), random_messages(Random(9), 150), directory=StorePaths(tmp_path).commit_log).close()
    reader = stream(tmp_path)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    with pytest.raises(StoreUnusable, match=r"read up to offset 9999999, but the log ends at .*; begin with a new"):
        reader.latestOffset({"phyOffset": 9_999_999}, ReadAllAvailable())
    min(StorePaths(tmp_path).commit_log.iterdir()).unlink()
    with pytest.raises(StoreUnusable, match=r"messages of the offsets \[0, .* expired before the query read them"):
        reader.partitions({"phyOffset": 0}, end)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"path": "x", "table": "units"}, "option 'table': only the table 'messages' can be read as a stream"),
        ({"path": "s3://b/store"}, "option 'path': a store in an object store cannot be read as a stream"),
        ({}, "option 'path': the directory of a store is needed, or the option 'endpoints'"),
    ],
)
def test_what_is_no_stream_is_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidOption, match=complaint):
        stream_of(checked := read_options(options), schema_of(checked))


def test_a_query_with_a_watermark_goes_on_from_its_checkpoint(
    spark: SparkSession, golden_store: GoldenStore, tmp_path: Path
) -> None:
    root, place = golden_store("file-clean") / "store", str(tmp_path / "out")
    frame = spark.readStream.format("quarry").option("maxBytesPerTrigger", 400_000).load(str(root))
    kept = frame.withWatermark("storeTimestamp", "1 hour").dropDuplicatesWithinWatermark(["phyOffset"])
    for _ in range(2):
        query = (
            kept.select("phyOffset", "topic")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(place)
        )
        query.awaitTermination(300)
        assert query.exception() is None
        found = [row["phyOffset"] for row in spark.read.parquet(place).orderBy("phyOffset").collect()]
        assert found == [row["phyOffset"] for row in messages(root)]


def test_spark_is_told_in_one_sentence_what_cannot_be_streamed(spark: SparkSession, tmp_path: Path) -> None:
    write_store(tmp_path, [(message(), 1_790_000_000_000)])
    frame = spark.readStream.format("quarry").option("table", "queues").load(str(tmp_path))
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(PySparkException, match="only the table 'messages' can be read as a stream"):
        query.awaitTermination(120)
