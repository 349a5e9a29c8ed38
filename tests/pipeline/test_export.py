"""Exports, read back with pyarrow, beside what RocketMQ's own decoder reads of the same store."""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from quarry_mq.pipeline.export import BodyForm, Exported, Selection, export, parquet_files
from quarry_mq.pipeline.export.commits import Destination
from quarry_mq.pipeline.export.job import stored_day, topic_folder
from quarry_mq.pipeline.export.parquet_files import folder_of
from quarry_mq.pipeline.files import Folder
from quarry_mq.pipeline.source.messages import MessageReader, message_schema
from quarry_mq.pipeline.source.options import read_options
from quarry_mq.pipeline.source.times import microseconds_of, timestamps
from quarry_mq.protocol.messages.bodies import plain_body
from quarry_mq.protocol.messages.system_flag import COMPRESSED
from quarry_mq.store.errors import Invalid
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from tests import golden
from tests.conftest import GoldenStore
from tests.pipeline.tables import Row, messages


def exported(place: Path) -> list[Row]:
    """What readers see, in the order of the log."""
    found = dataset.dataset(place, format="parquet", partitioning="hive", ignore_prefixes=["_", "."]).to_table()
    return sorted(found.to_pylist(), key=lambda row: row["phyOffset"])


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Callable[..., Exported]:
    """`run(root, selection)` exports to `tmp_path / "out"`."""

    def run_it(root: Path, selection: Selection | None = None, **how: Any) -> Exported:
        return export(spark, PosixDisk(), root, str(tmp_path / "out"), selection or Selection(), **how)

    return run_it


@pytest.mark.slow
@pytest.mark.parametrize("name", golden.NAMES)
def test_what_is_read_back_is_what_rocketmqs_decoder_reads(
    run: Callable[..., Exported], golden_store: GoldenStore, tmp_path: Path, name: str
) -> None:
    store = golden_store(name)
    expected = [line for line in golden.records(store) if "blank" not in line]
    done = run(store / "store", split_bytes=200_000)
    assert done.messages == len(expected)
    for row, line in zip(exported(tmp_path / "out"), expected, strict=True):
        told = {**row, "properties": dict(row["properties"])}
        body = told.pop("body")
        assert (len(body), hashlib.sha1(body).hexdigest()) == (line["bodyLength"], line.pop("bodySha1"))
        assert str(told.pop("topicFolder")) == told["topic"]
        for added in ("uniqKey", "tags", "keys", "day"):
            told.pop(added)
        for time in ("storeTimestamp", "bornTimestamp"):
            told[time] = microseconds_of(told[time]) // 1000
        told["offsetMsgId"] = told["msgId"]
        assert told == line


