"""The data source through Spark itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from quarry_mq.pipeline.data_source import WorkersUnusable, register
from quarry_mq.store.layout.paths import StorePaths
from tests import golden
from tests.conftest import GoldenStore
from tests.pipeline.tables import messages


def table(spark: SparkSession, root: Path, **options: object) -> DataFrame:
    return spark.read.format("quarry").options(**{name: str(value) for name, value in options.items()}).load(str(root))


def plan_of(frame: DataFrame) -> str:
    """What Spark is going to do, in its own words."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_messages_are_counted_by_topic(spark: SparkSession, golden_store: GoldenStore) -> None:
    store = golden_store("rocks-clean")
    expected = Counter(line["topic"] for line in golden.records(store) if "blank" not in line)
    counted = table(spark, store / "store", splitBytes=100_000).groupBy("topic").count().collect()
    assert {row["topic"]: row["count"] for row in counted} == expected


def test_rows_come_as_the_tasks_read_them(spark: SparkSession, golden_store: GoldenStore) -> None:
    root = golden_store("file-clean") / "store"
    rows = table(spark, root, columns="phyOffset,topic,keys,body,properties").orderBy("phyOffset").collect()
    expected = messages(root, columns="phyOffset,topic,keys,body,properties")
    assert [row.asDict() for row in rows] == [{**row, "properties": dict(row["properties"])} for row in expected]


def test_sql_finds_the_format(spark: SparkSession, golden_store: GoldenStore) -> None:
    root = golden_store("file-clean") / "store"
    spark.sql(f"create temporary view log using quarry options (path '{root}', columns 'topic,queueOffset')")
    [row] = spark.sql("select count(*) as messages, count(distinct topic) as topics from log").collect()
    expected = [line["topic"] for line in golden.records(root.parent) if "blank" not in line]
    assert (row["messages"], row["topics"]) == (len(expected), len(set(expected)))


def test_filters_are_handed_down(spark: SparkSession, golden_store: GoldenStore) -> None:
    root = golden_store("file-clean") / "store"
    everything = messages(root)
    some = everything[len(everything) // 2]
    frame = table(spark, root, pushFilters=True).filter(
        f"topic = '{some['topic']}' and phyOffset >= {some['phyOffset']} and tags is not null and queueId in (0, 1, 2)"
    )
    assert " Filter " not in plan_of(frame), "nothing is left to be filtered"
    found = frame.orderBy("phyOffset").collect()
    assert [row["phyOffset"] for row in found] == [
        row["phyOffset"]
        for row in everything
        if row["topic"] == some["topic"]
        and row["phyOffset"] >= some["phyOffset"]
        and row["tags"] is not None
        and row["queueId"] in (0, 1, 2)
    ]


def test_queries_of_one_loaded_table_have_their_own_filters(spark: SparkSession, golden_store: GoldenStore) -> None:
    """Spark keeps one reader for them all."""
    root = golden_store("file-clean") / "store"
    topics = Counter(row["topic"] for row in messages(root))
    (first, _), (second, _) = topics.most_common(2)
    frame = table(spark, root)
    some, others = frame.filter(f"topic = '{first}'"), frame.filter(f"topic = '{second}'")
    assert (some.count(), frame.count(), others.count()) == (topics[first], topics.total(), topics[second])
    both = some.union(others).groupBy("topic").count().collect()
    assert {row["topic"]: row["count"] for row in both} == {name: topics[name] for name in (first, second)}


def test_filters_that_are_left_to_spark_hold_too(spark: SparkSession, golden_store: GoldenStore) -> None:
    root = golden_store("file-clean") / "store"
    found = table(spark, root).filter("queueOffset % 2 = 1 and properties['TAGS'] = tags").count()
    assert found == sum(row["queueOffset"] % 2 == 1 and row["tags"] is not None for row in messages(root))


def test_a_schema_says_which_columns_are_read(spark: SparkSession, golden_store: GoldenStore) -> None:
    root = golden_store("file-clean") / "store"
    frame = spark.read.format("quarry").schema("bodyLength int, topic string").load(str(root))
    assert frame.columns == ["bodyLength", "topic"]
    assert [row.asDict() for row in frame.collect()] == messages(root, columns="bodyLength,topic")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"columns": "boddy"}, "option 'columns': no column 'boddy'"),
        ({"tabel": "messages"}, r"option 'tabel': no such option \(did you mean 'table'\?\)"),
        ({"mode": "perhaps"}, "option 'mode': 'perhaps' is none of fail, quarantine"),
    ],
)
def test_a_wrong_option_is_named(
    spark: SparkSession, golden_store: GoldenStore, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(PySparkException, match=complaint):
        table(spark, golden_store("file-clean") / "store", **options).collect()


def test_a_directory_that_is_no_store_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=f"{tmp_path}"):
        table(spark, tmp_path / "nothing").collect()


def test_damage_is_reported_with_file_and_offset(spark: SparkSession, golden_copy: GoldenStore) -> None:
    root = golden_copy("file-clean") / "store"
    wrong = messages(root, columns="phyOffset,storeSize")[5]["phyOffset"]
    path = StorePaths(root).commit_log / f"{0:020}"
    with path.open("r+b") as file:
        file.seek(wrong + 90)
        file.write(b"\xff\xfe")
    with pytest.raises(PySparkException, match=rf"{path}: offset {wrong}: "):
        table(spark, root).collect()
    [row] = table(spark, root, mode="quarantine").filter("damage is not null").collect()
    assert (row["phyOffset"], row["topic"]) == (wrong, None)


@pytest.mark.parametrize("name", ["rocks-clean", "file-clean"])
def test_entries_join_with_their_messages(spark: SparkSession, golden_store: GoldenStore, name: str) -> None:
    root = golden_store(name) / "store"
    entries = table(spark, root, table="units").filter("topic not like '%LMQ%'")
    joined = entries.join(table(spark, root), ["topic", "queueId", "queueOffset", "phyOffset"])
    assert joined.filter("size = storeSize").count() == entries.count() > 100


def test_queues_are_counted(spark: SparkSession, golden_store: GoldenStore) -> None:
    root = golden_store("rocks-clean") / "store"
    [row] = table(spark, root, table="queues").selectExpr("sum(maxOffset - minOffset) as units").collect()
    assert row["units"] >= table(spark, root, table="units").count() > 100


def test_workers_of_another_python_are_told_before_anything_is_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = tmp_path / "python3"
    for script, reason in (
        ("#!/bin/sh\necho 'quarry_mq.pipeline pyarrow'\n", "it lacks quarry_mq.pipeline pyarrow"),
        ("#!/bin/sh\necho 'ModuleNotFoundError: no quarry_mq' >&2; exit 1\n", "ModuleNotFoundError: no quarry_mq"),
    ):
        strange.write_text(script)
        strange.chmod(0o755)
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(strange))
        with pytest.raises(WorkersUnusable) as raised:
            register(spark)
        assert f"Spark's workers run {strange}, which cannot read the format quarry ({reason})" in str(raised.value)
        assert "PYSPARK_PYTHON" in str(raised.value)
        assert "\n" not in str(raised.value)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / "nothing"))
    with pytest.raises(WorkersUnusable, match="cannot be run"):
        register(spark)
    monkeypatch.undo()
    register(spark)
