"""`export`: messages of a store into files that others read: Parquet, or any format that Spark writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from pipeline.body_form import BodyForm
from pipeline.export.body import plain_bodies
from pipeline.export.commits import Commit, Destination
from pipeline.source.log_splits import readable_range
from pipeline.source.message_columns import COLUMNS
from pipeline.source.options import SPLIT_BYTES
from pipeline.wanted import Wanted
from store.disk import Disk
from store.errors import Invalid

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Wanted):
    """What is exported, and in which form."""

    body: BodyForm = BodyForm.STORED
    file_format: str = "parquet"

    def as_json(self) -> dict[str, object]:
        """As it is kept beside the files."""
        return {
            "topics": sorted(self.topics),
            "tags": sorted(self.tags),
            "from": self.from_ms,
            "to": self.to_ms,
            "where": self.where,
            "body": self.body.value,
            "format": self.file_format,
        }


@dataclass(frozen=True, slots=True)
class Exported:
    """What was exported by one run: of the messages in [begin, end) those that were selected."""

    begin: int
    end: int
    messages: int
    files: int
    expired: int
    """Bytes of the log that expired after the last run, before this one."""


def export(
    spark: SparkSession,
    disk: Disk,
    root: Path,
    destination: str,
    selection: Selection,
    *,
    goes_on: bool = False,
    split_bytes: int = SPLIT_BYTES,
) -> Exported:
    """Export what is in the log; with `goes_on`, what came since the last run. See `pipeline.export.commits`.

    Raises Invalid when something else lies at the destination, or an export of something else; StoreUnusable, OSError,
    and what Spark raises.
    """
    place = Destination(spark, destination)
    commits = _begin(place, selection, goes_on=goes_on)
    log_begin, end = readable_range(disk, root, split_bytes)
    begin = commits[-1].end if commits else log_begin
    expired = max(0, log_begin - begin)
    if end <= begin:
        return Exported(begin, begin, 0, 0, expired)
    counted = Observation()
    table = spark.read.format("quarry").options(columns=_columns(selection), splitBytes=split_bytes).load(str(root))
    rows = _selected(table, selection, begin, end).observe(counted, sql.count("*").alias("messages"))
    ordered = rows.hint("rebalance", "topic", "day").sortWithinPartitions("topic", "day", "phyOffset")
    ordered.write.partitionBy("topic", "day").format(selection.file_format).save(place.staging)
    messages = int(counted.get["messages"])
    commit = Commit(begin, end, messages, place.staged_files() if messages else [])
    place.commit(commit)
    return Exported(begin, end, messages, len(commit.files), expired)


def _begin(place: Destination, selection: Selection, *, goes_on: bool) -> list[Commit]:
    """What was exported before, with all files at their places."""
    if place.is_strange():
        raise Invalid(f"{place.place}: holds something else than an export")
    before = place.selection()
    wanted = selection.as_json()
    if before is None:
        place.set_selection(wanted)
    elif not goes_on:
        raise Invalid(f"{place.place}: holds an export already; --incremental goes on with it")
    elif before != wanted:
        raise Invalid(f"{place.place}: holds an export of something else: {_difference(before, wanted)}")
    commits = place.commits()
    if commits:
        place.complete(commits[-1])
    place.clear()
    return commits


def _difference(before: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name} {before.get(name)!r}, not {wanted[name]!r}" for name in wanted if before.get(name) != wanted[name]
    )


def _columns(selection: Selection) -> str:
    return ",".join(name for name in COLUMNS if name != "body" or selection.body is not BodyForm.NONE)


def _selected(table: DataFrame, selection: Selection, begin: int, end: int) -> DataFrame:
    """The rows to be written, with the column `day` of the store time in UTC."""
    rows = selection.rows(table, begin, end)
    if selection.body not in (BodyForm.NONE, BodyForm.STORED):
        rows = rows.mapInArrow(plain_bodies, StructType(rows.schema.fields))
        rows = rows.withColumn("body", _formed(selection.body))
    return rows.withColumn("day", stored_day())


def stored_day() -> Column:
    """The day in UTC of `storeTimestamp`, which may be any number: the first or last one where no calendar reaches."""
    stored_ms = sql.greatest(sql.lit(0), sql.least(sql.lit(TIME_MS_MAX), "storeTimestamp"))
    return sql.date_format(sql.timestamp_millis(stored_ms), "yyyy-MM-dd")


def _formed(form: BodyForm) -> Column:
    match form:
        case BodyForm.TEXT:
            return sql.make_valid_utf8(sql.col("body").cast("string"))
        case BodyForm.BASE64:
            # Spark breaks it into lines
            return sql.translate(sql.base64("body"), "\r\n", "")
    return sql.col("body")
