"""Stores in the columns of Spark's source for Kafka."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import lz4.frame
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual

from quarry_mq.pipeline.kafka_columns import KAFKA_TYPES
from quarry_mq.pipeline.source import schema_of
from quarry_mq.pipeline.source.options import InvalidOption, read_options
from quarry_mq.protocol.messages.system_flag import COMPRESSED, Compression
from quarry_mq.store.errors import StoreDamaged
from tests.conftest import GoldenStore
from tests.pipeline.logs import write_store
from tests.pipeline.tables import messages, reader
from tests.pipeline.test_times import NOW_MS, time_of
from tests.store.assembly import message

BODY = b"a body " * 40


def write(root: Path) -> None:
    write_store(
        root,
        [
            (message("orders", 3, BODY, KEYS="k1 k2", TAGS="blue", UNIQ_KEY="M1", colour="red"), NOW_MS),
            (message("orders", 3, b""), NOW_MS + 1),
            (
                message("007", 0, gzip.compress(BODY), PGROUP="p", UNIQ_KEY="M3")._replace(system_flag=COMPRESSED),
                NOW_MS,
            ),
        ],
    )


def test_every_column_is_what_kafka_calls_it(tmp_path: Path) -> None:
    write(tmp_path)
    header = {"key": "TAGS", "value": b"blue"}, {"key": "UNIQ_KEY", "value": b"M1"}, {"key": "colour", "value": b"red"}
    same = {"timestampType": 1}
    assert messages(tmp_path, columns="kafka") == [
        {
            "key": b"k1 k2",
            "value": BODY,
            "topic": "orders",
            "partition": 3,
            "offset": 0,
            "timestamp": time_of(NOW_MS),
            **same,
            "headers": list(header),
        },
        {
            "key": None,
            "value": b"",
            "topic": "orders",
            "partition": 3,
            "offset": 1,
            "timestamp": time_of(NOW_MS + 1),
            **same,
            "headers": [],
        },
        {
            "key": None,
            "value": BODY,
            "topic": "007",
            "partition": 0,
            "offset": 0,
            "timestamp": time_of(NOW_MS),
            **same,
            "headers": [{"key": "UNIQ_KEY", "value": b"M3"}],
        },
    ]
    assert "headers" not in messages(tmp_path, columns="kafka", includeHeaders="false")[0]


def test_conditions_on_kafkas_columns(tmp_path: Path) -> None:
    write(tmp_path)
    found = messages(tmp_path, EqualTo(("topic",), "orders"), EqualTo(("partition",), 3), columns="kafka")
    assert [row["offset"] for row in found] == [0, 1]
    made = reader(tmp_path, columns="kafka", splitBytes=200, clockMarginMs=0)
    whole = sum(1 for part in made.partitions() if list(made.rows(part)))
    assert not list(made.pushFilters([GreaterThanOrEqual(("timestamp",), time_of(NOW_MS + 5000))]))
    assert 0 < sum(1 for part in made.partitions() if list(made.rows(part))) < whole


@pytest.mark.parametrize(
    ("body", "flag", "name"),
    [
        (b"marked and not compressed", COMPRESSED, "zlib"),
        (zlib.compress(BODY)[:-9], COMPRESSED | Compression.ZLIB, "zlib"),
        (lz4.frame.compress(BODY)[:-9], COMPRESSED | Compression.LZ4, "lz4"),
        (BODY, COMPRESSED | 0x600, "unknown"),
    ],
)
def test_a_body_that_cannot_be_uncompressed_ends_the_query_or_is_null(
    tmp_path: Path, body: bytes, flag: int, name: str
) -> None:
    bad = message("orders", 0, body)._replace(system_flag=flag)
    write_store(tmp_path, [(message("orders", 0, BODY), NOW_MS), (bad, NOW_MS), (message("orders", 0, b"x"), NOW_MS)])
    at = messages(tmp_path, columns="phyOffset")[1]["phyOffset"]
    told = f"{tmp_path}/commitlog/{0:020}: offset {at}: marked as compressed \\({name}\\)"
    with pytest.raises(StoreDamaged, match=f"{told}.*; with the option mode=quarantine the query goes on"):
        messages(tmp_path, columns="kafka")
    rows = messages(tmp_path, columns="kafka", mode="quarantine")
    assert [row["value"] for row in rows] == [BODY, None, b"x"]
    assert [row["offset"] for row in rows] == [0, 1, 2]
    assert [row["damage"] is None for row in rows] == [True, False, True]
    assert f"offset {at}: marked as compressed ({name})" in rows[1]["damage"]


def test_times_are_timestamps_as_in_kafka() -> None:
    with pytest.raises(InvalidOption, match="option 'timestamps': with columns=kafka"):
        schema_of(read_options({"path": "x", "columns": "kafka", "timestamps": "millis"}))


def test_spark_reads_them(spark: SparkSession, golden_store: GoldenStore) -> None:
    root = golden_store("rocks-clean") / "store"
    frame = spark.read.format("quarry").option("columns", "kafka").load(str(root))
    assert [(field.name, field.dataType) for field in frame.schema] == list(KAFKA_TYPES.items())
    found = frame.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "topic", "headers").orderBy("offset")
    assert found.filter("size(headers) > 0").count() > 100
    assert frame.count() == len(messages(root, columns="phyOffset"))
