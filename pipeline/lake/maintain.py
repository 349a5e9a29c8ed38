"""Compacts the table of a lake, and lets old snapshots expire. The rows and the position stay the same."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import Row, SparkSession

from quarry_mq.pipeline.lake.table import LakeTable
from quarry_mq.protocol.clock import Clock, SystemClock

ORPHANS_AGE_MIN_MS: Final = 3 * 24 * 60 * 60 * 1000
"""The age from which files that no snapshot names are removed: a job that writes now has not named its files yet."""


@dataclass(frozen=True, slots=True)
class Maintained:
    """The result of one run."""

    rewritten_files: int
    added_files: int
    expired_files: int
    """Data files that were removed with the snapshots that needed them."""
    removed_branches: int
    """Branches of batches whose jobs were killed."""
    removed_orphans: int
    """Files that killed jobs have left."""


def maintain(spark: SparkSession, name: str, retention_ms: int, *, clock: Clock | None = None) -> Maintained:
    """Sort small files into large ones, and let snapshots expire that are older than the retention.

    A job may append to the table meanwhile. Raises Invalid if there is no such table of a lake, and what Spark raises.
    """
    table = LakeTable(spark, name, clock or SystemClock())
    table.open_existing()
    removed = table.remove_old_branches()
    now_ms = table.clock.wall_ms()
    before = _moment(now_ms - retention_ms)
    small = "options => map('min-input-files', '2')"
    rewritten = _call(table, "rewrite_data_files", name, "strategy => 'sort'", small)
    # a version of offsets is needed as long as a snapshot that names it may come back
    table.remove_offsets_before(now_ms - retention_ms)
    expired = _call(table, "expire_snapshots", name, before)
    orphans_before = _moment(now_ms - max(retention_ms, ORPHANS_AGE_MIN_MS))
    orphans = len(_rows(table, "remove_orphan_files", name, orphans_before))
    for other in (table.offsets, table.positions):
        _call(table, "rewrite_data_files", other, small)
        _call(table, "expire_snapshots", other, before)
    return Maintained(
        rewritten["rewritten_data_files_count"],
        rewritten["added_data_files_count"],
        expired["deleted_data_files_count"],
        removed,
        orphans,
    )


def _call(table: LakeTable, procedure: str, name: str, *arguments: str) -> Row:
    return _rows(table, procedure, name, *arguments)[0]


def _rows(table: LakeTable, procedure: str, name: str, *arguments: str) -> list[Row]:
    told = ", ".join([f"table => '{name}'", *arguments])
    return table.spark.sql(f"CALL `{table.catalog}`.system.{procedure}({told})").collect()


def _moment(time_ms: int) -> str:
    return f"older_than => TIMESTAMP '{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}Z'"
