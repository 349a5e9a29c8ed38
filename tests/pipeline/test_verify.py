"""The verification on Spark comes to the verdict of `quarry verify`, whatever is read by which task."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession

from quarry_mq.pipeline.verify import verify
from quarry_mq.pipeline.verify.job import difference_of
from quarry_mq.store.errors import Invalid, StoreDamaged, StoreLocked
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.verify import Check, Difference, VerifyReport
from tests import golden
from tests.conftest import GoldenStore
from tests.verify.faults import FAULTS, Fault, fill_everything
from tests.verify.stores import verified


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fill_everything(tmp_path / "store")
    return tmp_path / "store"


def on_spark(spark: SparkSession, root: Path, **options: object) -> VerifyReport:
    """In parts so small that every kind has several."""
    parts = {"split_bytes": 60_000, "entries_per_part": 150}
    return verify(spark, PosixDisk(), root, **{**parts, **options})  # type: ignore[arg-type]


def told(differences: Iterable[Difference]) -> list[str]:
    """Without the words about damage in the log, of which Spark's reading knows no kind."""
    return sorted(
        f"{each.check.value}: {each}".replace("found corrupt: ", "found ").replace("found torn: ", "found ")
        for each in differences
    )


@pytest.mark.parametrize("name", golden.HALF_SLOW)
def test_stores_of_rocketmq_agree_and_are_counted_alike(
    spark: SparkSession, golden_store: GoldenStore, name: str
) -> None:
    root = golden_store(name) / "store"
    report, expected = on_spark(spark, root, split_bytes=1 << 20, entries_per_part=2_000), verified(root)
    assert report == expected
    assert report.agrees


def test_our_own_store_agrees(spark: SparkSession, store: Path) -> None:
    report = on_spark(spark, store)
    assert report == verified(store)
    assert report.counts[Check.INDEX] == (1080, 0)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_as_quarry_verify_finds_it(spark: SparkSession, store: Path, fault: Fault) -> None:
    fault.plant(store)
    if fault.checks is None:
        with pytest.raises(StoreDamaged, match=fault.words):
            on_spark(spark, store)
        return
    report, expected = on_spark(spark, store), verified(store)
    assert {each.check for each in report.differences} == fault.checks
    assert any(fault.words in str(each) for each in report.differences)
    assert told(report.differences) == told(expected.differences)
    assert (report.counts, report.notes) == (expected.counts, expected.notes)


@pytest.mark.slow
def test_many_faults_at_once_go_to_parquet_and_the_first_ones_are_told(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    planted = [fault for fault in FAULTS if fault.checks is not None]
    for fault in planted:
        fault.plant(store)
    output = tmp_path / "verdict"
    report, expected = on_spark(spark, store, output=str(output), differences_max=2), verified(store, limit=10_000)
    assert (report.counts, report.notes) == (expected.counts, expected.notes)
    assert set.union(*(set(fault.checks or ()) for fault in planted)) <= {each.check for each in report.differences}
    for check, count in report.counts.items():
        assert len([each for each in report.differences if each.check is check]) == min(2, count.differences)
    rows = parquet.read_table(output / "differences").to_pylist()
    assert len(rows) == len(expected.differences) > 20
    assert told(map(difference_of, rows)) == told(expected.differences)
    assert json.loads((output / "verdict.json").read_text()) == expected.as_json()
    with pytest.raises(Invalid, match="is not empty"):
        on_spark(spark, store, output=str(output))


def test_a_missing_segment_is_told_by_its_name(spark: SparkSession, store: Path) -> None:
    (fault,) = (fault for fault in FAULTS if fault.checks is None)
    fault.plant(store)
    with pytest.raises(StoreDamaged, match=fault.words):
        on_spark(spark, store)


def test_an_output_of_a_store_that_agrees_is_an_empty_table(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    on_spark(spark, store, output=str(tmp_path / "verdict"))
    table = parquet.read_table(tmp_path / "verdict" / "differences")
    assert table.num_rows == 0
    assert table.column_names[0] == "check"


def test_a_store_that_a_broker_runs_on_is_refused(spark: SparkSession, store: Path) -> None:
    lock = PosixDisk().lock(StorePaths(store).lock)
    with pytest.raises(StoreLocked):
        on_spark(spark, store)
    lock.release()
