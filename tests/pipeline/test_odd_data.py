"""Odd data as tables: each message is its row, and what is wrong is a row with a name."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from pathlib import Path
from typing import Final

import lz4.frame
import pyarrow.dataset as dataset
import pytest
from pyspark.sql import SparkSession

from quarry_mq.pipeline.damage import LogTable
from quarry_mq.pipeline.export import BodyForm, Selection, export
from quarry_mq.pipeline.stats import Wanted as Counted
from quarry_mq.pipeline.stats import statistics
from quarry_mq.protocol.messages.system_flag import COMPRESSED, Compression
from quarry_mq.store.errors import StoreDamaged, StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import Message
from tests.pipeline.logs import write_store
from tests.pipeline.tables import messages, plain, reader, rows_of
from tests.pipeline.test_bad_messages import rows_of as exported
from tests.record.zstd import compress as zstd_compress
from tests.store.assembly import message

NOW_MS: Final = 1_790_000_000_000
BODY: Final = b"a body " * 40
LARGE: Final = 4 << 20
BEYOND_DOUBLES: Final = 2**53 + 1
"""A number that a float of 64 bits does not have."""


def store(root: Path, some: list[Message], **where: int) -> Path:
    write_store(root, [(each, NOW_MS + number) for number, each in enumerate(some)], **where)
    return root


def test_bodies_of_every_size(tmp_path: Path) -> None:
    bodies = [b"", b"\0", b"x" * LARGE, b"\xff\xfe", b""]
    root = store(tmp_path, [message("orders", 0, each) for each in bodies])
    assert [row["body"] for row in messages(root, columns="body")] == bodies
    assert [row["bodyLength"] for row in messages(root)] == [len(each) for each in bodies]
    assert [row["value"] for row in messages(root, columns="kafka", splitBytes=1 << 20)] == bodies


def test_bodies_of_every_codec(tmp_path: Path) -> None:
    packed = [
        (BODY, 0),
        (gzip.compress(BODY), COMPRESSED),
        (zlib.compress(BODY), COMPRESSED | Compression.ZLIB),
        (lz4.frame.compress(BODY), COMPRESSED | Compression.LZ4),
        (zstd_compress(BODY), COMPRESSED | Compression.ZSTD),
        (b"", COMPRESSED),
    ]
    root = store(tmp_path, [message("orders", 0, body)._replace(system_flag=flag) for body, flag in packed])
    assert [row["body"] for row in messages(root, columns="body")] == [body for body, _ in packed], "as stored"
    assert [row["value"] for row in messages(root, columns="kafka")] == [*[BODY] * 5, b""]


def test_text_that_is_no_utf8_is_replaced_and_kept_as_bytes(tmp_path: Path) -> None:
    log = bytearray()
    root = store(tmp_path, [message("orders", 0, b"x", KEYS="k!y", TAGS="t!g", colour="r!d")])
    file = next(StorePaths(root).commit_log.iterdir())
    log += file.read_bytes()
    for name in (b"k!y", b"t!g", b"r!d"):
        log[log.index(name) + 1] = 0xFF
    file.write_bytes(log)
    [row] = [plain(each) for each in messages(root, checkCrc="false")]
    assert (row["keys"], row["tags"], row["properties"]["colour"]) == ("k\ufffdy", "t\ufffdg", "r\ufffdd")
    [shown] = messages(root, columns="kafka", checkCrc="false")
    assert shown["key"] == b"k\xffy"
    assert {each["key"]: each["value"].decode() for each in shown["headers"]} == {
        "TAGS": "t\ufffdg",
        "colour": "r\ufffdd",
    }
    [told] = [each for each in messages(root, mode="quarantine") if each["damage"]]
    assert "CRC" in told["damage"]


def test_records_that_are_in_no_queue(tmp_path: Path) -> None:
    some = [
        message("RMQ_SYS_TRANS_HALF_TOPIC", 0, b"half", REAL_TOPIC="orders", TRAN_MSG="true")._replace(system_flag=0x4),
        message("SCHEDULE_TOPIC_XXXX", 3, b"delayed", REAL_TOPIC="orders", DELAY="4"),
        message("rmq_sys_wheel_timer", 0, b"timer", TIMER_OUT_MS=str(NOW_MS + 5)),
        message("orders", 0, b"batch", INNER_NUM="3")._replace(system_flag=0x80),
        message("orders", 0, b"committed")._replace(system_flag=0x8, prepared_transaction_offset=7),
    ]
    rows = messages(store(tmp_path, some), columns="topic,sysFlag,preparedTransactionOffset,body")
    assert [(row["topic"], row["sysFlag"], row["body"]) for row in rows] == [
        (each.topic, each.system_flag, bytes(each.body)) for each in some
    ]
    assert rows[-1]["preparedTransactionOffset"] == 7


def test_offsets_beyond_what_floats_have(tmp_path: Path) -> None:
    begin = 2**53 + (1 << 22)
    root = store(tmp_path, [message("orders", 0, b"x")] * 3, first_offset=BEYOND_DOUBLES, begin=begin)
    rows = messages(root, columns="queueOffset,phyOffset")
    assert [row["queueOffset"] for row in rows] == [BEYOND_DOUBLES + number for number in range(3)]
    size = messages(root, columns="storeSize")[0]["storeSize"]
    assert [row["phyOffset"] for row in rows] == [begin + number * size for number in range(3)]
    assert [row["offset"] for row in messages(root, columns="kafka")] == [row["queueOffset"] for row in rows]


@pytest.mark.parametrize("topics", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_topics(tmp_path: Path, topics: int) -> None:
    names = [f"%RETRY%g{number}" if number % 3 else f"{number:06}" for number in range(topics)]
    root = store(tmp_path, [message(name, 0, b"x") for name in names])
    assert [row["topic"] for row in messages(root, columns="topic", splitBytes=1 << 20)] == names


def many_topics(root: Path, topics: int) -> list[str]:
    """Write two messages to each of many topics; return their names."""
    names = [f"%RETRY%g{number}" if number % 3 else f"{number:06}" for number in range(topics)]
    store(root, [message(name, 0, b"x") for name in names * 2])
    return names


@pytest.mark.parametrize("topics", [200, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_small_log_of_many_topics_is_exported_by_one_task(spark: SparkSession, tmp_path: Path, topics: int) -> None:
    names = many_topics(tmp_path / "store", topics)
    done = export(spark, PosixDisk(), tmp_path / "store", str(tmp_path / "out"), Selection(), split_bytes=20_000)
    assert (done.messages, done.files) == (2 * topics, topics), "each topic has one file, though there were many splits"
    rows = dataset.dataset(sorted(map(str, (tmp_path / "out").rglob("*.parquet")))).to_table(columns=["topic"])
    assert Counter(rows.column("topic").to_pylist()) == dict.fromkeys(names, 2)


@pytest.mark.parametrize("topics", [200, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_topics_are_counted(spark: SparkSession, tmp_path: Path, topics: int) -> None:
    names = many_topics(tmp_path / "store", topics)
    found = statistics(spark, PosixDisk(), tmp_path / "store", Counted())
    assert (found.volume.messages, found.topic_count) == (2 * topics, len(names))


def test_nearly_all_messages_in_one_topic_are_still_many_tasks(tmp_path: Path) -> None:
    names = ["large" if number % 100 else f"small-{number}" for number in range(3000)]
    root = store(tmp_path, [message(name, 0, b"x" * 50) for name in names])
    made = reader(root, columns="topic", splitBytes=50_000)
    assert len(made.partitions()) > 5
    assert Counter(row["topic"] for row in rows_of(made)) == Counter(names)


def test_a_segment_that_expires_while_it_is_read_is_told_with_what_to_do(tmp_path: Path) -> None:
    made = reader(store(tmp_path, [message()] * 3))
    [part] = made.partitions()
    [segment] = StorePaths(tmp_path).commit_log.iterdir()
    segment.rename(segment.with_name(f"{1 << 22:020}"))
    with pytest.raises(StoreUnusable, match=r"offsets \[0, \d+\): the segment is gone.*; run the query again, or read"):
        list(made.read(part))


def test_damage_is_told_in_one_line_with_what_to_do(tmp_path: Path) -> None:
    root = store(tmp_path, [message("orders", 0, b"body")] * 3)
    [segment] = StorePaths(root).commit_log.iterdir()
    octets = bytearray(segment.read_bytes())
    octets[90] ^= 1
    segment.write_bytes(octets)
    with pytest.raises(StoreDamaged) as raised:
        messages(root)
    text = str(raised.value)
    assert text.startswith(f"{segment}: offset 0: ")
    assert text.endswith("; with the option mode=quarantine the query goes on, and has this as a row")
    assert "\n" not in text


# -- through Spark


@pytest.mark.parametrize(
    "selection",
    [Selection(topics=("none",)), Selection(where="false"), Selection(to_ms=5)],
    ids=["topic", "where", "time"],
)
def test_an_export_of_nothing_ends_well(spark: SparkSession, tmp_path: Path, selection: Selection) -> None:
    root = store(tmp_path / "store", [message("orders", 0, b"x")])
    done = export(spark, PosixDisk(), root, str(tmp_path / "out"), selection)
    assert (done.messages, done.files, done.without_body, done.first_without_body) == (0, 0, 0, None)
    assert not list((tmp_path / "out").rglob("*.parquet"))
    again = export(spark, PosixDisk(), root, str(tmp_path / "out"), selection, goes_on=True)
    assert (again.begin, again.messages) == (done.end, 0)


def test_statistics_of_an_empty_log(spark: SparkSession, tmp_path: Path) -> None:
    found = statistics(spark, PosixDisk(), store(tmp_path, []), Counted())
    assert (found.volume.messages, found.topic_count, found.topics) == (0, 0, ())


def test_topics_and_times_of_an_export_are_exact(spark: SparkSession, tmp_path: Path) -> None:
    topics = ["007", "1e5", "%RETRY%g", "%41", "null", "größe"]
    some = [message(topic, 0, topic.encode()) for topic in topics]
    write_store(tmp_path / "store", [*((each, NOW_MS) for each in some), (message("late", 0, b"late"), 2**63 - 1)])
    export(spark, PosixDisk(), tmp_path / "store", str(tmp_path / "out"), Selection(body=BodyForm.TEXT))
    rows = exported(tmp_path / "out")
    assert [(row["topic"], row["body"]) for row in rows] == [(each, each) for each in [*topics, "late"]]
    assert (rows[-1]["storeTimestamp"], str(rows[-1]["day"])) == (None, "9999-12-31")
    schema = dataset.dataset(next((tmp_path / "out").rglob("*.parquet"))).schema
    assert (str(schema.field("storeTimestamp").type), str(schema.field("topic").type)) == (
        "timestamp[us, tz=UTC]",
        "string",
    )
    back = spark.read.parquet(str(tmp_path / "out"))
    assert back.filter("topic = '007'").count() == 1
    assert back.filter("storeTimestamp = timestamp_millis(1790000000000)").count() == len(topics)


def test_a_table_of_a_job_is_read_with_its_filter(spark: SparkSession, tmp_path: Path) -> None:
    root = store(tmp_path, [message(f"t{number % 3}", 0, b"x") for number in range(30)])
    log = LogTable(spark, root)
    assert [log.rows("topic").filter(f"topic = 't{number}'").count() for number in range(3)] == [10, 10, 10]
