"""Checks of a lake's table that need Iceberg in the same process. Run with the Python that has it.

python -m tests.pipeline.lake_checks JAR FOLDER STORE
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, Final

from pyspark.sql import Row, SparkSession

from quarry_mq.pipeline.lake import LakeRun, Landed, LogWish, lake, maintain
from quarry_mq.pipeline.lake.table import LakeTable
from quarry_mq.pipeline.session import open_session
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.errors import Invalid

STEPS: Final = ("begin", "begin+", "stage", "stage+", "add_offsets", "add_offsets+", "publish", "publish+")


SMALL: Final = 300_000
"""Bytes of a batch of which the store has so many that a job can be killed at each step."""


class Killed(BaseException):
    """The job is at its end, as after a kill: nothing handles this error."""


class Checks:
    def __init__(self, spark: SparkSession, store: Path) -> None:
        self._spark = spark
        self._store = store

    def append(self, name: str, batch_bytes: int = 2 << 20) -> Landed:
        """Append the store to a table, in a few batches."""
        run = LakeRun(buckets=2, stop=Event(), report=lambda _: None)
        return lake(
            self._spark, name, LogWish(root=self._store, batch_bytes=batch_bytes, split_bytes=batch_bytes // 4), run
        )

    def refused(self, name: str) -> str:
        """Return why nothing is appended to a table."""
        try:
            self.append(name)
        except Invalid as refused:
            return str(refused)
        raise AssertionError("not refused")

    def rows(self, name: str) -> list[Row]:
        columns = "topic", "queueId", "queueOffset"
        return self._spark.table(name).select(*columns, "body").orderBy(*columns).collect()

    def one_job_is_killed_at_each_step(self) -> list[Row]:
        name = "lake.db.killed"
        for number, step in enumerate(STEPS):
            with at(step, kill, after=number % 2):
                try:
                    self.append(name, SMALL)
                except Killed:
                    continue
            raise AssertionError(f"not killed: {step}")
        done = self.append(name, SMALL)
        rows = self.rows(name)
        assert 0 < done.messages < len(rows), "killed runs have appended some"
        assert len({row[:3] for row in rows}) == len(rows), "nothing twice"
        return rows

    def two_jobs_append_at_once(self, expected: list[Row]) -> None:
        name = "lake.db.two"
        with at("publish", lambda: self.append(name)):
            assert "another job has appended" in self.refused(name)
        assert self.append(name).messages == 0
        assert self.rows(name) == expected

    def a_table_changes_while_a_batch_is_written(self, expected: list[Row]) -> None:
        name = "lake.db.changed"
        delete = f"DELETE FROM {name} WHERE topic = 'nothing' OR queueOffset = 0"
        with at("publish", lambda: self._spark.sql(delete), after=1):
            self.append(name)
        assert [row for row in expected if row["queueOffset"]] == [row for row in self.rows(name) if row["queueOffset"]]
        assert len(self.rows(name)) < len(expected)

    def columns_are_added_and_kept(self, expected: list[Row]) -> None:
        name = "lake.db.columns"
        with at("publish+", kill):
            try:
                self.append(name)
            except Killed:
                self._spark.sql(f"ALTER TABLE {name} DROP COLUMN messageGroup")  # as a table of an earlier version
                self._spark.sql(f"ALTER TABLE {name} ADD COLUMN note string")
        self.append(name)
        assert self.rows(name) == expected
        assert {"messageGroup", "note"} <= set(self._spark.table(name).columns)

    def a_rollback_takes_the_position_back(self, expected: list[Row]) -> None:
        name = "lake.db.rolled"
        self.append(name)
        snapshots = self._spark.sql(f"SELECT snapshot_id FROM {name}.snapshots ORDER BY committed_at").collect()
        self._spark.sql(f"CALL lake.system.rollback_to_snapshot('db.rolled', {snapshots[1][0]})")
        assert len(self.rows(name)) < len(expected)
        self.append(name)
        assert self.rows(name) == expected

    def expired_snapshots_leave_the_position(self, expected: list[Row]) -> None:
        name = "lake.db.expired"
        self.append(name)
        assert maintain(self._spark, name, 0).rewritten_files > 0
        table = LakeTable(self._spark, name, SystemClock())
        summaries = self._spark.sql(f"SELECT summary FROM {name}.snapshots").collect()
        assert not any("quarry.position" in row["summary"] for row in summaries)
        assert table.next_offsets(table.position()).count() > 0
        assert self.append(name).messages == 0
        assert self.rows(name) == expected

    def tables_of_others_are_refused(self) -> None:
        self._spark.sql("CREATE TABLE lake.db.other (id int) USING iceberg")
        assert "was not made by" in self.refused("lake.db.other")


def kill() -> None:
    raise Killed


@contextmanager
def at(step: str, what: Callable[[], object], *, after: int = 0) -> Iterator[None]:
    """Do something once, before a method of `LakeTable`, or after it: `METHOD+`; `after` so many calls of it."""
    name = step.removesuffix("+")
    method: Callable[..., Any] = getattr(LakeTable, name)
    calls = 0

    def wrapped(self: LakeTable, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != after + 1:
            return method(self, *arguments)
        if step.endswith("+"):
            result = method(self, *arguments)
            what()
            return result
        what()
        return method(self, *arguments)

    setattr(LakeTable, name, wrapped)
    try:
        yield
    finally:
        setattr(LakeTable, name, method)


def main(jar: str, folder: str, store: str) -> None:
    catalog = "spark.sql.catalog.lake"
    settings = {
        "spark.jars": jar,
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": folder,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    checks = Checks(open_session("lake checks", master="local[2]", settings=settings), Path(store))
    expected = checks.one_job_is_killed_at_each_step()
    checks.two_jobs_append_at_once(expected)
    checks.a_table_changes_while_a_batch_is_written(expected)
    checks.columns_are_added_and_kept(expected)
    checks.a_rollback_takes_the_position_back(expected)
    checks.expired_snapshots_leave_the_position(expected)
    checks.tables_of_others_are_refused()


if __name__ == "__main__":
    main(*sys.argv[1:])