@pytest.mark.slow
def test_files_lie_in_folders_by_topic_and_day(
    run: Callable[..., Exported], golden_store: GoldenStore, tmp_path: Path
) -> None:
    root = golden_store("file-clean") / "store"
    run(root)
    folders = {str(path.parent.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.parquet")}
    assert all(folder.startswith("topicFolder=") and "/day=20" in folder for folder in folders)
    assert len({folder.partition("/")[0] for folder in folders}) == len({row["topic"] for row in messages(root)})


def test_only_what_is_selected_is_exported(
    run: Callable[..., Exported], golden_store: GoldenStore, tmp_path: Path
) -> None:
    root = golden_store("file-clean") / "store"
    everything = messages(root)
    some = next(row for row in everything if row["tags"])
    selection = Selection(
        topics=(some["topic"],),
        tags=(some["tags"],),
        from_ms=some["storeTimestamp"],
        to_ms=everything[-1]["storeTimestamp"],
        where="queueOffset % 2 = 0",
        body=BodyForm.NONE,
    )
    run(root, selection)
    rows = exported(tmp_path / "out")
    assert [row["phyOffset"] for row in rows] == [
        row["phyOffset"]
        for row in everything
        if row["topic"] == some["topic"]
        and row["tags"] == some["tags"]
        and row["storeTimestamp"] >= some["storeTimestamp"]
        and row["queueOffset"] % 2 == 0
    ]
    assert rows
    assert "body" not in rows[0]


@pytest.mark.slow
def test_bodies_as_text_and_in_base64(spark: SparkSession, golden_store: GoldenStore, tmp_path: Path) -> None:
    root = golden_store("file-clean") / "store"
    stored = messages(root, columns="phyOffset,sysFlag,body")
    plain = [plain_body(row["sysFlag"], row["body"]) or b"" for row in stored]
    assert any(row["sysFlag"] & COMPRESSED for row in stored), "some are compressed"
    # how many U+FFFD stand for one broken sequence is not agreed upon
    texts = [body.decode("utf-8", "ignore") for body in plain]
    for form, expected in (
        (BodyForm.PLAIN, plain),
        (BodyForm.TEXT, texts),
        (BodyForm.BASE64, [base64.b64encode(body).decode() for body in plain]),
    ):
        place = tmp_path / form.value
        export(spark, PosixDisk(), root, str(place), Selection(body=form))
        found = [row["body"] for row in exported(place)]
        assert [each.replace("\ufffd", "") if form is BodyForm.TEXT else each for each in found] == expected


def test_every_store_time_has_a_day(spark: SparkSession) -> None:
    times = [0, 1_700_000_000_000, 253_402_300_799_999, 2**53, 2**63 - 1, -1, -(2**63)]
    last = "9999-12-31"
    for values, kind, before_1970 in (
        (times, LongType(), ["1970-01-01", "1970-01-01"]),
        (timestamps(pa.array(times)).to_pylist(), TimestampType(), ["1969-12-31", last]),
    ):
        table = spark.createDataFrame([(each,) for each in values], StructType([StructField("storeTimestamp", kind)]))
        days = [row["day"] for row in table.select(stored_day(kind).alias("day")).collect()]
        assert days == ["1970-01-01", "2023-11-14", last, last, last, *before_1970]


@pytest.mark.parametrize("form", BodyForm)
def test_files_of_tasks_are_those_that_spark_writes(
    run: Callable[..., Exported],
    spark: SparkSession,
    golden_store: GoldenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: BodyForm,
) -> None:
    root = golden_store("file-clean") / "store"
    everything = messages(root, columns="topic,storeTimestamp")
    some = tuple(name for name, _ in Counter(row["topic"] for row in everything).most_common(2))
    late_ms = everything[-2]["storeTimestamp"]
    selection = Selection(topics=some, from_ms=everything[1]["storeTimestamp"], to_ms=late_ms, body=form)
    ours = run(root, selection, split_bytes=200_000)
    monkeypatch.setattr(parquet_files, "TOPICS_MAX", 0)
    monkeypatch.setattr(parquet_files, "_BUFFER_BYTES", 0)
    theirs = export(spark, PosixDisk(), root, str(tmp_path / "spark"), selection, split_bytes=200_000)
    assert ours.messages > 0
    assert replace(ours, files=0) == replace(theirs, files=0)
    assert exported(tmp_path / "out") == exported(tmp_path / "spark")
    assert spark.read.parquet(str(tmp_path / "out")).schema == spark.read.parquet(str(tmp_path / "spark")).schema


def test_folders_of_topics_have_the_names_that_spark_gives(spark: SparkSession) -> None:
    topics = [
        "plain-1",
        "",
        "%RETRY%a",
        "a=b:c'd\"e#f",
        "[x]{y^z",
        "{}",
        "sp ace",
        "gr\u00f6\u00dfe",
        "%" * 60,
        "x" * 241,
    ]
    jvm: Any = spark._jvm
    escape = jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.getPartitionPathString
    rows = spark.createDataFrame([(each,) for each in topics], "topic string").select(topic_folder().alias("folder"))
    assert [f"topicFolder={folder_of(each)}" for each in topics] == [
        escape("topicFolder", row["folder"]) for row in rows.collect()
    ]


def test_a_task_writes_row_groups_before_it_has_all_rows(
    golden_store: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden_store("file-clean") / "store"
    files = parquet_files.ParquetFiles(str(tmp_path / "out"), BodyForm.STORED, "snappy")
    monkeypatch.setattr(parquet_files, "_BUFFER_BYTES", 50_000)
    reader = MessageReader(read_options({"path": str(root)}), message_schema(read_options({"path": str(root)})))
    task = parquet_files._Task(files)
    count = 0
    for split in reader.partitions():
        for batch in reader.read(split):
            for begin in range(0, batch.num_rows, 50):
                task.add(batch.slice(begin, 50))
                count += len(batch.slice(begin, 50))
    written = task.close()
    assert sum(each.messages for each in written) == count
    groups = [pq.ParquetFile(tmp_path / "out" / each.file).num_row_groups for each in written]
    assert max(groups) > 1
    assert [row["phyOffset"] for row in exported(tmp_path / "out")] == [row["phyOffset"] for row in messages(root)]


# -- exports that go on


def cut_log(root: Path, at: int) -> None:
    """Let the log end there."""
    for path in sorted(StorePaths(root).commit_log.glob("0*")):
        begin, size = int(path.name), path.stat().st_size
        if begin >= at:
            path.unlink()
        elif begin + size > at:
            with path.open("r+b") as file:
                file.truncate(at - begin)
                file.truncate(size)


def test_what_came_since_the_last_run_is_added(
    run: Callable[..., Exported], golden_store: GoldenStore, golden_copy: GoldenStore, tmp_path: Path
) -> None:
    whole = golden_store("file-clean") / "store"
    everything = [row["phyOffset"] for row in messages(whole)]
    part = golden_copy("file-clean") / "store"
    half = everything[len(everything) // 2]
    cut_log(part, half)
    first = run(part, goes_on=True)
    assert (first.begin, first.end, first.messages) == (0, half, len(everything) // 2)
    second = run(whole, goes_on=True)
    assert (second.begin, second.messages) == (half, len(everything) - len(everything) // 2)
    assert [row["phyOffset"] for row in exported(tmp_path / "out")] == everything
    third = run(whole, goes_on=True)
    assert (third.messages, third.files) == (0, 0)
    assert [row["phyOffset"] for row in exported(tmp_path / "out")] == everything


class Killed(Exception):
    """The end of a run, wherever it is."""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["staged", "committed", "moved some"])
def test_a_run_that_is_killed_leaves_neither_gap_nor_duplicate(
    run: Callable[..., Exported],
    golden_store: GoldenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    root = golden_store("file-clean") / "store"
    everything = [row["phyOffset"] for row in messages(root)]
    with monkeypatch.context() as patch:
        if where == "staged":
            patch.setattr(Destination, "commit", lambda *_: _kill())
        elif where == "committed":
            patch.setattr(Destination, "complete", lambda *_: _kill())
        else:
            move, left = Folder.move_unless_there, [6]

            def dies(self: Folder, source: str, target: str) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                move(self, source, target)

            patch.setattr(Folder, "move_unless_there", dies)
        with pytest.raises(Killed):
            run(root, goes_on=True)
    seen = len(list((tmp_path / "out").glob("topicFolder=*/*/*.parquet")))
    assert (seen > 0) == (where == "moved some")
    again = run(root, goes_on=True)
    assert again.messages == (len(everything) if where == "staged" else 0)
    assert [row["phyOffset"] for row in exported(tmp_path / "out")] == everything
    assert not (tmp_path / "out" / "_quarry" / "staging").exists()


def _kill() -> None:
    raise Killed


@pytest.mark.slow
def test_messages_that_expired_between_two_runs_are_told(
    run: Callable[..., Exported], golden_copy: GoldenStore, golden_store: GoldenStore
) -> None:
    part = golden_copy("file-clean") / "store"
    first_file, second_file, *_ = sorted(StorePaths(part).commit_log.glob("0*"))
    everything = messages(part)
    cut_log(part, everything[5]["phyOffset"])
    done = run(part, goes_on=True)
    shutil.copytree(StorePaths(golden_store("file-clean") / "store").commit_log, part / "commitlog", dirs_exist_ok=True)
    first_file.unlink()
    again = run(part, goes_on=True)
    assert again.expired == int(second_file.name) - done.end > 0


@pytest.mark.parametrize(
    ("selection", "how", "complaint"),
    [
        (Selection(), {}, "holds an export already; --incremental goes on with it"),
        (Selection(topics=("other",)), {"goes_on": True}, r"something else: topics \[\], not \['other'\]"),
    ],
)
def test_an_export_of_something_else_is_not_added_to(
    run: Callable[..., Exported], golden_store: GoldenStore, selection: Selection, how: dict[str, Any], complaint: str
) -> None:
    root = golden_store("file-kill") / "store"
    run(root)
    with pytest.raises(Invalid, match=complaint):
        run(root, selection, **how)


def test_a_folder_with_something_else_is_left_alone(
    run: Callable[..., Exported], golden_store: GoldenStore, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("dear")
    with pytest.raises(Invalid, match="holds something else than an export"):
        run(golden_store("file-kill") / "store")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["letter.txt"]
