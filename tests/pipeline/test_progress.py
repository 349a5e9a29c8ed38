"""Progress that a user sees while Spark works."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from quarry_mq.pipeline.progress import reported
from quarry_mq.protocol.clock import Progress


def test_stages_are_told_by_name_with_tasks_and_rows(spark: SparkSession, tmp_path: Path) -> None:
    told: list[Progress] = []
    with reported(spark, ("counting", "writing"), told.append):
        slow = spark.range(0, 8, 1, 8).selectExpr("id", "reflect('java.lang.Thread', 'sleep', 400L) as nothing")
        slow.repartition(2, "id").write.parquet(str(tmp_path / "out"))
    assert told[0].phase == "counting"
    assert {each.phase for each in told} <= {"counting", "writing"}
    assert all(0 <= each.done_bytes <= each.total_bytes for each in told)
    assert any(" rows, " in each.detail for each in told)
